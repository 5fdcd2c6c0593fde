"""The best results of all studies, arranged: tasks by optimizers, as a page's table, CSV and LaTeX.

Which result is the best is decided by `service.database.queries.standings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from admeta.client import text_tables
from admeta.client.terminal import tables
from admeta.registry import known_optimizers
from search.states import Direction
from service.dashboard.python_code import as_python
from service.database.queries.standings import Standing

_PAPERS_ORDER = ("sgd", "sgdm", "admetas", "adam", "adamw", "radam", "ranger", "adabelief", "admetar")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A result in a cell, with what its details show. `id` is the details' own within the page."""

    id: str
    standing: Standing
    code: str
    leads: bool


@dataclass(frozen=True, kw_only=True)
class MatrixRow:
    """One task and model; a cell an optimizer, None where nothing was measured."""

    task: str
    model: str | None
    metric: str
    direction: str
    cells: list[Entry | None]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Tasks by optimizers."""

    optimizers: list[str]
    rows: list[MatrixRow]


def matrix(found: Sequence[Standing]) -> Matrix:
    """The main results; variants that the paper calls ablations are in its table of them."""
    main = [one for one in found if one.variant is None]
    names = {one.best.optimizer for one in main}
    order = [*_PAPERS_ORDER, *known_optimizers()]
    optimizers = sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))
    rows: list[MatrixRow] = []
    for (task, model, metric, direction), group in groupby(main, key=_row_key):
        by_name = {one.best.optimizer: one for one in group}
        cells = [entry(by_name.get(name), place=f"m{len(rows)}-{j}") for j, name in enumerate(optimizers)]
        rows.append(MatrixRow(task=task, model=model, metric=metric, direction=direction, cells=_led(cells, direction)))
    return Matrix(optimizers=optimizers, rows=rows)


def _row_key(one: Standing) -> tuple[str, str | None, str, str]:
    return one.best.task, one.best.model, one.best.metric, one.best.direction


def entry(standing: Standing | None, *, place: str) -> Entry | None:
    """A cell of the result; `place` is its own within the page."""
    if standing is None:
        return None
    code = as_python(standing.best.optimizer, standing.best.settings)
    return Entry(id=f"cell-{place}", standing=standing, code=code, leads=False)


def _led(cells: list[Entry | None], direction: str) -> list[Entry | None]:
    """The cells, the best of at least two marked; confirmed results compete with one another alone where there are."""
    there = [cell for cell in cells if cell is not None]
    confirmed = [cell for cell in there if cell.standing.best.evidence == "confirmed"]
    values = {cell.id: value for cell in confirmed or there if (value := shown_value(cell.standing)) is not None}
    if len(there) < 2 or not values:
        return cells
    best = Direction(direction).best(values.values())
    return [
        cell and Entry(id=cell.id, standing=cell.standing, code=cell.code, leads=values.get(cell.id) == best)
        for cell in cells
    ]


def shown_value(standing: Standing) -> float | None:
    """Validation: the mean over the confirm seeds, or what the search saw."""
    mean = standing.best.validation.mean
    return standing.best.search_value if mean is None else mean


def rows(found: Sequence[Standing]) -> Iterator[Sequence[Any]]:
    """All results as a table, with its header."""
    yield (
        "task", "model", "metric", "direction", "optimizer", "variant", "evidence", "validation", "validation_std",
        "n", "test", "test_std", "study", "label", "trial", "settings",
    )  # fmt: skip
    for one in found:
        best = one.best
        yield (
            best.task, best.model, best.metric, best.direction, best.optimizer, one.variant, best.evidence,
            shown_value(one), best.validation.std, best.validation.n, best.test.mean, best.test.std, best.study,
            best.label, best.trial, tables.settings(best.settings),
        )  # fmt: skip


def to_latex(table: Matrix) -> str:
    """The matrix as a booktabs table: validation mean ± standard deviation, the best of a row in bold."""
    return text_tables.latex(
        ["task", *table.optimizers],
        [[f"{row.task} {row.model or ''} {row.metric}", *map(_cell_text, row.cells)] for row in table.rows],
        bold={(i, j) for i, row in enumerate(table.rows) for j, cell in enumerate(row.cells, 1) if cell and cell.leads},
    )


def _cell_text(cell: Entry | None) -> str:
    value = None if cell is None else shown_value(cell.standing)
    if cell is None or value is None:
        return "–"
    std = cell.standing.best.validation.std
    return f"{value:.4f}" if std is None else f"{value:.4f} ± {std:.4f}"
