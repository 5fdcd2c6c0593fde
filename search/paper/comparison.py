"""The paper's tables in its own layout, with our numbers next to its numbers.

Decides which of our results goes into which cell, and which of the paper's variants (ablations, other learning rates) a
result is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from admeta.client.text import head_text, latex, markdown
from search.errors import SearchError, nearest_hint
from search.paper.setups import model_id
from search.paper.tables import PaperResult, result_tables, results

NOTHING = "–"

_Key = tuple[str, str | None, str, str, str | None]
"""Task, the paper's model, optimizer, metric and variant: equal for a cell and the result shown in it."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One of our results.

    Attributes:
        task, model, optimizer: by the product's names.
        metric: without `val_` or `test_`, as in `PaperResult`.
        mean, std: in the metric's own unit (fractions for accuracies); std None for n < 2.
        n: number of confirm runs.
        variant: the paper's name of an ablation; None for the main result.
    """

    task: str
    model: str
    optimizer: str
    metric: str
    mean: float
    std: float | None
    n: int
    variant: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell: the paper's number and ours; None if there is none."""

    paper: PaperResult | None
    ours: Measured | None


@dataclass(frozen=True, kw_only=True)
class TableComparison:
    """A table of the paper with our numbers in it: headings and cells in the paper's rows and columns."""

    name: str
    number: int
    caption: str
    columns: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]

    @property
    def n_printed(self) -> int:
        """Cells in which the paper prints a number."""
        return sum(cell.paper is not None for row in self.cells for cell in row)

    @property
    def n_ours(self) -> int:
        """Cells that have a number of ours."""
        return sum(cell.ours is not None for row in self.cells for cell in row)


def compare_table(table: str, measured: Sequence[Measured]) -> TableComparison:
    """One of the paper's result tables with our numbers next to its own.

    Args:
        table: our name of it (`search.paper.result_tables`).
        measured: our results, the most reliable first: if several fit a cell, the first is shown. `model_id` decides
            which models count as the paper's.

    Raises:
        SearchError: there is no such table.
    """
    if table not in result_tables():
        raise SearchError(f"the paper has no result table {table!r}; {nearest_hint(table, tuple(result_tables()))}")
    layout = result_tables()[table]
    ours = _by_key(measured)
    filled = {
        (paper.row_index, paper.column_index): Cell(paper=paper, ours=ours.get(_key(paper)))
        for paper in results(table=table)
    }
    empty = Cell(paper=None, ours=None)
    return TableComparison(
        name=table,
        number=layout.number,
        caption=layout.caption,
        columns=tuple(tuple(column.head) for column in layout.columns),
        rows=tuple(tuple(row.head) for row in layout.rows),
        cells=tuple(
            tuple(filled.get((i, j), empty) for j in range(len(layout.columns))) for i in range(len(layout.rows))
        ),
        notes=layout.notes,
    )


def count_ours(measured: Sequence[Measured]) -> dict[str, int]:
    """`n_ours` of each table, without building the tables."""
    ours = _by_key(measured)
    return {table: sum(_key(paper) in ours for paper in results(table=table)) for table in result_tables()}


def _by_key(measured: Sequence[Measured]) -> dict[_Key, Measured]:
    ours: dict[_Key, Measured] = {}
    for each in measured:
        ours.setdefault((each.task, model_id(each.model), each.optimizer, each.metric, each.variant), each)
    return ours


def _key(paper: PaperResult) -> _Key:
    return (paper.task, paper.model, paper.optimizer, paper.metric, paper.variant)


def cell_texts(cell: Cell) -> tuple[str, str]:
    """The texts of the paper's number and of ours, in the paper's unit; ours with its n."""
    paper = cell.paper.text if cell.paper else NOTHING
    if cell.ours is None:
        return paper, NOTHING
    scale = 1 if cell.ours.metric == "training_time" else 100
    spread = "" if cell.ours.std is None else f"±{scale * cell.ours.std:.2f}"
    return paper, f"{scale * cell.ours.mean:.2f}{spread} (n={cell.ours.n})"


def to_markdown(table: TableComparison) -> str:
    """The table as Markdown; each cell is `paper / ours`, in percent where the paper's is, ours with its n."""
    return markdown(*_head_and_rows(table))


def to_latex(table: TableComparison) -> str:
    """The table as a LaTeX tabular (needs booktabs); each cell is `paper / ours`, as in Markdown."""
    return latex(*_head_and_rows(table))


def _head_and_rows(table: TableComparison) -> tuple[list[str], list[list[str]]]:
    rows = zip(table.rows, table.cells, strict=True)
    return (
        ["", *map(head_text, table.columns)],
        [[head_text(head), *(" / ".join(cell_texts(cell)) for cell in row)] for head, row in rows],
    )


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
