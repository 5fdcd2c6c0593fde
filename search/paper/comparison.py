"""The paper's tables in its own layout, with our numbers next to its numbers.

Decides which of our results goes into which cell, and which of the paper's variants (ablations, other learning rates) a
result is. Owns the tables as studies too, and each study in small.

The studies are the files of studies/paper, which the package holds too: `search/paper/studies` is a link to that folder
in a checkout and a copy of it in an installed package. The small form trains the same task, optimizers, spaces and
stages in seconds on a CPU with a data set of a few hundred. It shows that a study runs from end to end. Its numbers
mean nothing, and since its model is not one of the paper's, they are never shown next to the paper's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml

from admeta.client.models import (
    OurNumberView,
    PaperCellView,
    PaperNumberView,
    PaperStudyView,
    PaperTableCellsView,
    PaperTableView,
)
from search.definition import StudyDefinition
from search.errors import SearchError, nearest_hint
from search.paper.setups import model_id
from search.paper.tables import PaperResult, result_tables, results
from tasks.config import TaskConfig, TrialRef

_Key = tuple[str, str | None, str, str, str | None]
"""Task, the paper's model, optimizer, metric and variant: equal for a cell and the result shown in it."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One of our results: the number that a cell shows, and what decides which cell it is.

    Attributes:
        task, optimizer: by the product's names.
        metric: without `val_` or `test_`, as in `PaperResult`.
        number: `model_id` decides whether its model counts as one of the paper's.
        variant: the paper's name of an ablation; None for the main result.
    """

    task: str
    optimizer: str
    metric: str
    number: OurNumberView
    variant: str | None = None


def list_tables(measured: Sequence[Measured]) -> list[PaperTableView]:
    """All the paper's result tables, in its order, without their cells."""
    ours = _by_key(measured)
    return [_listed(name, ours) for name in result_tables()]


def compare_table(table: str, measured: Sequence[Measured]) -> PaperTableCellsView:
    """One of the paper's result tables with our numbers next to its own.

    Args:
        table: our name of it (`search.paper.result_tables`).
        measured: our results, the most reliable first: if several fit a cell, the first is shown.

    Raises:
        SearchError: there is no such table.
    """
    if table not in result_tables():
        raise SearchError(f"the paper has no result table {table!r}; {nearest_hint(table, tuple(result_tables()))}")
    layout = result_tables()[table]
    ours = _by_key(measured)
    filled = {
        (paper.row_index, paper.column_index): _cell(paper, ours.get(_key(paper))) for paper in results(table=table)
    }
    empty = PaperCellView(paper=None, ours=None, difference=None)
    return PaperTableCellsView(
        **_listed(table, ours).model_dump(),
        columns=[column.head for column in layout.columns],
        rows=[row.head for row in layout.rows],
        cells=[[filled.get((i, j), empty) for j in range(len(layout.columns))] for i in range(len(layout.rows))],
        notes=list(layout.notes),
    )


def _listed(name: str, ours: Mapping[_Key, OurNumberView]) -> PaperTableView:
    layout, printed = result_tables()[name], results(table=name)
    return PaperTableView(
        name=name,
        number=layout.number,
        caption=layout.caption,
        n_cells=len(printed),
        n_ours=sum(_key(paper) in ours for paper in printed),
        studies=[study.name for study in paper_studies().values() if study.table == name],
    )


def _by_key(measured: Sequence[Measured]) -> dict[_Key, OurNumberView]:
    ours: dict[_Key, OurNumberView] = {}
    for one in measured:
        ours.setdefault((one.task, model_id(one.number.model), one.optimizer, one.metric, one.variant), one.number)
    return ours


def _key(paper: PaperResult) -> _Key:
    return (paper.task, paper.model, paper.optimizer, paper.metric, paper.variant)


def _cell(paper: PaperResult, ours: OurNumberView | None) -> PaperCellView:
    difference = None if ours is None else ours.mean - paper.value
    return PaperCellView(paper=PaperNumberView.model_validate(paper), ours=ours, difference=difference)


def number_text(metric: str, *, mean: float, std: float | None, n: int) -> str:
    """A number of ours as the paper would print it, in its unit, with its n: 94.01±0.20 (n=3)."""
    scale = 1 if metric == "training_time" else 100
    return f"{scale * mean:.2f}{'' if std is None else f'±{scale * std:.2f}'} (n={n})"


FINETUNED = "finetune"
"""The variant of results whose training started from trained weights, which settings do not show."""
_SEARCHED = frozenset({"lr"})
"""Settings that any search may find: a change of these alone is not a variant."""


def variant_of(*, task: str, model: str | None, optimizer: str, settings: Mapping[str, Any]) -> str | None:
    """The paper's name of the ablation that these settings are; None for the optimizer's main result.

    A result is of a variant if the settings include all its changes; of several variants, of the one with the most. A
    variant that only changes the learning rate cannot be distinguished from a main result that found that rate.

    Args:
        task, optimizer: as the product names them.
        model: the paper's name, or one of ours that counts as it.
        settings: what constructed the optimizer.
    """
    met = [
        (len(changes), variant)
        for variant, changes in _variants(task, model_id(model) if model else None, optimizer)
        if all(name in settings and _same(settings[name], value) for name, value in changes.items())
    ]
    return max(met, default=(0, None), key=lambda pair: pair[0])[1]


@lru_cache(maxsize=1024)
def _variants(task: str, model: str | None, optimizer: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return tuple(
        (result.variant, result.changes)
        for result in results(task=task, model=model, optimizer=optimizer, metric="accuracy")
        if result.variant is not None and result.changes.keys() - _SEARCHED
    )


def _same(ours: Any, theirs: Any) -> bool:
    return bool((list(ours) if isinstance(ours, tuple) else ours) == theirs)


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

    def view(self) -> PaperStudyView:
        """What REST and the pages list of it: without its definition."""
        definition = self.definition
        origin = definition.task.init_from
        first = None if origin is None or isinstance(origin, str) else origin.study
        return PaperStudyView(
            name=self.name,
            study=definition.name,
            table=self.table,
            task=definition.task.name,
            model=definition.task.model,
            optimizers=[one.label for one in definition.optimizers],
            n_runs=definition.n_runs,
            after=next((name for name, other in paper_studies().items() if other.definition.name == first), None),
            notes=self.notes,
        )

    def whole_view(self) -> PaperStudyView:
        """The same with its definition."""
        return self.view().model_copy(update={"definition": self.definition.to_json()})

    def small_view(self) -> PaperStudyView:
        """The same with the definition, name and size of its small form (`smoke`)."""
        small = smoke(self.definition)
        changes = {"study": small.name, "model": small.task.model, "n_runs": small.n_runs}
        return self.view().model_copy(update={**changes, "definition": small.to_json()})


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
