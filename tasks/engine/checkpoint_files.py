"""The files of a run's checkpoints, by name. Needs no torch: who counts or clears them need not read them.

epoch-000012.pt    the newest: everything that an exact resume needs
best.pt            the weights of the best evaluation that was saved
"""

from __future__ import annotations

import re
from collections.abc import Iterable

BEST = "best.pt"
_EPOCH = re.compile(r"epoch-(\d{6,})\.pt")
_PART = re.compile(r"\.(?:epoch-\d{6,}|best)\.pt-.*\.tmp")  # what a process left that was killed while it wrote


def epoch_file(epoch: int) -> str:
    """The name of the checkpoint after so many epochs."""
    return f"epoch-{epoch:06d}.pt"


def epochs(names: Iterable[str]) -> list[tuple[int, str]]:
    """Of a folder's files, those to go on from, with how many epochs each had completed."""
    matches = [(_EPOCH.fullmatch(name), name) for name in names]
    return [(int(match[1]), name) for match, name in matches if match]


def best(names: Iterable[str]) -> str | None:
    """Of a folder's files, the one to start another run from: the best, or the newest where none is; or None."""
    names = list(names)
    return BEST if BEST in names else max(epochs(names), default=(0, None))[1]


def unneeded(names: Iterable[str], *, keep_best: bool) -> list[str]:
    """Of an ended run's files, those that nobody will read again; logs and files that are not ours stay."""
    found = list(names)
    gone = [name for name in found if _EPOCH.fullmatch(name) or _PART.fullmatch(name)]
    if keep_best and BEST not in found and (newest := best(found)) is not None:
        gone.remove(newest)
    return gone if keep_best or BEST not in found else [*gone, BEST]
