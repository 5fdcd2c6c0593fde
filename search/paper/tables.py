"""The paper's tables as they are kept, and every number of its result tables, found by task, model and optimizer.

Columns and rows of a table together tell what a cell is. The files are results.yaml and settings.yaml of this package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

FACTS = ("task", "model", "optimizer", "metric", "parameter", "unit", "split", "variant")
"""What a table, a row or a column may state for its cells."""

EMPTY = "-"
"""A cell that is empty or a dash in the paper."""


_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


class Part(BaseModel):
    """Base of the file's parts: no unknown fields, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Facts(Part):
    """What a table, a row or a column states for all its cells."""

    task: str | None = None
    model: str | None = None
    optimizer: str | None = None
    metric: str | None = None
    parameter: str | None = None
    unit: str | None = None
    split: str | None = None
    variant: str | None = None

    def stated(self) -> dict[str, str]:
        """Those that are given, by name."""
        return {name: value for name in FACTS if (value := getattr(self, name)) is not None}


class Column(Facts):
    """One column: its heading, one string a level, and its facts."""

    head: list[str]


class Row(Facts):
    """One row: its heading, its facts, its cells as printed, and the settings that it changes."""

    head: list[str]
    cells: str
    changes: Mapping[str, JsonValue] = Field(default_factory=dict)

    def tokens(self) -> list[str]:
        """The cells, as printed."""
        return self.cells.split()


class Table(Part):
    """One table of the paper, in its own layout.

    Attributes:
        label: its LaTeX label in the authors' source.
        number: its number, counting tables in the order of that source.
        facts: what holds for every cell.
        notes: what a reader should know of its numbers.
    """

    label: str
    number: int
    caption: str
    facts: Facts = Facts()
    columns: list[Column]
    rows: list[Row]
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        for row in self.rows:
            if len(row.tokens()) != len(self.columns):
                raise ValueError(f"row {row.head} has {len(row.tokens())} cells; there are {len(self.columns)} columns")
        return self

    def cell_facts(self, row: Row, column: Column) -> dict[str, str]:
        """All facts of one cell.

        Raises:
            ValueError: table, row and column contradict each other.
        """
        merged: dict[str, str] = {}
        for part in (self.facts, column, row):
            for name, value in part.stated().items():
                if merged.setdefault(name, value) != value:
                    raise ValueError(
                        f"cell {row.head} × {column.head} has two values of {name}: {merged[name]}, {value}"
                    )
        return merged


def read(file: str) -> Any:
    """The content of a YAML file of this package."""
    return yaml.safe_load(files("search.paper").joinpath(file).read_text(encoding="utf-8"))


def read_tables(file: str) -> Mapping[str, Table]:
    """The tables of a file of this package, by our name of each, in the file's order."""
    return MappingProxyType({name: Table.model_validate(raw) for name, raw in read(file).items()})


@dataclass(frozen=True, kw_only=True)
class PaperResult:
    """One number of the paper.

    Attributes:
        table, row, column: the cell, `table` by our name and the others by their headings.
        row_index, column_index: its place in the table, from 0, headings not counted.
        task, model, optimizer: as the product names them; a model by the paper's name (see `search.paper.model_id`).
        metric: without `val_` or `test_`, which `split` tells: accuracy, f1, mcc, …, training_time.
        split: what it was measured on: "test" or "dev" (GLUE's and SQuAD's development sets).
        value: accuracies and the like as fractions, as our tasks report them; times in seconds.
        std: ± in the unit of value; None where the paper prints none. It does not say over how many runs.
        text: the cell as printed (percent; 8h27m33s).
        variant: an ablation or another departure from the optimizer's main result; None for that.
        changes: the variant as settings, on top of the optimizer's best.
    """

    table: str
    row: tuple[str, ...]
    column: tuple[str, ...]
    row_index: int
    column_index: int
    task: str
    model: str
    optimizer: str
    metric: str
    split: str
    value: float
    std: float | None
    text: str
    variant: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=1)
def result_tables() -> Mapping[str, Table]:
    """The paper's result tables in its own layout, by our name of each, in the paper's order."""
    return read_tables("results.yaml")


@lru_cache(maxsize=1)
def _all_results() -> tuple[PaperResult, ...]:
    return tuple(
        _result(token, table=name, row=row, column=column, facts=table.cell_facts(row, column), at=(i, j))
        for name, table in result_tables().items()
        for i, row in enumerate(table.rows)
        for j, (column, token) in enumerate(zip(table.columns, row.tokens(), strict=True))
        if token != EMPTY
    )


def results(
    *,
    table: str | None = None,
    task: str | None = None,
    model: str | None = None,
    optimizer: str | None = None,
    metric: str | None = None,
) -> tuple[PaperResult, ...]:
    """The paper's numbers that match everything given, in the paper's order; an empty tuple if there are none.

    Args:
        table: our name of a table: cifar, glue, squad_ner, audio, ablation, finetune, sgd_lr.
        task, model, optimizer, metric: as in `PaperResult`.
    """
    wanted = {"table": table, "task": task, "model": model, "optimizer": optimizer, "metric": metric}
    given = {name: value for name, value in wanted.items() if value is not None}
    return tuple(r for r in _all_results() if all(getattr(r, name) == value for name, value in given.items()))


def _result(
    token: str, *, table: str, row: Row, column: Column, facts: dict[str, str], at: tuple[int, int]
) -> PaperResult:
    value, std = _parse(token, unit=facts.pop("unit"))
    return PaperResult(
        table=table,
        row=tuple(row.head),
        column=tuple(column.head),
        row_index=at[0],
        column_index=at[1],
        value=value,
        std=std,
        text=token,
        changes=row.changes,
        **facts,
    )


def _parse(token: str, *, unit: str) -> tuple[float, float | None]:
    """A printed cell as (value, std): percent to fractions, durations to seconds."""
    if unit == "duration":
        found = _DURATION.fullmatch(token)
        if not found or not token:
            raise ValueError(f"{token!r} is not a duration; it must be like 8h27m33s")
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return 3600.0 * hours + 60.0 * minutes + seconds, None
    if unit != "percent":
        raise ValueError(f"unit {unit!r} is unknown; it must be percent or duration")
    mean, _, std = token.partition("±")
    return _fraction(mean), _fraction(std) if std else None


def _fraction(percent: str) -> float:
    """94.12 → 0.9412 exactly as a literal would be, which dividing by 100 does not always give."""
    return float(f"{percent}e-2")
