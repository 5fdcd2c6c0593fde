"""The paper's own tables with our results beside its numbers, as a page shows them, and as CSV.

Owns the arrangement. What the paper prints, and which of our models counts as its, is `search.paper`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

import search.paper
from search.paper import Measured, PaperResult, TableBeside
from service.dashboard.matrix import Entry, entry
from service.database.queries.standings import Standing
from service.paper_comparison import measured


@dataclass(frozen=True, kw_only=True)
class PaperCell:
    """A cell of the paper's: its number and ours as text, and ours minus its in the paper's unit."""

    paper: str
    ours: str | None
    difference: float | None
    entry: Entry | None


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper for a page. `spans` are the upper headings with their widths; None where there is one level.

    Rows are (headings with the rows each spans, 0 where it goes on from above; cells). `ours` tells the columns in
    which something was measured: those are two wide.
    """

    beside: TableBeside
    spans: list[tuple[str, int]] | None
    heads: list[str]
    ours: list[bool]
    rows: list[tuple[list[tuple[str, int]], list[PaperCell]]]


def paper_tables(found: Sequence[Standing]) -> list[PaperTable]:
    """All the paper's result tables, with our test results in them."""
    return [paper_table(name, found) for name in search.paper.result_tables()]


def paper_table(name: str, found: Sequence[Standing]) -> PaperTable:
    """One of them; the paper's numbers are of test sets (GLUE, SQuAD: development sets), so ours are too."""
    origin: dict[int, Standing] = {}
    table = search.paper.beside(name, measured(found, origin))
    cells = [
        [_paper_cell(cell, origin, place=f"{name}-{i}-{j}") for j, cell in enumerate(row)]
        for i, row in enumerate(table.cells)
    ]
    two_levels = any(len(column) > 1 for column in table.columns)
    ours = [any(row[j].ours for row in cells) for j in range(len(table.columns))]
    spans = [
        (head, sum(2 if ours[j] else 1 for j, _ in group))
        for head, group in groupby(enumerate(table.columns), key=lambda pair: pair[1][0])
    ]
    return PaperTable(
        beside=table,
        spans=spans if two_levels else None,
        heads=[column[-1] for column in table.columns],
        ours=ours,
        rows=list(zip(_row_heads(table.rows), cells, strict=True)),
    )


def _row_heads(rows: Sequence[tuple[str, ...]]) -> list[list[tuple[str, int]]]:
    heads: list[list[tuple[str, int]]] = []
    for i, row in enumerate(rows):
        if len(row) == 1:
            heads.append([(row[0], 1)])
            continue
        goes_on = i > 0 and rows[i - 1][0] == row[0]
        same = len(list(takewhile(lambda other: other[0] == row[0], rows[i:])))  # noqa: B023  (used at once)
        heads.append([(row[0], 0 if goes_on else same), (" ".join(row[1:]), 1)])
    return heads


def _paper_cell(cell: search.paper.Cell, origin: dict[int, Standing], *, place: str) -> PaperCell:
    paper, ours = search.paper.texts(cell)
    if cell.ours is None:
        return PaperCell(paper=paper, ours=None, difference=None, entry=None)
    return PaperCell(
        paper=paper,
        ours=ours,
        difference=_difference(cell.paper, cell.ours),
        entry=entry(origin[id(cell.ours)], place=place),
    )


def _difference(paper: PaperResult | None, ours: Measured) -> float | None:
    if paper is None:
        return None
    return (1.0 if ours.metric == "training_time" else 100.0) * (ours.mean - paper.value)


def paper_rows(table: TableBeside) -> Iterator[Sequence[Any]]:
    """A table of the paper as rows of cells, with a header; numbers in our unit: fractions and seconds."""
    yield ("row", "column", "paper", "paper_std", "ours", "ours_std", "ours_n")
    for head, row in zip(table.rows, table.cells, strict=True):
        for column, cell in zip(table.columns, row, strict=True):
            paper, ours = cell.paper, cell.ours
            yield (
                " ".join(head), " ".join(filter(None, column)), paper and paper.value, paper and paper.std,
                ours and ours.mean, ours and ours.std, ours and ours.n,
            )  # fmt: skip
