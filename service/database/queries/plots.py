"""What plots draw: a study's learning curves and attempts, the trials of a search, the importance of its parameters."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import accumulate
from typing import Any

import numpy as np
import optuna
from optuna.storages._rdb import models as optuna_models
from optuna.trial import TrialState
from sqlalchemy import Engine, func, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from admeta.client.models import ComparisonView, StudyView
from search.analysis import best_so_far, finite_or_none, median_band
from search.importance import Importance, importance
from search.states import AttemptState, ImportanceMethod, RunState, Stage
from service.database.engine import reading
from service.database.models import Attempt, CurvePoint, Run, Search

MAX_POINTS = 200
"""Points of a plot's x: a curve on a page is some 600 pixels wide."""
_FIRST_PARAMS = ("lr", "lambd")
_IMPORTANCE_KEY = "admeta:importance:of-ranks:"


class RunChoice(StrEnum):
    """Which runs represent an optimizer.

    BEST: of its best trial, the confirm runs, or the search run if there are none. ALL: every complete trial.
    """

    BEST = "best"
    ALL = "all"


class Axis(StrEnum):
    """The unit of x; seconds are of training, without evaluation."""

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
    """Learning curves on one common x. `metrics` are those that there are to choose from."""

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
    engine: Engine, study: StudyView, comparison: ComparisonView, *, runs: RunChoice, axis: Axis, metric: str | None
) -> Curves:
    """The curves of a study.

    Args:
        comparison: of the study; contains each optimizer's best trial.
        metric: a name of `Curves.metrics`; None or unknown: the objective.
    """
    chosen = _run_ids(engine, study, comparison, runs)
    return _curves(engine, chosen, [search.label for search in study.searches], study.metric, axis=axis, metric=metric)


def best_curves(
    engine: Engine, studies: Sequence[tuple[StudyView, ComparisonView]], *, axis: Axis, metric: str | None
) -> Curves:
    """The curves of the best of each study, under the study's name.

    Args:
        studies: each with its comparison.
        metric: a name of `Curves.metrics`; None or unknown: the first study's objective.
    """
    objectives = {study.metric for study, _ in studies}
    if len(objectives) > 1:
        metric = metric or studies[0][0].metric
    chosen: dict[int, str] = {}
    for study, comparison in studies:
        first = comparison.model_copy(update={"rows": comparison.rows[:1]})
        chosen |= dict.fromkeys(_run_ids(engine, study, first, RunChoice.BEST), study.name)
    objective = objectives.pop() if len(objectives) == 1 else ""
    found = _curves(engine, chosen, [study.name for study, _ in studies], objective, axis=axis, metric=metric)
    return found if objective else replace(found, metric=metric or "", metrics=[name for name in found.metrics if name])


def _curves(
    engine: Engine,
    chosen: Mapping[int, str],
    labels: Sequence[str],
    objective: str,
    *,
    axis: Axis,
    metric: str | None,
) -> Curves:
    """The curves of runs, by their labels."""
    found = dict(_points(engine, chosen, axis=axis, metric=None if metric == objective else metric))
    metrics = _metrics(engine, chosen)
    xs = _thinned(sorted({x for curve in found.values() for x in curve.x}))
    curves = {label: [found[run] for run, of in chosen.items() if of == label and run in found] for label in labels}
    return Curves(
        metric=metric if metric in metrics else objective,
        metrics=[objective, *(name for name in metrics if name != objective)],
        axis=axis,
        x=xs,
        series=[_band(label, of_label, xs) for label, of_label in curves.items()],
    )


def _run_ids(engine: Engine, study: StudyView, comparison: ComparisonView, runs: RunChoice) -> dict[int, str]:
    """Ids of the runs, with their searches' labels."""
    query = select(Run.id, Search.label, Run.stage).join(Run.search).where(Search.study_id == study.id)
    if runs is RunChoice.ALL:
        query = query.where(Run.stage == Stage.SEARCH, Run.state == RunState.COMPLETE)
    else:
        of_best = [(row.label, row.trial) for row in comparison.rows if row.trial is not None]
        of_trial = tuple_(Search.label, Run.trial_number).in_(of_best), Run.stage != Stage.SENSITIVITY
        query = query.where(*of_trial, Run.epoch > 0)
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


def _thinned(xs: Sequence[float]) -> list[float]:
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


@dataclass(frozen=True, kw_only=True)
class AttemptSpan:
    """When and where one attempt of a run trained; node and device are None until its worker has reported them.

    `epoch` is the run's last one, `epoch_s` the seconds that it trained and evaluated.
    """

    label: str
    trial: int
    stage: Stage
    seed: int
    attempt: int
    state: AttemptState
    node: str | None
    device: str | None
    started_at: datetime
    finished_at: datetime | None
    epoch: int = 0
    epoch_s: float = 0.0


def attempt_spans(engine: Engine, study_id: str, *, limit: int | None = None) -> list[AttemptSpan]:
    """The attempts of a study's runs in order of their start; only the latest `limit` of them."""
    epoch_s = func.coalesce(CurvePoint.train_s + CurvePoint.eval_s, 0.0).label("epoch_s")
    query = (
        select(
            *(Search.label, Run.trial_number.label("trial"), Run.stage, Run.seed, Attempt.attempt, Attempt.state),
            *(Attempt.node, Attempt.device, Attempt.started_at, Attempt.finished_at, Run.epoch, epoch_s),
        )
        .join(Run, Run.id == Attempt.run_id)
        .join(Run.search)
        .outerjoin(CurvePoint, (CurvePoint.run_id == Run.id) & (CurvePoint.epoch == Run.epoch))
        .where(Search.study_id == study_id)
        .order_by(Attempt.started_at.desc(), Attempt.run_id.desc(), Attempt.attempt.desc())
        .limit(limit)
    )
    with reading(engine) as session:
        return [AttemptSpan(**row._asdict()) for row in session.execute(query)][::-1]


@dataclass(frozen=True, kw_only=True)
class History:
    """The trials of one search as columns, an entry for each trial in order of its number.

    `best` is the best value of the COMPLETE trials so far. `declared` says for each numeric parameter of the search
    space whether it is sampled on a log scale, and whether it is an integer.
    """

    metric: str
    direction: str
    number: list[int]
    state: list[str]
    value: list[float | None]
    best: list[float | None]
    params: dict[str, list[Any]]
    declared: dict[str, dict[str, bool]]
    epoch: list[int]
    runs: list[int]
    failure: list[str | None]


def search_history(engine: Engine, study: StudyView, label: str) -> History:
    """The trials of a search of this study."""
    of_search = Search.study_id == study.id, Search.label == label
    columns = Run.trial_number, Run.state, Run.value, Run.params, Run.epoch, Run.failure
    trials = select(*columns).join(Run.search).where(*of_search, Run.stage == Stage.SEARCH).order_by(Run.trial_number)
    confirms = select(Run.trial_number, func.count()).join(Run.search).where(*of_search, Run.stage == Stage.CONFIRM)
    with reading(engine) as session:
        found = session.execute(trials).all()
        n_confirms = {number: n for number, n in session.execute(confirms.group_by(Run.trial_number))}
    values = [finite_or_none(row.value) for row in found]
    complete = [value if row.state == RunState.COMPLETE else None for row, value in zip(found, values, strict=True)]
    names = sorted({name for row in found for name in row.params}, key=lambda name: (name not in _FIRST_PARAMS, name))
    return History(
        metric=study.metric,
        direction=study.direction,
        number=[row.trial_number for row in found],
        state=[str(row.state) for row in found],
        value=values,
        best=best_so_far(complete, direction=study.direction),
        params={name: [row.params.get(name) for row in found] for name in names},
        declared=_declared(study, label),
        epoch=[row.epoch for row in found],
        runs=[1 + n_confirms.get(row.trial_number, 0) for row in found],
        failure=[row.failure for row in found],
    )


def _declared(study: StudyView, label: str) -> dict[str, dict[str, bool]]:
    definition: dict[str, Any] = study.definition or {}
    position = [search.label for search in study.searches].index(label)  # an optimizer has `searches` of them
    optimizers, place = definition["optimizers"], position // definition.get("searches", 1)
    space: dict[str, Any] = optimizers[place]["space"] if place < len(optimizers) else {}  # a baseline has none
    return {
        name: {"log": bool(parameter.get("log")), "integer": parameter["type"] == "int"}
        for name, parameter in space.items()
        if parameter["type"] in ("float", "int")
    }


def search_importance(
    engine: Engine, storage: optuna.storages.BaseStorage, optuna_name: str, *, method: ImportanceMethod | None
) -> Importance:
    """As `search.importance.importance`, cached in the Optuna study until another of its trials ends.

    The importance depends on the finished trials alone, whose parameters and values never change, so their number
    shows whether the cached value is current. Computing it reads every trial and fits a forest, which takes seconds.

    Args:
        optuna_name: the search's Optuna study.

    Raises:
        KeyError: the Optuna study does not exist yet, as no trial has started.
        TooFewTrialsError: see there.
    """
    study_id = storage.get_study_id_from_name(optuna_name)
    trial = optuna_models.TrialModel
    unfinished = (TrialState.WAITING, TrialState.RUNNING)
    finished = select(func.count()).where(trial.study_id == study_id, trial.state.not_in(unfinished))
    with reading(engine) as session:
        n_finished = session.execute(finished).scalar_one()
    key = _IMPORTANCE_KEY + ("auto" if method is None else method.value)
    known = storage.get_study_system_attrs(study_id).get(key)
    if known is not None and known["n_finished"] == n_finished:
        of = known["importance"]
        intervals = {name: tuple(ends) for name, ends in of["intervals"].items()}
        return Importance(**{**of, "method": ImportanceMethod(of["method"]), "intervals": intervals})
    found = importance(optuna.load_study(study_name=optuna_name, storage=storage), method=method)
    storage.set_study_system_attr(study_id, key, {"n_finished": n_finished, "importance": vars(found)})
    return found
