"""How good the places of two parameters are: the merit of the trials around, smoothed onto a grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.states import Direction, RunState
from service.dashboard.history import History

GRID = (36, 24)
MAX_TRIALS = 4000
WIDEST, NARROWEST = 0.16, 0.05
"""Standard deviations of the kernel, as shares of either axis: of a few trials, and of many."""
LOG_RATIO = 10.0
"""Positive parameters that span this factor are drawn, and smoothed, on a log scale; as the page's script does."""
_LEAST_WEIGHT = 0.1  # of kernels at a place: below, no trial is near enough to say anything


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A parameter between the ends that its trials span."""

    name: str
    low: float
    high: float
    log: bool


@dataclass(frozen=True, kw_only=True)
class Heat:
    """A row for each of GRID[1] steps of y from low to high, a value for each of GRID[0] steps of x.

    `share` is that of complete trials that are no better, from 0 to 1, averaged around the cell; None where no trial is
    near. It is empty where a parameter is no number, or nothing is complete.
    """

    x: Axis | None
    y: Axis | None
    n_trials: int
    share: list[list[float | None]]


def heat(history: History, x: str, y: str) -> Heat:
    """The places of two parameters of a search."""
    complete = [
        i
        for i, (state, value) in enumerate(zip(history.state, history.value, strict=True))
        if state == RunState.COMPLETE and value is not None
    ]
    columns = {name: history.params.get(name, []) for name in (x, y)}
    there = [i for i in complete if all(_is_number(values[i]) for values in columns.values() if values)]
    if not there or not all(columns.values()) or len(there) < len(complete):
        return Heat(x=None, y=None, n_trials=0, share=[])
    every = [i for i in range(len(history.number)) if all(_is_number(values[i]) for values in columns.values())]
    axes = [_axis(name, [columns[name][i] for i in every]) for name in (x, y)]
    merit = _merits([history.value[i] for i in there], direction=history.direction)
    some = np.linspace(0, len(there) - 1, min(len(there), MAX_TRIALS)).round().astype(int)
    places = [_place(axis, [columns[axis.name][there[i]] for i in some]) for axis in axes]
    share = _smooth(places[0], places[1], merit[some])
    return Heat(
        x=axes[0],
        y=axes[1],
        n_trials=len(there),
        share=[[None if np.isnan(value) else round(float(value), 4) for value in row] for row in share],
    )


def rows(found: Heat) -> Iterator[Sequence[Any]]:
    """The grid as a table, with its header: the middle of each cell and its share."""
    if found.x is None or found.y is None:
        yield ("x", "y", "share")
        return
    yield (found.x.name, found.y.name, "share")
    for j, row in enumerate(found.share):
        for i, share in enumerate(row):
            if share is not None:
                yield (_value(found.x, (i + 0.5) / GRID[0]), _value(found.y, (j + 0.5) / GRID[1]), share)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _axis(name: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    return Axis(name=name, low=low, high=high, log=low > 0 and high / low >= LOG_RATIO)


def _place(axis: Axis, values: Sequence[float]) -> NDArray[np.float64]:
    """Where values lie between the ends, from 0 to 1."""
    if axis.high == axis.low:
        return np.full(len(values), 0.5)
    found, low, high = np.asarray(values, dtype=float), axis.low, axis.high
    if axis.log:
        found, low, high = np.log(found), float(np.log(low)), float(np.log(high))
    return np.asarray((found - low) / (high - low))


def _value(axis: Axis, place: float) -> float:
    value = axis.low * (axis.high / axis.low) ** place if axis.log else axis.low + place * (axis.high - axis.low)
    return float(f"{value:.5g}")


def _merits(values: Sequence[float | None], *, direction: str) -> NDArray[np.float64]:
    """For each value the share of the others that are no better; 1 where it is alone."""
    known = np.asarray(values, dtype=float) * Direction(direction).sign
    if len(known) < 2:
        return np.ones(len(known))
    return np.asarray((np.searchsorted(np.sort(known), known, side="right") - 1) / (len(known) - 1))


def _smooth(x: NDArray[np.float64], y: NDArray[np.float64], merit: NDArray[np.float64]) -> NDArray[np.float64]:
    """The kernel-weighted mean of the merits at each cell's middle (Nadaraya and Watson); NaN far from all trials."""
    width = float(np.clip(0.4 * len(merit) ** (-1 / 3), NARROWEST, WIDEST))
    near_x = _kernel((np.arange(GRID[0]) + 0.5) / GRID[0], x, width)
    near_y = _kernel((np.arange(GRID[1]) + 0.5) / GRID[1], y, width)
    weight = near_y @ near_x.T  # the kernel of two dimensions is a product
    total = (near_y * merit) @ near_x.T
    return np.where(weight > _LEAST_WEIGHT, total / np.maximum(weight, _LEAST_WEIGHT), np.nan)


def _kernel(at: NDArray[np.float64], places: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    return np.asarray(np.exp(-0.5 * ((at[:, None] - places[None, :]) / width) ** 2))
