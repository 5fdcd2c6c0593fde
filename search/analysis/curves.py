"""Several learning curves as one: the median and a band around it.

Owns the alignment of curves that were evaluated at different steps, and what becomes of those that ended early.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from search.analysis.checks import AnalysisError

Curve = Sequence[tuple[float, float | None]]
"""(x, y) in order of x: step, epoch or seconds against a metric. A y of None, NaN or ±inf is a gap."""


class Ended(StrEnum):
    """What a curve counts for after its last point."""

    DROP = "drop"
    """Nothing: the band is over those that still run. For learning curves."""

    HOLD = "hold"
    """Its last value: for best-so-far curves, which stay what they are once the search has ended."""


@dataclass(frozen=True, kw_only=True)
class BandPoint:
    """The curves at one x: `n` of them count; low, median and high are in the unit of y."""

    x: float
    n: int
    low: float
    median: float
    high: float


def median_band(
    curves: Sequence[Curve], *, quantiles: tuple[float, float] = (0.25, 0.75), ended: Ended = Ended.DROP
) -> list[BandPoint]:
    """Median and band of several curves over the union of their x.

    Args:
        curves: one a run. Between its points a curve has the value of the last one: nothing is interpolated, since
            no model was evaluated there. Before its first finite value it does not count.
        quantiles: of the band; linear between order statistics, as numpy's default.
        ended: whether a curve counts after its last point.

    Returns:
        A point for every x at which at least one curve counts, in order of x.

    Raises:
        AnalysisError: quantiles out of order or outside [0, 1]; x of a curve that does not rise strictly.
    """
    low, high = quantiles
    if not 0 <= low <= high <= 1:
        raise AnalysisError(f"quantiles are {quantiles}; they must be in order and within [0, 1]")
    for index, curve in enumerate(curves):
        xs = [x for x, _ in curve]
        if any(not a < b for a, b in pairwise(xs)):
            raise AnalysisError(
                f"curves[{index}] has x = {xs}; x must rise strictly. Sort it, and keep one point for each x"
            )
    steps = [_Steps(curve) for curve in curves]
    band = []
    for x in sorted({x for curve in curves for x, _ in curve}):
        ys = [y for y in (step.at(x, ended=ended) for step in steps) if y is not None]
        if ys:
            bounds = np.quantile(ys, [low, 0.5, high])
            band.append(BandPoint(x=x, n=len(ys), low=float(bounds[0]), median=float(bounds[1]), high=float(bounds[2])))
    return band


class _Steps:
    """A curve as a step function; a gap keeps the value before it."""

    def __init__(self, curve: Curve) -> None:
        self._last_x = curve[-1][0] if curve else -math.inf
        points = [(x, y) for x, y in curve if y is not None and math.isfinite(y)]
        self._xs = [x for x, _ in points]
        self._ys = [y for _, y in points]

    def at(self, x: float, *, ended: Ended) -> float | None:
        if x > self._last_x and ended is Ended.DROP:
            return None
        index = bisect_right(self._xs, x)
        return self._ys[index - 1] if index else None
