"""What the plots draw, as JSON or CSV at the address of each plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Query, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from pydantic import Field

from admeta.client.models.base import finite_or_none
from search.states import Direction, RunState
from service.api.requests import Database, Filters
from service.api.results import ParetoFilters
from service.dashboard.pages import as_csv
from service.dashboard.study_pages import find_search
from service.database import queries
from service.database.queries import AttemptSpan, Axis, Curves, History, RunChoice

router = APIRouter(prefix="/studies/{study}", include_in_schema=False)
Form = Literal["json", "csv"]


class CurveFilters(Filters):
    """Which curves."""

    runs: RunChoice = RunChoice.BEST
    axis: Axis = Axis.EPOCH
    metric: str | None = Field(default=None, max_length=100)


@router.get("/curves.{form}")
def get_curves(engine: Database, study: str, form: Form, filters: Annotated[CurveFilters, Query()]) -> Response:
    """Median and quartiles of the optimizers' learning curves."""
    view = queries.get_study_view(engine, study)
    comparison = queries.comparison(engine, view.id)
    found = queries.study_curves(engine, view, comparison, **filters.model_dump())
    return as_csv(curve_rows(found), name=f"{view.name}-curves") if form == "csv" else JSONResponse(asdict(found))


MAX_BARS = 3000


@router.get("/timeline.{form}")
def get_timeline(engine: Database, study: str, form: Form) -> Response:
    """When each attempt of a run trained, and on which worker; as JSON the latest MAX_BARS of them."""
    view = queries.get_study_view(engine, study)
    spans = queries.attempt_spans(engine, view.id, limit=None if form == "csv" else MAX_BARS)
    names = [field.name for field in fields(AttemptSpan)]
    if form == "csv":
        rows = ([getattr(span, name) for name in names] for span in spans)
        return as_csv([names, *rows], name=f"{view.name}-timeline")
    found = [{**asdict(span), "lane": lane} for span, lane in zip(spans, lanes(spans), strict=True)]
    return JSONResponse(jsonable_encoder({"now": datetime.now(UTC), "attempts": found}))


def lanes(spans: Sequence[AttemptSpan]) -> list[int]:
    """For each attempt the first lane of its worker, from 0, that is free when it starts.

    Args:
        spans: in order of their start; a worker is a node and a device.
    """
    ends: dict[tuple[str | None, str | None], list[datetime]] = defaultdict(list)
    found = []
    for span in spans:
        of_worker = ends[span.node, span.device]
        lane = next((i for i, end in enumerate(of_worker) if end <= span.started_at), len(of_worker))
        of_worker[lane : lane + 1] = [span.finished_at or datetime.max.replace(tzinfo=UTC)]
        found.append(lane)
    return found


@router.get("/expected.csv")
def get_expected(engine: Database, study: str) -> Response:
    """Best of 1, 2, … trials by optimizer: the median with its band, and the expected value."""
    view = queries.comparison(engine, study)
    table: list[Sequence[Any]] = [("label", "trials", "median", "low", "high", "expected_best")]
    for row in view.optimizers or view.rows:
        of = row.best_of_n
        found = zip_longest(of.median, of.low, of.high, row.expected_best)
        table += [(row.label, n, *values) for n, values in enumerate(found, start=1)]
    return as_csv(table, name=f"{view.study}-expected-best")


@router.get("/sensitivity.csv")
def get_sensitivity(engine: Database, study: str) -> Response:
    """The result at each value of the parameter, by search."""
    view = queries.sensitivity(engine, study)
    table: list[Sequence[Any]] = [("label", view.parameter, "mean", "std", "n", "n_diverged", "chosen")]
    for curve in view.curves:
        table += [(curve.label, *dict(point).values(), point.value == curve.chosen) for point in curve.points]
    return as_csv(table, name=f"{view.study}-sensitivity")


@router.get("/pareto.{form}")
def get_pareto(engine: Database, study: str, form: Form, filters: Annotated[ParetoFilters, Query()]) -> Response:
    """The complete trials by the study's metric and other objectives, and which are on a front."""
    view = queries.pareto(engine, study, objectives=filters.objective)
    if form == "json":
        return JSONResponse(view.model_dump(mode="json"))
    names = [one.metric for one in view.objectives]
    table: list[Sequence[Any]] = [("optimizer", "label", "trial", *names, "on_front", "on_front_of_all")]
    for of in view.fronts:
        table += [(of.label, one.label, one.trial, *one.values, one.on_front, one.leads) for one in of.trials]
    return as_csv(table, name=f"{view.study}-pareto")


@router.get("/scale.csv")
def get_scale(engine: Database, study: str) -> Response:
    """The best value of each parameter at each size, then the predicted one and where it was found to be best."""
    view = queries.scale(engine, study)
    rows: list[Sequence[Any]] = [("label", "parameter", view.field, "what", "value", "low", "high")]
    for curve in view.curves:
        for fit in curve.fits:
            rows += [(curve.label, fit.parameter, one.size, "best", one.value, one.low, one.high) for one in fit.best]
            rows.append((curve.label, fit.parameter, view.predict, "predicted", fit.predicted, fit.low, fit.high))
        if (sweep := curve.sweep) is not None:
            rows.append((curve.label, sweep.parameter, view.predict, "found", sweep.best, sweep.low, sweep.high))
    return as_csv(rows, name=f"{view.study}-scale")


@router.get("/searches/{label}/history.{form}")
def get_history(engine: Database, study: str, label: str, form: Form) -> Response:
    """The trials of one search."""
    view, search = find_search(engine, study, label)
    found = queries.search_history(engine, view, search.label)
    return as_csv(_history_rows(found), name=f"{view.name}-{label}") if form == "csv" else JSONResponse(asdict(found))


class HeatmapFilters(Filters):
    """Which two parameters."""

    x: str = Field(default="lr", max_length=100)
    y: str = Field(default="lambd", max_length=100)


@router.get("/searches/{label}/heatmap.{form}")
def get_heatmap(
    engine: Database, study: str, label: str, form: Form, filters: Annotated[HeatmapFilters, Query()]
) -> Response:
    """The merit of the complete trials over two parameters, smoothed onto a grid."""
    view, search = find_search(engine, study, label)
    found = heatmap(queries.search_history(engine, view, search.label), filters.x, filters.y)
    if form == "csv":
        return as_csv(_heatmap_rows(found), name=f"{view.name}-{label}-heatmap")
    return JSONResponse(asdict(found))


@router.get("/trials/{label}/{number}/runs.{form}")
def get_runs(
    engine: Database, study: str, label: str, number: Annotated[int, Path(ge=0, lt=2**31)], form: Form
) -> Response:
    """The curves of a trial's runs, by epoch, in every metric."""
    trial = queries.get_trial(engine, study, label, number)
    points = queries.get_curves(engine, [run.id for run in trial.runs])
    if form == "csv":
        names = sorted({name for found in points.values() for point in found for name in point.metrics})
        table: list[Sequence[Any]] = [("stage", "seed", "epoch", "step", "lr", "value", *names)]
        for run in trial.runs:
            for p in points[run.id]:
                metrics = (p.metrics.get(name) for name in names)
                table.append((run.stage, run.seed, p.epoch, p.step, p.lr, p.value, *metrics))
        return as_csv(table, name=f"{study}-{label}-{number}")
    return JSONResponse(
        [
            {
                "name": f"{run.stage}, seed {run.seed}",
                "epoch": [p.epoch for p in points[run.id]],
                "value": [finite_or_none(p.value) for p in points[run.id]],
                "metrics": {
                    name: [p.metrics.get(name) for p in points[run.id]]
                    for name in sorted({name for p in points[run.id] for name in p.metrics})
                },
            }
            for run in trial.runs
        ]
    )


GRID = (36, 24)
MAX_TRIALS = 4000
WIDEST, NARROWEST = 0.16, 0.05
"""Standard deviations of the kernel, as shares of either axis: of a few trials, and of many."""
_LEAST_WEIGHT = 0.1  # of the kernels at a cell; below it no trial is near enough for an estimate


@dataclass(frozen=True, kw_only=True)
class ParameterAxis:
    """A parameter between the ends that its trials span."""

    name: str
    low: float
    high: float
    log: bool
    integer: bool


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """A row for each of GRID[1] steps of y from low to high, a value for each of GRID[0] steps of x.

    `share` is that of complete trials that are no better, from 0 to 1, averaged around the cell; None where no trial is
    near. It is empty where a parameter is not a number, or no trial is complete.
    """

    x: ParameterAxis | None
    y: ParameterAxis | None
    n_trials: int
    share: list[list[float | None]]


def heatmap(history: History, x: str, y: str) -> Heatmap:
    """The places of two parameters of a search."""
    complete = [
        i
        for i, (state, value) in enumerate(zip(history.state, history.value, strict=True))
        if state == RunState.COMPLETE and value is not None
    ]
    columns = {name: history.params.get(name, []) for name in (x, y)}
    there = [i for i in complete if all(_is_number(values[i]) for values in columns.values() if values)]
    if not there or not all(columns.values()) or len(there) < len(complete):
        return Heatmap(x=None, y=None, n_trials=0, share=[])
    every = [i for i in range(len(history.number)) if all(_is_number(values[i]) for values in columns.values())]
    axes = [_axis(name, [columns[name][i] for i in every], history.declared.get(name, {})) for name in (x, y)]
    merit = _merits([history.value[i] for i in there], direction=history.direction)
    some = np.linspace(0, len(there) - 1, min(len(there), MAX_TRIALS)).round().astype(int)
    places = [_place(axis, [columns[axis.name][there[i]] for i in some]) for axis in axes]
    share = _smooth(places[0], places[1], merit[some])
    return Heatmap(
        x=axes[0],
        y=axes[1],
        n_trials=len(there),
        share=[[None if np.isnan(value) else round(float(value), 4) for value in row] for row in share],
    )


def _heatmap_rows(found: Heatmap) -> Iterator[Sequence[Any]]:
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


def _axis(name: str, values: Sequence[float], declared: Mapping[str, bool]) -> ParameterAxis:
    low, high = min(values), max(values)
    log, integer = low > 0 and declared.get("log", False), declared.get("integer", False)
    return ParameterAxis(name=name, low=low, high=high, log=log, integer=integer)


def _place(axis: ParameterAxis, values: Sequence[float]) -> NDArray[np.float64]:
    """The positions of values between the ends, from 0 to 1."""
    if axis.high == axis.low:
        return np.full(len(values), 0.5)
    found, low, high = np.asarray(values, dtype=float), axis.low, axis.high
    if axis.log:
        found, low, high = np.log(found), float(np.log(low)), float(np.log(high))
    return np.asarray((found - low) / (high - low))


def _value(axis: ParameterAxis, place: float) -> float:
    value = axis.low * (axis.high / axis.low) ** place if axis.log else axis.low + place * (axis.high - axis.low)
    return float(f"{value:.5g}")


def _merits(values: Sequence[float | None], *, direction: str) -> NDArray[np.float64]:
    """For each value the share of the others that are no better; 1 for a single value."""
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


def curve_rows(curves: Curves) -> Iterator[tuple[str | float | int | None, ...]]:
    """The curves as a table, with its header."""
    yield ("label", "runs", curves.axis.value, "low", "median", "high")
    for band in curves.series:
        for x, low, median, high in zip(curves.x, band.low, band.median, band.high, strict=True):
            if median is not None:
                yield (band.label, band.n_runs, x, low, median, high)


def _history_rows(history: History) -> Iterator[tuple[Any, ...]]:
    """The history as a table, with its header."""
    yield ("trial", "state", history.metric, "best", *history.params)
    yield from zip(history.number, history.state, history.value, history.best, *history.params.values(), strict=True)
