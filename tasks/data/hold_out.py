"""Splits and batch orders that depend on a seed alone, never on the device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.engine.seeds import derive_seed

Rows = NDArray[np.int64]


def epoch_order(n: int, *, seed: int, epoch: int) -> Tensor:
    """A permutation of 0 … n−1 for one epoch: int64 on the CPU, a function of (n, seed, epoch)."""
    rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "order", epoch)))
    return torch.from_numpy(rng.permutation(n).astype(np.int64))


def stratified_split(labels: Rows, *, n_held_out: int, seed: int) -> tuple[Rows, Rows]:
    """Split rows in two so that every class has its share in both.

    Args:
        labels: class of each row, shape (n,).
        n_held_out: rows of the second part, 0 < n_held_out < n.
        seed: of the choice.

    Returns:
        (kept, held out), each sorted row numbers. Shares are rounded by largest remainder, so the sizes are exact.
    """
    rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "split")))
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
