"""The paper's tables as studies, and each study in small.

The studies are the files of studies/paper, which the package holds too: `search/paper/studies` is a link to that folder
in a checkout and a copy of it in an installed package. The small form trains the same task, optimizers, spaces and
stages in seconds on a CPU with a data set of a few hundred. It shows that a study runs from end to end. Its numbers
mean nothing, and since its model is not one of the paper's, they are never shown next to the paper's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml

from search.definition import StudyDefinition
from search.errors import SearchError, nearest_hint
from search.paper.tables import result_tables
from tasks.config import TaskConfig, TrialRef


@dataclass(frozen=True, kw_only=True)
class PaperStudy:
    """A study of the paper.

    Attributes:
        name: the file's name without .yaml; the study is named paper-<name>.
        table: our name of the table whose cells it fills.
        notes: differences from the paper and other remarks: the comment at the top of its file.
    """

    name: str
    table: str
    notes: str
    definition: StudyDefinition


@lru_cache(maxsize=1)
def paper_studies() -> Mapping[str, PaperStudy]:
    """All studies by name, in the order of the paper's tables; one that starts from another's trial comes after it.

    Raises:
        SearchError: this installation has no studies.
    """
    folder = files("search.paper").joinpath("studies")
    texts = (
        {path.name.removesuffix(".yaml"): path.read_text(encoding="utf-8") for path in folder.iterdir()}
        if folder.is_dir()
        else {}
    )
    if not texts:
        raise SearchError(
            f"{folder} has no studies; in a checkout it is a link to studies/paper (git config core.symlinks true)"
        )
    order = {name: i for i, name in enumerate(result_tables())}
    found = [_read(name, text) for name, text in sorted(texts.items())]
    found.sort(key=lambda study: (order[study.table], study.definition.task.init_from is not None))
    return MappingProxyType({study.name: study for study in found})


def paper_study(name: str) -> PaperStudy:
    """The study of this name.

    Raises:
        SearchError: there is no such study.
    """
    known = paper_studies()
    if name not in known:
        raise SearchError(f"the paper has no study {name!r}; {nearest_hint(name, tuple(known))}")
    return known[name]


def _read(name: str, text: str) -> PaperStudy:
    head = [line.removeprefix("#").strip() for line in text.partition("\nname:")[0].splitlines()]
    notes = " ".join(head)
    number = re.match(r"Table (\d+)\b", notes)
    tables = {str(table.number): ours for ours, table in result_tables().items()}
    if number is None or number[1] not in tables:
        raise ValueError(f"studies/paper/{name}.yaml must begin with '# Table N', one of {', '.join(tables)}")
    definition = StudyDefinition.model_validate(yaml.safe_load(text))
    return PaperStudy(name=name, table=tables[number[1]], notes=notes, definition=definition)


SUFFIX = "-smoke"
SMALL_MODELS = ("tiny", "resnet20", "linear")
"""The first of these that the task has is trained instead; a task that has none keeps its model."""

AT_MOST: Mapping[str, float] = MappingProxyType(
    {"epochs": 1, "batch_size": 8, "accumulation": 1, "max_length": 96, "doc_stride": 16, "max_length_s": 0.5}
)
"""Upper limits for fields of the task."""

VAL_FRACTION = 0.5  # a class of two samples is then in training and in validation
N_TRIALS = 2
N_SEEDS = 1


def smoke(definition: StudyDefinition) -> StudyDefinition:
    """The small form of a study. If the study starts from another study, the small form starts from that one's."""
    raw = definition.to_json()
    return StudyDefinition.model_validate(
        {
            **raw,
            "name": definition.name + SUFFIX,
            "description": f"In small, to see that it runs: {definition.description}",
            "task": _small_task(definition.task),
            "pruner": {"name": "none"},  # after one epoch there is nothing to stop
            "budget": {"trials_per_optimizer": min(N_TRIALS, definition.budget.most_trials)},
            "confirm": {
                "top_k": min(1, definition.confirm.top_k),
                "seeds": definition.confirm.seeds[:N_SEEDS],
            },
            "resources": {"cpus": 1, "gpus": 0},
            "checkpoint_every_s": 0,  # another study may start from its trials, however short they are
        }
    )


def _small_task(task: TaskConfig) -> dict[str, Any]:
    raw = task.model_dump(mode="json")
    raw |= {name: min(raw[name], limit) for name, limit in AT_MOST.items() if name in raw}
    if "val_fraction" in raw:
        raw["val_fraction"] = VAL_FRACTION
    raw["model"] = next((model for model in SMALL_MODELS if model in type(task).models), task.model)
    if isinstance(task.init_from, TrialRef):
        raw["init_from"]["study"] += SUFFIX
    return raw
