"""The form in which the paper's tables are kept: columns and rows that together tell what a cell is.

Owns the format, its checks and the reading of a file. Does not own what is in the files: results.yaml
(search.paper.results) and settings.yaml (search.paper.settings).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

FACTS = ("task", "model", "optimizer", "metric", "parameter", "unit", "split", "variant")
"""What a table, a row or a column may say of its cells."""

EMPTY = "-"
"""A cell in which the paper prints nothing, or a dash."""


class Part(BaseModel):
    """Base of the file's parts: no unknown fields, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Facts(Part):
    """What is said of all cells of a table, a row or a column."""

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
        """Everything known of one cell.

        Raises:
            ValueError: table, row and column say different things.
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
