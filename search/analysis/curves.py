"""Learning curves: the median of several with a band around it, and the time and steps to a target value.

Owns the alignment of curves that were evaluated at different steps, and what becomes of those that ended early. Also
the curve of results over a parameter: where it is nearly as good as at its best.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from admeta.client.models.base import finite_or_none
from search.analysis.summary import AnalysisError
from search.states import Direction

if TYPE_CHECKING:
    from search.records import Point

Curve = Sequence[tuple[float, float | None]]
"""(x, y) in order of x: step, epoch or seconds against a metric. A y of None, NaN or ±inf is a gap."""


@dataclass(frozen=True, kw_only=True)
class BandPoint:
    """The curves at one x: `n` of them count; low, median and high are in the unit of y."""

    x: float
    n: int
    low: float
    median: float
    high: float


def median_band(curves: Sequence[Curve], *, at: Sequence[float] | None = None) -> list[BandPoint]:
    """Median and quartiles of several curves.

    Args:
        curves: one a run. Between its points a curve has the value of the last one: nothing is interpolated, since
            no model was evaluated there. Before its first finite value and after its last point it does not count. Of
            points at the same x, such as epochs that took no measurable time, the last counts.
        at: x of the band, in order; None: all x of the curves. Quartiles are linear between order statistics, as
            numpy's default.

    Returns:
        A point for every x at which at least one curve counts, in order of x.

    Raises:
        AnalysisError: x of a curve that falls.
    """
    for index, curve in enumerate(curves):
        xs = [x for x, _ in curve]
        if any(not a <= b for a, b in pairwise(xs)):
            raise AnalysisError(f"curves[{index}] has x = {xs}; x must not fall. Sort it")
    steps = [_Steps(curve) for curve in curves]
    band = []
    for x in sorted({x for curve in curves for x, _ in curve}) if at is None else at:
        ys = [y for y in (step.at(x) for step in steps) if y is not None]
        if ys:
            low, median, high = map(float, np.quantile(ys, [0.25, 0.5, 0.75]))
            band.append(BandPoint(x=x, n=len(ys), low=low, median=median, high=high))
    return band


class _Steps:
    """A curve as a step function; a gap keeps the value before it."""

    def __init__(self, curve: Curve) -> None:
        self._last_x = curve[-1][0] if curve else -math.inf
        points = [(x, y) for x, y in curve if y is not None and math.isfinite(y)]
        self._xs = [x for x, _ in points]
        self._ys = [y for _, y in points]

    def at(self, x: float) -> float | None:
        if x > self._last_x:
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


def time_to_target(curves: Sequence[Sequence[Point]], *, target: float, direction: Direction) -> TargetTimes:
    """When each run's validation first met the target.

    Args:
        curves: one a run, its evaluations in order of time. A run that failed before its first evaluation is an
            empty curve: a miss.
        target: in the objective's unit; met by `value >= target` when maximizing, `<=` when minimizing.
        direction: which values are better.

    Raises:
        AnalysisError: the target is not finite.

    Nothing is interpolated: the first evaluation that meets the target is taken, as AlgoPerf does (Dahl et al.,
    "Benchmarking Neural Network Training Algorithms", 2023).
    """
    if not math.isfinite(target):
        raise AnalysisError(f"target is {target}; it must be finite")
    firsts = [_first(curve, target=target, direction=direction) for curve in curves]
    return TargetTimes(
        target=target,
        epochs=tuple(epoch for epoch, _, _ in firsts),
        steps=tuple(step for _, step, _ in firsts),
        train_s=tuple(seconds for _, _, seconds in firsts),
    )


def _first(curve: Sequence[Point], *, target: float, direction: Direction) -> tuple[float, float, float]:
    train_s = 0.0
    for point in curve:
        train_s += point.cost.train_s
        if point.value is not None and math.isfinite(point.value) and direction.reaches(point.value, target):
            return float(point.epoch), float(point.step), train_s
    return math.inf, math.inf, math.inf


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


@dataclass(frozen=True, kw_only=True)
class Edge:
    """One end of a range of a parameter.

    Attributes:
        at: the estimate; the last value that was measured where `is_open`.
        is_open: the results are still good there: the range may go on.
        inner, outer: the end lies between them: surely within the range, and surely outside; an outer of None: no value
            that was measured is. Both None where the spread between seeds is not known.
    """

    at: float
    is_open: bool
    inner: float | None
    outer: float | None


@dataclass(frozen=True, kw_only=True)
class GoodRange:
    """Where a parameter's results are within a tolerance of the best, in a curve over that parameter.

    Attributes:
        best: of the curve, in the metric's unit.
        best_at: the parameter's value there.
        tolerance: in the metric's unit.
        low, high: the ends of the range.
        deviation: mean of what is lost against the best over all values that were measured, in the metric's unit; 0 is
            best (the learning rate sensitivity of Wortsman et al., 2023). None where runs diverged and no result is
            known that is worse than the best.
    """

    best: float
    best_at: float
    tolerance: float
    low: Edge
    high: Edge
    deviation: float | None


_STEPS = 400
_CAPPED_AT = 6.0
_SURE = 2.0
_LARGEST = 1e100
"""Results beyond it count as divergences: what is computed from them would overflow."""


def good_range(
    points: Sequence[tuple[float, Sequence[float | None]]],
    *,
    direction: Direction,
    within: float,
    margin: float | None = None,
    log: bool = True,
    std: float | None = None,
    worst: float | None = None,
) -> GoodRange | None:
    """The range of a parameter in which results are nearly as good as at its best.

    Between the values that were measured, the curve is interpolated by monotone cubic pieces, over the logarithm of the
    parameter with `log`. Where the spread is known, a spline first smooths the results by as much as the spread
    explains: of noisy points, the best would look better than it is, and the range narrower. A divergence is worse than
    any tolerance; the range ends in the middle between it and the point beside it.

    The ends of an `Edge` need no interpolation: a point is surely within where it is by more than two standard errors,
    and surely outside likewise. `python -m benchmarks.sensitivity` measures the errors of all this.

    Args:
        points: value of the parameter, and the results of the runs there; None for one that diverged, which makes the
            point diverged.
        within: the tolerance as a share of the best result's absolute value.
        margin: the tolerance in the metric's unit, instead.
        std: of a run between seeds, in the metric's unit; None: not known.
        worst: what a divergence counts as in `deviation`; at least as bad as the worst point.

    Returns:
        None where fewer than three values were measured, or all diverged.
    """
    points = _with_distance((point for point in points if point[1]), log=log)
    x = np.array([value for value, _ in points])
    std = std if std is None or std <= _LARGEST else None
    cost = np.array([_mean_cost(runs, direction) for _, runs in points])
    error = (std or 0.0) / np.sqrt([len(runs) for _, runs in points])
    if len(points) < 3 or not np.isfinite(cost).any():
        return None
    first, last = _finite_around(cost, int(np.argmin(cost)))
    inside = slice(first, last + 1)
    slack = within * abs(float(cost.min())) if margin is None else margin
    smooth = _smoothed(x[inside], cost[inside], error[inside], cap=_CAPPED_AT * slack)
    if last > first:
        from scipy.interpolate import PchipInterpolator  # takes half a second to import

        grid = np.linspace(x[first], x[last], _STEPS)
        curve = PchipInterpolator(x[inside], smooth)(grid)
    else:
        grid, curve = x[inside], smooth
    place = int(np.argmin(curve))
    best = float(curve[place])
    tolerance = within * abs(best) if margin is None else margin
    start = first + int(np.argmin(smooth))
    sure = None if std is None else (cost - best - tolerance, _SURE * error)
    edges = [
        _edge(x, grid, curve - best - tolerance, place, start=start, block=block, step=step, sure=sure, log=log)
        for step, block in ((-1, first), (1, last))
    ]
    to_value = math.exp if log else float
    ceiling = None if worst is None or abs(worst) > _LARGEST else direction.cost(worst)
    return GoodRange(
        best=direction.cost(best),
        best_at=to_value(grid[place]),
        tolerance=tolerance,
        low=edges[0],
        high=edges[1],
        deviation=_mean_loss(x, cost, grid, curve, worst=ceiling),
    )


def _with_distance(
    points: Iterable[tuple[float, Sequence[float | None]]], *, log: bool
) -> list[tuple[float, Sequence[float | None]]]:
    """The points by place on the axis, in order; those at values too near to one another to tell apart are one."""
    found: dict[float, list[float | None]] = {}
    for value, runs in sorted(points, key=lambda point: point[0]):
        found.setdefault(math.log(value) if log else float(value), []).extend(runs)
    return list(found.items())


def _mean_cost(runs: Sequence[float | None], direction: Direction) -> float:
    finished = [value for value in runs if value is not None and abs(value) <= _LARGEST]
    return direction.cost(statistics.fmean(finished)) if len(finished) == len(runs) else math.inf


def _finite_around(cost: NDArray[np.float64], start: int) -> tuple[int, int]:
    """First and last of the points around this one that did not diverge."""
    first = last = start
    while first > 0 and np.isfinite(cost[first - 1]):
        first -= 1
    while last + 1 < len(cost) and np.isfinite(cost[last + 1]):
        last += 1
    return first, last


def _smoothed(
    x: NDArray[np.float64], cost: NDArray[np.float64], error: NDArray[np.float64], *, cap: float
) -> NDArray[np.float64]:
    """The costs with as much taken out as their errors explain; costs far from the best stay as they are."""
    if len(x) < 4 or not error.all():
        return cost
    from scipy.interpolate import splev, splrep

    capped = np.minimum(cost, cost.min() + cap)
    spline, *_ = splrep(x, capped, w=1 / error, s=len(x), full_output=True, quiet=True)  # without warnings
    return np.asarray(splev(x, spline) + cost - capped)


def _edge(
    x: NDArray[np.float64],
    grid: NDArray[np.float64],
    over: NDArray[np.float64],
    place: int,
    *,
    start: int,
    block: int,
    step: int,
    sure: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
    log: bool,
) -> Edge:
    """The end of the range on one side.

    Args:
        over: by how much the curve is over the limit.
        start, block: the point nearest to the best, and the last one on this side before a divergence.
        step: -1 for the lower end, 1 for the upper one.
        sure: by how much each point is over the limit, and what it must exceed to be sure.
    """
    outside = np.flatnonzero(over[place::step] > 0)
    beyond = block + step
    is_open = False
    if len(outside):
        k = place + step * int(outside[0])
        share = over[k] / (over[k] - over[k - step])
        at = grid[k] - share * (grid[k] - grid[k - step])
    elif 0 <= beyond < len(x):
        at = (x[block] + x[beyond]) / 2
    else:
        at, is_open = x[block], True
    inner = outer = None
    if sure is not None:
        excess, sureness = sure
        i = start
        while 0 <= i + step < len(x) and excess[i + step] + sureness[i + step] <= 0:
            i += step
        inner, i = x[i], i + step
        while 0 <= i < len(x) and excess[i] - sureness[i] <= 0:
            i += step
        outer = x[i] if 0 <= i < len(x) else None
    to_value = math.exp if log else float
    return Edge(
        at=to_value(at),
        is_open=is_open,
        inner=None if inner is None else to_value(inner),
        outer=None if outer is None else to_value(outer),
    )


def _mean_loss(
    x: NDArray[np.float64],
    cost: NDArray[np.float64],
    grid: NDArray[np.float64],
    curve: NDArray[np.float64],
    *,
    worst: float | None,
) -> float | None:
    """Mean distance from the best over the measured range; divergences count as the worst from their middle on."""
    best, finite = float(curve.min()), cost[np.isfinite(cost)]
    ceiling = max(float(finite.max()), best if worst is None else worst)
    if len(finite) < len(cost) and ceiling <= best:
        return None
    everywhere = np.linspace(x[0], x[-1], _STEPS)
    known = np.interp(everywhere, grid, np.minimum(curve, ceiling))
    nearest = cost[np.abs(everywhere[:, None] - x[None, :]).argmin(axis=1)]
    known = np.where(np.isfinite(nearest), known, ceiling)
    return float(np.mean(known - best))
