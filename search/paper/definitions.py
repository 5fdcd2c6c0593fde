"""The paper's tables as studies: the files of studies/paper, which the package holds too.

Owns finding and reading them. `search/paper/studies` is a link to that folder in a checkout and a copy of it in an
installed package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

import yaml

from search.definition import StudyDefinition
from search.errors import SearchError, nearest_hint
from search.paper.results import result_tables


@dataclass(frozen=True, kw_only=True)
class PaperStudy:
    """One of them.

    Attributes:
        name: its file's, without .yaml; the study itself is called paper-<name>.
        table: our name of the table whose cells it fills.
        notes: what it departs in from the paper, and other things to know: the head of its file.
    """

    name: str
    table: str
    notes: str
    definition: StudyDefinition


@lru_cache(maxsize=1)
def paper_studies() -> Mapping[str, PaperStudy]:
    """All of them by name, in the order of the paper's tables; one that starts from another's trial comes after it.

    Raises:
        SearchError: this installation has none.
    """
    folder = files("search.paper").joinpath("studies")
    texts = (
        {path.name.removesuffix(".yaml"): path.read_text(encoding="utf-8") for path in folder.iterdir()}
        if folder.is_dir()
        else {}
    )
    if not texts:
        raise SearchError(
            f"{folder} holds no study; a checkout has it as a link to studies/paper (git config core.symlinks true)"
        )
    order = {name: i for i, name in enumerate(result_tables())}
    found = [_read(name, text) for name, text in sorted(texts.items())]
    found.sort(key=lambda study: (order[study.table], study.definition.task.init_from is not None))
    return MappingProxyType({study.name: study for study in found})


def paper_study(name: str) -> PaperStudy:
    """The one of that name.

    Raises:
        SearchError: there is none.
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
