"""The console of results, and a table that never cuts off text: where columns do not fit, each row is a record.

rich crops columns that must not wrap, without any sign of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from admeta.client.text import printable

PIPE_WIDTH = 240
_GAP = 2


def console() -> Console:
    """A console on stdout; where that is not a terminal and COLUMNS is not set, wide enough for most tables."""
    plain = Console(highlight=False, markup=False, emoji=False)
    return (
        plain
        if plain.is_terminal or "COLUMNS" in os.environ
        else Console(highlight=False, markup=False, emoji=False, width=PIPE_WIDTH)
    )


class FittedTable:
    """Rows of text under named columns.

    Args:
        columns: their names.
        rows: the first rows; `add_row` adds more.
        wrapped: columns whose text may be wrapped between words; default: the last.
    """

    def __init__(self, *columns: str, rows: Iterable[Sequence[str]] = (), wrapped: Sequence[str] | None = None) -> None:
        self._columns = columns
        self._wrapped = frozenset(columns[-1:] if wrapped is None else wrapped)
        self._rows: list[tuple[str, ...]] = []
        for row in rows:
            self.add_row(*row)

    def add_row(self, *cells: str) -> None:
        """Add a row, a text for every column."""
        if len(cells) != len(self._columns):
            raise ValueError(f"{len(cells)} cells for {len(self._columns)} columns")
        self._rows.append(tuple(map(printable, cells)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        least = [self._least_width(i) for i in range(len(self._columns))]
        if sum(least) + _GAP * (len(least) - 1) <= options.max_width:
            yield self._as_table(least)
            return
        for n, row in enumerate(self._rows):
            if n:
                yield ""
            yield self._as_record(row)

    def _least_width(self, i: int) -> int:
        """The longest word of a column that wraps, the longest text of another."""
        texts = [self._columns[i], *(row[i] for row in self._rows)]
        if self._columns[i] in self._wrapped:
            texts = [word for text in texts for word in text.split()]
        return max(map(cell_len, texts), default=0)

    def _as_table(self, least: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP // 2), header_style="bold")
        for name, width in zip(self._columns, least, strict=True):
            table.add_column(name, no_wrap=name not in self._wrapped, min_width=width, overflow="fold")
        for row in self._rows:
            table.add_row(*row)
        return table

    def _as_record(self, row: Sequence[str]) -> Table:
        record = Table.grid(padding=(0, _GAP))
        record.add_column(style="bold", no_wrap=True)
        record.add_column(overflow="fold")
        for name, text in zip(self._columns, row, strict=True):
            if text:
                record.add_row(name, text)
        return record
