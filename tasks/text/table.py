"""Rows of different lengths kept one after another: tokenised examples as plain arrays, on disk and in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class TokenTable:
    """n examples, of together t tokens.

    Attributes:
        starts: int64 (n + 1,): example i owns the tokens starts[i] … starts[i + 1].
        token_columns: by name, arrays whose first dimension is t: input_ids, token_type_ids, labels of tokens, …
        row_columns: by name, arrays whose first dimension is n: labels, scores, …
    """

    starts: NDArray[np.int64]
    token_columns: Mapping[str, Array]
    row_columns: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n_rows, n_tokens = len(self.starts) - 1, int(self.starts[-1])
        for columns, length in ((self.token_columns, n_tokens), (self.row_columns, n_rows)):
            for name, column in columns.items():
                assert len(column) == length, f"column {name!r} has {len(column)} entries, not {length}"

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example, int64 (n,)."""
        return np.diff(self.starts)


def save_table(folder: Path, name: str, table: TokenTable) -> None:
    """Write a table as .npy files `<name>.…` in an existing folder."""
    np.save(folder / f"{name}.starts.npy", table.starts)
    for kind, columns in (("token", table.token_columns), ("row", table.row_columns)):
        for column, array in columns.items():
            np.save(folder / f"{name}.{kind}.{column}.npy", array)


def load_table(folder: Path, name: str) -> TokenTable:
    """The table of that name; its arrays are mapped from the files, so processes of a node share their pages."""
    columns: dict[str, dict[str, Array]] = {"token": {}, "row": {}}
    for path in sorted(folder.glob(f"{name}.*.*.npy")):
        _, kind, column, _ = path.name.split(".")
        columns[kind][column] = _map(path)
    return TokenTable(
        starts=np.load(folder / f"{name}.starts.npy"),
        token_columns=columns["token"],
        row_columns=columns["row"],
    )


def _map(path: Path) -> Array:
    # Copy-on-write, because torch wants arrays it may write to; an empty file cannot be mapped.
    array: Array = np.load(path, mmap_mode=None if path.stat().st_size < 4096 else "c", allow_pickle=False)
    return array
