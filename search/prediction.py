"""Where an optimizer's best settings lie at each size of a model, the line through them, and what it predicts.

Coordinates are what a straight line is fitted in: the logarithms of a learning rate and of the width. docs/search.md
has the coverage of the intervals in simulation (benchmarks/scaling_coverage.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special  # not stats, which takes half a second to import

from admeta.client.models import BestValueView
from search.optimizer_search import OptimizerSearch
from search.records import RunRecord
from search.scale import MIN_SIZES, Kind, Scale, at_size, fitted, range_of
from search.space import FloatParameter, Parameter, as_drawn
from search.states import Direction, RunState, Stage

Floats = NDArray[np.float64]

KEPT = 0.5
"""Share of the trials, the best ones, that a curve is fitted to: farther away the loss has another shape."""

STEP = 2.0
"""Factor between the learning rates of two neighbours among the runs that verify a prediction."""

LEAST_SCATTER = 0.1
"""Standard deviation of a best value from the line besides its error, in ln: 10 %."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best value of one parameter at one size, as a coordinate.

    Attributes:
        error: its standard error.
        n: trials that it rests on.
        is_best_trial: whether it is the best trial's value, since the trials show no minimum that is known better than
            by the range that was searched.
    """

    at: float
    error: float
    n: int
    is_best_trial: bool


@dataclass(frozen=True, kw_only=True)
class Line:
    """A straight line over size and its value at one more size, each with its interval.

    Attributes:
        excess: how much farther the optima lie from the line than their errors explain, as a ratio of standard
            deviations (Birge's); above 1 the errors were multiplied by it.
        degrees: degrees of freedom of the intervals.
    """

    slope: float
    slope_low: float
    slope_high: float
    predicted: float
    low: float
    high: float
    excess: float
    degrees: float


def optima(sizes: Sequence[tuple[Floats, Floats]], spans: Sequence[float]) -> tuple[list[list[Optimum]], int]:
    """By size and parameter, where the cost is least: the minimum of a smooth curve through the better half of trials.

    The curve is a parabola of each size and a cubic term that all sizes share, since losses rise faster above the best
    learning rate than below it. It is one curve in all parameters where the trials suffice for it, otherwise one in
    each parameter alone. The spread of costs around it is taken to be the same at all sizes.

    Args:
        sizes: of each size the coordinates of its trials, (n, parameters), and their costs, (n,), n at least 1.
        spans: widths of the searched ranges, as coordinates.

    Returns:
        The optima, and the degrees of freedom of their errors; 0 where no curve could be fitted.
    """
    n_parameters = len(spans)
    together = [tuple(range(n_parameters))]
    if n_parameters > 1 and any(_n_kept(len(cost), n_parameters) < 2 * n_parameters + 3 for _, cost in sizes):
        together = [(parameter,) for parameter in range(n_parameters)]
    found: dict[tuple[int, int], Optimum] = {}
    degrees = []
    for of in together:
        columns = [(x[:, list(of)], cost) for x, cost in sizes]
        curves = _fit_curves(columns)
        if curves is not None:
            degrees.append(curves.degrees)
        for place, (x, cost) in enumerate(columns):
            best = x[int(np.argmin(cost))]
            for i, parameter in enumerate(of):
                unknown = spans[parameter] / math.sqrt(12)  # anywhere in the range
                at_minimum = None if curves is None else _minimum(curves, place, i, x[:, i], unknown)
                found[place, parameter] = at_minimum or Optimum(
                    at=float(best[i]), error=unknown, n=len(cost), is_best_trial=True
                )
    all_found = [[found[place, parameter] for parameter in range(n_parameters)] for place in range(len(sizes))]
    return all_found, min(degrees, default=0)


def _n_kept(n: int, n_parameters: int) -> int:
    return min(n, max(math.ceil(KEPT * n), 2 * n_parameters + 3))


@dataclass(frozen=True, kw_only=True)
class _Curves:
    """A least-squares fit of all sizes.

    Attributes:
        centres: by size, the best trial, from which the curve's terms count.
        solved: by size the constant, the slopes and the curvatures at the centre; then the shared third derivatives.
        covariance: of `solved`.
    """

    centres: list[Floats]
    solved: Floats
    covariance: Floats
    degrees: int


def _fit_curves(sizes: Sequence[tuple[Floats, Floats]]) -> _Curves | None:
    """Fit to the better half of each size's trials; None where they are too few, or do not differ in a parameter.

    A third derivative is the same at every point, so that sharing it keeps the fit linear.
    """
    n_parameters = sizes[0][0].shape[1]
    each = 1 + 2 * n_parameters
    centres, rows, costs = [], [], []
    for place, (every, cost) in enumerate(sizes):
        kept = np.argsort(cost, kind="stable")[: _n_kept(len(cost), n_parameters)]
        x = every[kept]
        away = x - x[0]
        own = np.column_stack([np.ones(len(x)), away, away**2 / 2])
        if len(x) < each or np.linalg.matrix_rank(own) < each:
            return None
        block = np.zeros((len(x), each * len(sizes) + n_parameters))
        block[:, each * place : each * (place + 1)] = own
        block[:, each * len(sizes) :] = away**3 / 6
        centres.append(x[0])
        rows.append(block)
        costs.append(cost[kept] - cost[kept[0]])
    design, cost = np.concatenate(rows), np.concatenate(costs)
    spread = float(cost.max())
    if not 0 < spread < math.inf:
        return None  # equal costs, whose rounding errors would have a minimum, or some that overflow
    cost = cost / spread
    if len(sizes) == 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        design = design[:, : each * len(sizes)]  # without cubic terms, which take the trials of several sizes
    degrees = len(cost) - design.shape[1]
    if degrees < 1:
        return None
    inverse = np.linalg.pinv(design)
    solved = inverse @ cost
    residuals = cost - design @ solved
    covariance = inverse @ inverse.T * float(residuals @ residuals) / degrees
    missing = each * len(sizes) + n_parameters - len(solved)
    return _Curves(
        centres=centres,
        solved=np.pad(solved, (0, missing)),
        covariance=np.pad(covariance, (0, missing)),
        degrees=degrees,
    )


def _minimum(curves: _Curves, place: int, i: int, tried: Floats, unknown: float) -> Optimum | None:
    """A size's minimum in one parameter, with its error to first order; None where it is not known, or not tried."""
    n_parameters = len(curves.centres[0])
    begin, cubic = (1 + 2 * n_parameters) * place, len(curves.solved) - n_parameters
    places = [begin + 1 + i, begin + 1 + n_parameters + i, cubic + i]
    slope, curvature, third = (float(curves.solved[one]) for one in places)
    under_root = curvature**2 - 2 * slope * third
    if under_root <= 0:
        return None
    # The root of slope + curvature u + third u² / 2 at which the curvature is positive, without cancellation.
    root = math.sqrt(under_root)
    offset = -2 * slope / (curvature + root) if curvature + root > 0 else math.inf
    at = float(curves.centres[place][i]) + offset
    if not float(tried.min()) <= at <= float(tried.max()):
        return None
    gradient = -np.array([1.0, offset, offset**2 / 2]) / root  # root is the curvature at the minimum
    error = math.sqrt(max(0.0, float(gradient @ curves.covariance[np.ix_(places, places)] @ gradient)))
    if error >= unknown:
        return None
    return Optimum(at=at, error=error, n=len(tried), is_best_trial=False)


def fit_line(
    at: Sequence[float], found: Sequence[Optimum], *, to: float, degrees: int, least: float, confidence: float = 0.95
) -> Line | None:
    """The line through one parameter's optima, weighted by their errors, and its value at one more size.

    Every optimum, the predicted one too, is taken to lie off the line by `least` besides its error: no law of this kind
    is exact. Where they scatter more than both explain, the errors are multiplied by the ratio (Birge, 1932, as the
    Particle Data Group does), and the degrees of freedom are those of the line.

    Args:
        at: the sizes, as coordinates, of `found`.
        to: the size of the prediction.
        degrees: of the errors, as `optima` returns them.
        least: standard deviation of an optimum from the line, as a coordinate; above 0.

    Returns:
        None below three sizes.
    """
    if len(found) < MIN_SIZES:
        return None
    errors = np.array([math.hypot(one.error, least) for one in found])
    y, x = np.array([one.at for one in found]), np.array(at, dtype=np.float64)
    design = np.column_stack([np.ones(len(x)), x]) / errors[:, None]
    covariance = np.linalg.inv(design.T @ design)
    intercept, slope = covariance @ design.T @ (y / errors)
    residuals = (y - intercept - slope * x) / errors
    excess = math.sqrt(float(residuals @ residuals) / (len(found) - 2))
    own = len(found) - 2
    freedom = float(own if excess > 1 or degrees == 0 else degrees)
    scale = max(1.0, excess) * float(special.stdtrit(freedom, (1 + confidence) / 2))
    point = np.array([1.0, to])
    half = scale * math.sqrt(float(point @ covariance @ point) + least**2)
    half_slope = scale * math.sqrt(float(covariance[1, 1]))
    predicted = float(intercept + slope * to)
    return Line(
        slope=float(slope),
        slope_low=float(slope - half_slope),
        slope_high=float(slope + half_slope),
        predicted=predicted,
        low=predicted - half,
        high=predicted + half,
        excess=excess,
        degrees=freedom,
    )


@dataclass(frozen=True, kw_only=True)
class ParameterFit:
    """One parameter's best value over size: value = c · size^slope on a log scale, else value = c + slope · ln(size).

    Attributes:
        best: at each size that has a complete trial.
        slope, predicted: with their intervals; None below three sizes.
        excess: how much farther the values lie from the line than their errors explain, at least 1 where it matters.
    """

    parameter: str
    log: bool
    best: Sequence[BestValueView]
    slope: float | None = None
    slope_low: float | None = None
    slope_high: float | None = None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    excess: float | None = None


Results = Sequence[tuple[Mapping[str, Any], float]]
"""Parameters and value of a search's complete trials, in their order."""


def results_of(runs: Sequence[RunRecord]) -> Results:
    """The complete trials among a search's runs."""
    trials = sorted((run for run in runs if run.stage is Stage.SEARCH), key=lambda run: run.trial_number)
    return [(run.params, run.value) for run in trials if run.state is RunState.COMPLETE and run.value is not None]


def fits_of(
    optimizer: OptimizerSearch, scale: Scale, trials: Mapping[float, Results], direction: Direction
) -> list[ParameterFit]:
    """The best value of each parameter over size, and its prediction.

    Args:
        optimizer: as the definition lists it.
        trials: of its searches, by size; the predicted size is left out.
    """
    kinds = fitted(optimizer)
    by_size = {size: trials[size] for size in sorted(scale.values) if trials.get(size)}
    if not by_size:
        return []
    spans = _spans(optimizer)
    found, degrees = optima([_columns(kinds, of, direction) for of in by_size.values()], spans)
    return [
        _fit(name, kind, list(by_size), [of[i] for of in found], to=scale.predict, degrees=degrees, span=spans[i])
        for i, (name, kind) in enumerate(kinds.items())
    ]


def _columns(kinds: Mapping[str, Kind], trials: Results, direction: Direction) -> tuple[Floats, Floats]:
    """Coordinates and costs of trials."""
    coordinates = [[_ahead(kind, float(params[name])) for name, kind in kinds.items()] for params, _ in trials]
    return np.array(coordinates), np.array([direction.cost(value) for _, value in trials])


def _spans(optimizer: OptimizerSearch) -> list[float]:
    ends = [(kind, range_of(optimizer.space[name])) for name, kind in fitted(optimizer).items()]
    return [_ahead(kind, high) - _ahead(kind, low) for kind, (low, high) in ends]


def _fit(
    name: str, kind: Kind, sizes: Sequence[float], found: Sequence[Optimum], *, to: float,
    degrees: int, span: float,
) -> ParameterFit:  # fmt: skip
    best = [
        BestValueView(
            size=size,
            value=_back(kind, one.at),
            low=_back(kind, one.at - one.error),
            high=_back(kind, one.at + one.error),
            n_trials=one.n,
            is_best_trial=one.is_best_trial,
        )
        for size, one in zip(sizes, found, strict=True)
    ]
    least = LEAST_SCATTER if kind == "log" else LEAST_SCATTER * span
    at = [math.log(size) for size in sizes]
    line: Line | None = fit_line(at, found, to=math.log(to), degrees=degrees, least=least)
    if line is None:
        return ParameterFit(parameter=name, log=kind == "log", best=best)
    return ParameterFit(
        parameter=name,
        log=kind == "log",
        best=best,
        slope=line.slope,
        slope_low=line.slope_low,
        slope_high=line.slope_high,
        predicted=_back(kind, line.predicted),
        low=_back(kind, line.low),
        high=_back(kind, line.high),
        excess=line.excess,
    )


def _ahead(kind: Kind, value: float) -> float:
    return math.log(value) if kind == "log" else value


def _back(kind: Kind, at: float) -> float:
    return math.exp(min(at, 700.0)) if kind == "log" else at


def verifying_trials(
    scale: Scale, optimizer: OptimizerSearch, trials: Mapping[float, Results], direction: Direction
) -> list[dict[str, Any]]:
    """Parameters of the trials at the predicted size: the predicted ones first, then those around them.

    A parameter without a line has the value of the best trial at the largest size. Empty where the searches have no
    prediction (`why_not_verified`).

    Args:
        optimizer: as the definition lists it.
        trials: of its searches, by size.
    """
    fits = {one.parameter: one for one in fits_of(optimizer, scale, trials, direction)}
    largest = next((trials[size] for size in sorted(scale.values, reverse=True) if trials.get(size)), [])
    if not largest or any(one.predicted is None for one in fits.values()):
        return []
    best, _ = min(largest, key=lambda trial: direction.cost(trial[1]))
    space = at_size(optimizer, scale, scale.predict).space
    params = {
        name: _inside(space[name], fits[name].predicted) if name in fits else value for name, value in best.items()
    }
    swept = swept_parameter(optimizer)
    factors = [STEP**i for half in range(1, scale.verify // 2 + 1) for i in (-half, half)]
    around = [{**params, swept: _inside(space[swept], params[swept] * factor)} for factor in factors] if swept else []
    return [one for i, one in enumerate([params, *around]) if one not in [params, *around][:i]]


def why_not_verified(
    scale: Scale, optimizer: OptimizerSearch, trials: Mapping[float, Results], direction: Direction
) -> str | None:
    """Why trials at the predicted size would show nothing of the prediction; None where they would.

    Args:
        optimizer: as the definition lists it.
        trials: of its searches, by size.
    """
    fits = {one.parameter: one for one in fits_of(optimizer, scale, trials, direction)}
    if not fits or any(one.predicted is None for one in fits.values()):
        return f"fewer than {MIN_SIZES} sizes have a complete trial, so nothing is predicted"
    swept = swept_parameter(optimizer)
    if swept is None:
        return None
    fit, (low, high) = fits[swept], range_of(optimizer.space[swept])
    assert fit.low is not None
    assert fit.high is not None
    is_within = fit.low > 0 and math.log(fit.high) - math.log(fit.low) <= math.log(high / low)
    if is_within or not any(one.is_best_trial for one in fit.best):
        return None  # three sizes that show a minimum predict well, though their interval may be wide
    return (
        f"the predicted {swept} may be anywhere from {fit.low:.3g} to {fit.high:.3g}, which is wider than the range "
        f"that was searched, so nothing is verified; extend the study by trials, or search another range of {swept}"
    )


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What the trials at the predicted size show.

    Attributes:
        parameter: that was varied.
        results: its value and the metric of each complete trial, by value.
        predicted: its predicted value, as it was tried; None where that trial is not complete.
        best: its value where the metric is best, by a curve through the trials, or else that of the best one.
        low, high: the interval of `best`, 95 %; None where no curve could be fitted.
        ratio: `predicted` over `best`.
    """

    parameter: str
    results: Sequence[tuple[float, float]]
    predicted: float | None
    best: float
    low: float | None
    high: float | None
    ratio: float | None


def sweep_of(
    optimizer: OptimizerSearch, scale: Scale, trials: Mapping[float, Results], direction: Direction
) -> Sweep | None:
    """The sweep around the predicted settings; None where no trial of it is complete.

    The curve through its trials shares the cubic term with those of the other sizes, but not their minimum.
    """
    name, verified = swept_parameter(optimizer), trials.get(scale.predict)
    if name is None or not verified:
        return None
    kinds: dict[str, Kind] = {name: "log"}
    others = [trials[size] for size in sorted(scale.values) if trials.get(size)] if len(fitted(optimizer)) == 1 else []
    low, high = range_of(optimizer.space[name])
    found, degrees = optima([_columns(kinds, of, direction) for of in [*others, verified]], [math.log(high / low)])
    best = found[-1][0]
    first = verifying_trials(scale, optimizer, trials, direction)
    predicted = next((params[name] for params, _ in verified if first and params == first[0]), None)
    half = None if best.is_best_trial else best.error * float(special.stdtrit(degrees, 0.975))
    return Sweep(
        parameter=name,
        results=sorted((float(params[name]), value) for params, value in verified),
        predicted=predicted,
        best=math.exp(best.at),
        low=None if half is None else math.exp(best.at - half),
        high=None if half is None else math.exp(best.at + half),
        ratio=None if predicted is None else predicted / math.exp(best.at),
    )


def swept_parameter(optimizer: OptimizerSearch) -> str | None:
    """The parameter that is varied around the predicted settings: lr, or else the first on a log scale."""
    on_log_scale = [name for name, kind in fitted(optimizer).items() if kind == "log"]
    return "lr" if "lr" in on_log_scale else next(iter(on_log_scale), None)


def _inside(parameter: Parameter, value: float | None) -> float:
    """The value with four digits, so that a restarted driver finds the same one; an end of the range beyond it."""
    assert value is not None
    assert isinstance(parameter, FloatParameter)
    return float(as_drawn(parameter, min(max(float(f"{value:.4g}"), parameter.low), parameter.high)))
