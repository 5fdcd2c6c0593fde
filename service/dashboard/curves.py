"""Learning curves of a study's optimizers, each as a median and a band on one common x.

Owns which runs stand for an optimizer, what x is, and how many points a plot gets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any

import numpy as np
from sqlalchemy import Engine, and_, false, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from search.analysis import finite_or_none, median_band
from search.states import RunState, Stage
from service.database.engine import reading
from service.database.models import CurvePoint, Run, Search
from service.models import ComparisonView, StudyView

MAX_POINTS = 200
"""Points of a plot's x: a curve on a page is some 600 pixels wide."""


class RunChoice(StrEnum):
    """Which runs stand for an optimizer.

    BEST: of its best trial, the confirm runs, or the search run where there are none. ALL: every complete trial.
    """

    BEST = "best"
    ALL = "all"


class Axis(StrEnum):
    """What learning is counted in; seconds are of training, evaluation not counted."""

    EPOCH = "epoch"
    STEP = "step"
    SECONDS = "seconds"


@dataclass(frozen=True, kw_only=True)
class Band:
    """One optimizer: at each x the median over its runs and the quartiles; None where no run was evaluated yet."""

    label: str
    n_runs: int
    low: list[float | None]
    median: list[float | None]
    high: list[float | None]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """What a plot of learning curves shows. `metrics` are those that there are to choose from."""

    metric: str
    metrics: list[str]
    axis: Axis
    x: list[float]
    series: list[Band]


@dataclass(frozen=True)
class _Curve:
    x: list[float]
    y: list[float | None]


def study_curves(
    engine: Engine, study: StudyView, standing: ComparisonView, *, runs: RunChoice, axis: Axis, metric: str | None
) -> Curves:
    """The curves of a study.

    Args:
        standing: its comparison, which knows each optimizer's best trial.
        metric: a name of `Curves.metrics`; None or unknown: the objective.
    """
    chosen = _run_ids(engine, study, standing, runs)
    found = dict(_points(engine, chosen, axis=axis, metric=None if metric == study.metric else metric))
    metrics = _metrics(engine, chosen)
    xs = _grid(sorted({x for curve in found.values() for x in curve.x}))
    return Curves(
        metric=metric if metric in metrics else study.metric,
        metrics=[study.metric, *(name for name in metrics if name != study.metric)],
        axis=axis,
        x=xs,
        series=[
            _band(
                search.label,
                [found[run] for run, label in chosen.items() if label == search.label and run in found],
                xs,
            )
            for search in study.searches
        ],
    )


def rows(curves: Curves) -> Iterator[tuple[str | float | int | None, ...]]:
    """The curves as a table, with its header."""
    yield ("label", "runs", curves.axis.value, "low", "median", "high")
    for band in curves.series:
        for x, low, median, high in zip(curves.x, band.low, band.median, band.high, strict=True):
            if median is not None:
                yield (band.label, band.n_runs, x, low, median, high)


def _run_ids(engine: Engine, study: StudyView, standing: ComparisonView, runs: RunChoice) -> dict[int, str]:
    """Ids of the runs, with their searches' labels."""
    query = select(Run.id, Search.label, Run.stage).join(Search, Search.id == Run.search_id)
    query = query.where(Search.study_id == study.id)
    if runs is RunChoice.ALL:
        query = query.where(Run.stage == Stage.SEARCH, Run.state == RunState.COMPLETE)
    else:
        of_best = [
            and_(Search.label == row.label, Run.trial_number == row.trial)
            for row in standing.rows
            if row.trial is not None
        ]
        query = query.where(or_(false(), *of_best), Run.epoch > 0)
    with reading(engine) as session:
        found = session.execute(query).all()
    confirmed = {label for _, label, stage in found if stage == Stage.CONFIRM}
    return {run_id: label for run_id, label, stage in found if stage == Stage.CONFIRM or label not in confirmed}


def _points(
    engine: Engine, chosen: Mapping[int, str], *, axis: Axis, metric: str | None
) -> Iterator[tuple[int, _Curve]]:
    """Each run's curve; of the objective where no metric is named."""
    column: InstrumentedAttribute[Any] = CurvePoint.value if metric is None else CurvePoint.metrics
    query = select(CurvePoint.run_id, CurvePoint.epoch, CurvePoint.step, CurvePoint.train_s, column)
    found: dict[int, list[tuple[int, int, float, float | None]]] = defaultdict(list)
    ids = list(chosen)
    with reading(engine) as session:
        for start in range(0, len(ids), 500):
            some = query.where(CurvePoint.run_id.in_(ids[start : start + 500]))
            for run_id, epoch, step, train_s, y in session.execute(some.order_by(CurvePoint.run_id, CurvePoint.epoch)):
                found[run_id].append((epoch, step, train_s, y if metric is None else y.get(metric)))
    for run_id, points in found.items():
        x: Sequence[float]
        match axis:
            case Axis.EPOCH:
                x = [epoch for epoch, *_ in points]
            case Axis.STEP:
                x = [step for _, step, *_ in points]
            case Axis.SECONDS:
                x = list(accumulate(train_s for _, _, train_s, _ in points))
        yield run_id, _Curve([float(value) for value in x], [finite_or_none(y) for *_, y in points])


def _metrics(engine: Engine, chosen: Mapping[int, str]) -> list[str]:
    """Names of the metrics that one of the runs was evaluated by."""
    query = select(CurvePoint.metrics).where(CurvePoint.run_id.in_(list(chosen)[:50])).limit(1)
    with reading(engine) as session:
        return sorted(session.execute(query).scalar_one_or_none() or {})


def _grid(xs: Sequence[float]) -> list[float]:
    """At most MAX_POINTS of the x, evenly over their order, both ends kept."""
    if len(xs) <= MAX_POINTS:
        return list(xs)
    return [xs[round(i)] for i in np.linspace(0, len(xs) - 1, MAX_POINTS)]


def _band(label: str, curves: Sequence[_Curve], xs: Sequence[float]) -> Band:
    """Median and quartiles at each x, by the rule of `search.analysis.median_band`."""
    band = {point.x: point for point in median_band([_on(curve, xs) for curve in curves])}
    return Band(
        label=label,
        n_runs=len(curves),
        low=[band[x].low if x in band else None for x in xs],
        median=[band[x].median if x in band else None for x in xs],
        high=[band[x].high if x in band else None for x in xs],
    )


def _on(curve: _Curve, xs: Sequence[float]) -> list[tuple[float, float | None]]:
    """The curve at each x that it covers: the value of its last point until then."""
    last = curve.x[-1]
    at = [(x, bisect_right(curve.x, x)) for x in xs if x <= last]
    return [(x, curve.y[n - 1]) for x, n in at if n]
