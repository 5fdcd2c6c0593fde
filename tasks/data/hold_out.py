"""Rows of a training set that are held out for validation (or a test); a function of the labels and a seed alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.engine.seeds import random_stream
from tasks.errors import DataError

Rows = NDArray[np.int64]


def stratified_split(labels: Rows, *, n_held_out: int, seed: int) -> tuple[Rows, Rows]:
    """Split rows in two so that every class has its share in both.

    Args:
        labels: class of each row, shape (n,).
        n_held_out: rows of the second part, 0 < n_held_out < n.
        seed: of the choice.

    Returns:
        (kept, held out), each sorted row numbers. Shares are rounded by largest remainder, so the sizes are exact.
    """
    rng = random_stream(seed, "split")
    classes, counts = np.unique(labels, return_counts=True)
    exact = counts * (n_held_out / len(labels))
    take = np.floor(exact).astype(np.int64)
    for index in np.argsort(take - exact, kind="stable")[: n_held_out - int(take.sum())]:
        take[index] += 1
    parts = []
    for klass, n in zip(classes, take, strict=True):
        rows = np.flatnonzero(labels == klass)
        parts.append(rng.permutation(rows)[:n])
    held_out = np.sort(np.concatenate(parts)).astype(np.int64)
    kept = np.setdiff1d(np.arange(len(labels), dtype=np.int64), held_out)
    return kept, held_out


def hold_out(
    labels: Rows,
    *,
    fraction: float,
    seed: int,
    what: str,
    classes: Sequence[str] = (),
    field: str = "val_fraction",
    purpose: str = "validation",
    may_lack_classes: Sequence[str] = (),
) -> tuple[Rows, Rows]:
    """`stratified_split` by a fraction, refused where a part would be empty or lack a class.

    Args:
        labels: number of each row's class, (n,); all equal where there are no classes.
        what: what a row is, in the singular, for messages: "training image".
        classes: names of the classes, in order of their numbers; empty: no class is looked for.
        field: name of the fraction in the configuration.
        purpose: what is held out: "validation", "test".
        may_lack_classes: the parts ("training", or `purpose`) that need not hold every class.

    Returns:
        (kept, held out), each sorted row numbers.

    Raises:
        DataError: a part would be empty, or lack a class that it must have.
    """
    n, n_held_out = len(labels), round(fraction * len(labels))
    if not 0 < n_held_out < n:
        raise DataError(
            f"{field} {fraction} of {n} {what}s gives {n_held_out} for {purpose} and {n - n_held_out} for training; "
            f"both need at least one: add {what}s or change {field}"
        )
    kept, held_out = stratified_split(labels, n_held_out=n_held_out, seed=seed)
    for rows, part, change in ((held_out, purpose, "raise"), (kept, "training", "lower")):
        counts = np.bincount(labels[rows], minlength=len(classes))
        if classes and part not in may_lack_classes and counts.min() == 0:
            klass = int(counts.argmin())
            raise DataError(
                f"class {classes[klass]!r} has {int((labels == klass).sum())} {what}(s), too few to be in {part} at "
                f"{field} {fraction}; add {what}s of it (two or more), or {change} {field}"
            )
    return kept, held_out


def hold_out_groups(groups: Rows, *, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Hold out whole groups of rows, about `fraction` of the rows together.

    Args:
        groups: number of each row's group, (n,), of at least two groups.

    Returns:
        (kept, held out), each sorted row numbers; neither is empty.
    """
    names, counts = np.unique(groups, return_counts=True)
    order = random_stream(seed, "split").permutation(len(names))
    n_groups = int(np.abs(np.cumsum(counts[order]) - fraction * len(groups)).argmin()) + 1
    chosen = np.isin(groups, names[order[: min(n_groups, len(names) - 1)]])
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)
