"""Learning curves: the median of several with a band around it, and the time and steps to a target value.

Owns the alignment of curves that were evaluated at different steps, and what becomes of those that ended early.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from search.analysis.summary import AnalysisError, finite_or_none, is_maximize
from search.states import Direction

if TYPE_CHECKING:
    from search.records import Point

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


@dataclass(frozen=True, kw_only=True)
class TargetTimes:
    """When each of several runs first met the target; ∞ where it never did.

    Attributes:
        target: the value to reach, in the objective's unit.
        epochs, steps: epochs and optimizer steps done at the first evaluation that meets it, one a run.
        train_s: seconds of training until then, evaluation not counted, one a run.
    """

    target: float
    epochs: tuple[float, ...]
    steps: tuple[float, ...]
    train_s: tuple[float, ...]

    @property
    def n(self) -> int:
        """Runs in all."""
        return len(self.steps)

    @property
    def n_reached(self) -> int:
        """Runs that met the target."""
        return sum(math.isfinite(step) for step in self.steps)

    @property
    def median_steps(self) -> float | None:
        """∞ if at least half of the runs missed; None without runs."""
        return _median(self.steps)

    @property
    def median_train_s(self) -> float | None:
        """∞ if at least half of the runs missed; None without runs."""
        return _median(self.train_s)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: ∞ is null; `n` and `n_reached` tell it from having no runs."""
        return {
            "target": self.target,
            "n": self.n,
            "n_reached": self.n_reached,
            "epochs": [finite_or_none(value) for value in self.epochs],
            "steps": [finite_or_none(value) for value in self.steps],
            "train_s": [finite_or_none(value) for value in self.train_s],
            "median_steps": finite_or_none(self.median_steps),
            "median_train_s": finite_or_none(self.median_train_s),
        }


def time_to_target(curves: Sequence[Sequence[Point]], *, target: float, direction: Direction | str) -> TargetTimes:
    """When each run's validation first met the target.

    Args:
        curves: one a run, its evaluations in order of time. A run that failed before its first evaluation is an
            empty curve: a miss.
        target: in the objective's unit; met by `value >= target` when maximizing, `<=` when minimizing.
        direction: "maximize" or "minimize".

    Raises:
        AnalysisError: the target is not finite, or the direction is unknown.

    Nothing is interpolated: the first evaluation that meets the target is taken, as AlgoPerf does (Dahl et al.,
    "Benchmarking Neural Network Training Algorithms", 2023).
    """
    if not math.isfinite(target):
        raise AnalysisError(f"target is {target}; it must be finite")
    maximize = is_maximize(direction)
    firsts = [_first(curve, target=target if maximize else -target, sign=1 if maximize else -1) for curve in curves]
    return TargetTimes(
        target=target,
        epochs=tuple(epoch for epoch, _, _ in firsts),
        steps=tuple(step for _, step, _ in firsts),
        train_s=tuple(seconds for _, _, seconds in firsts),
    )


def _first(curve: Sequence[Point], *, target: float, sign: int) -> tuple[float, float, float]:
    train_s = 0.0
    for point in curve:
        train_s += point.cost.train_s
        if point.value is not None and math.isfinite(point.value) and sign * point.value >= target:
            return float(point.epoch), float(point.step), train_s
    return math.inf, math.inf, math.inf


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
