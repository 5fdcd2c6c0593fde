"""Paths of a definition stay under the data folder."""

from __future__ import annotations

from pathlib import Path

from tasks.errors import DataError


def resolve_inside(root: Path, relative: str) -> Path:
    """`relative` under `root`, every link followed.

    Raises:
        DataError: the path leaves the root (through `..`, an absolute path or a link), or nothing is there.
    """
    base = root.resolve()
    path = (base / relative).resolve()
    if not path.is_relative_to(base):
        raise DataError(f"{relative!r} leads out of the data folder; move the data into it")
    if not path.exists():
        raise DataError(f"{relative!r} is not in the data folder {root}; put the data there or mend the path")
    return path
