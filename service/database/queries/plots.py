"""What plots draw: a study's learning curves, attempts and Pareto fronts, a search's trials and its importances."""

from __future__ import annotations

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
from sqlalchemy.orm import InstrumentedAttribute, Session, contains_eager

import tasks.registry
from admeta.client.models import (
    BestView,
    ComparisonView,
    ObjectiveView,
    ParetoFrontView,
    ParetoTrialView,
    ParetoView,
    StudyView,
)
from admeta.client.models.base import finite_or_none
from search.analysis import best_so_far, median_band
from search.analysis.curves import Curve
from search.errors import SearchError, nearest_hint
from search.importance import Importance, importance
from search.objectives import COSTS, corners, cost_of, hypervolume, on_front
from search.scale import sizes_of
from search.states import AttemptState, Direction, ImportanceMethod, RunState, Stage, StudyState
from service.database.engine import reading
from service.database.models import Attempt, CurvePoint, Run, Search, Study
from service.database.queries.chosen import evaluations
from service.database.queries.comparison import place_in_definition
from service.database.queries.lookup import find_study, searches_of
from service.database.retry import REQUEST, retried
from tasks.errors import TaskError

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
    xs = _thinned(sorted({x for curve in found.values() for x, _ in curve}))
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
) -> Iterator[tuple[int, Curve]]:
    """Each run's curve; of the objective where no metric is named."""
    column: InstrumentedAttribute[Any] = CurvePoint.value if metric is None else CurvePoint.metrics
    columns = CurvePoint.epoch, CurvePoint.step, CurvePoint.train_s, column
    found: dict[int, list[tuple[int, int, float, float | None]]] = defaultdict(list)
    with reading(engine) as session:
        for run_id, epoch, step, train_s, y in evaluations(session, list(chosen), *columns):
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
        yield run_id, [(float(value), y) for value, (*_, y) in zip(x, points, strict=True)]


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


def _band(label: str, curves: Sequence[Curve], xs: Sequence[float]) -> Band:
    """Median and quartiles at each x."""
    band = {point.x: point for point in median_band(curves, at=xs)}
    return Band(
        label=label,
        n_runs=len(curves),
        low=[band[x].low if x in band else None for x in xs],
        median=[band[x].median if x in band else None for x in xs],
        high=[band[x].high if x in band else None for x in xs],
    )


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
        best=best_so_far(complete, direction=Direction(study.direction)),
        params={name: [row.params.get(name) for row in found] for name in names},
        declared=_declared(study, label),
        epoch=[row.epoch for row in found],
        runs=[1 + n_confirms.get(row.trial_number, 0) for row in found],
        failure=[row.failure for row in found],
    )


def _declared(study: StudyView, label: str) -> dict[str, dict[str, bool]]:
    definition: dict[str, Any] = study.definition or {}
    position = [search.label for search in study.searches].index(label)
    of_each = definition.get("searches", 1) * len(sizes_of(definition))
    optimizers, place = definition["optimizers"], position // of_each
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


DEFAULT_COST = "train_s"
"""The objective beside the metric where a study was searched for the metric alone and none is asked for."""


@retried(REQUEST)
def pareto(engine: Engine, study: str, *, objectives: Sequence[str] = ()) -> ParetoView:
    """The Pareto front of each optimizer of a study, over its complete trials of the search stage.

    Args:
        objectives: beside the study's metric, costs of a run or other metrics. Empty: those that the study was searched
            for, or else the seconds of training.

    Raises:
        StudyNotFoundError: no study has this id or name.
        SearchError: an objective is unknown, given twice, or its direction is not known.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        further = _further(row, objectives)
        searches = searches_of(session, row)
        trials = _trials_by(session, row, [name for name, _ in further])
        labels = {search.id: place_in_definition(row, search)["listed_as"] for search in searches}
        directions = [row.direction, *(direction for _, direction in further)]
        ideal, reference = corners([values for _, values in trials], directions)
        leading = on_front([values for _, values in trials], directions)
        leads = {run.id for (run, _), is_leading in zip(trials, leading, strict=True) if is_leading}

        def share(of: Sequence[tuple[Run, list[float]]]) -> float | None:
            return hypervolume([values for _, values in of], directions, ideal=ideal, reference=reference)

        fronts = []
        for label, optimizer in {labels[search.id]: search.optimizer for search in searches}.items():
            own = [(run, values) for run, values in trials if labels[run.search_id] == label]
            is_best = on_front([values for _, values in own], directions)
            shown = [
                _pareto_trial(run, values, is_on=is_on, leads=run.id in leads)
                for (run, values), is_on in zip(own, is_best, strict=True)
            ]
            in_order = row.direction.best_first(shown, lambda one: one.values[0])
            fronts.append(ParetoFrontView(label=label, optimizer=optimizer, hypervolume=share(own), trials=in_order))
        names = [(row.metric, row.direction), *further]
        return ParetoView(
            study=row.name,
            objectives=[ObjectiveView(metric=name, direction=direction) for name, direction in names],
            searched=bool(further) and further == _searched(row),
            complete=row.state == StudyState.COMPLETED,
            ideal=ideal,
            reference=reference,
            hypervolume=share(trials),
            fronts=fronts,
        )


def with_front(engine: Engine, best: BestView) -> BestView:
    """The best settings, with the Pareto front of their search where it had several objectives."""
    with reading(engine) as session:
        several = bool(_searched(find_study(session, best.study)))
    if not several:
        return best
    view = pareto(engine, best.study)
    front = [one for of in view.fronts for one in of.trials if one.label == best.label and one.on_front]
    return best.model_copy(update={"objectives": view.objectives, "front": front})


def _searched(study: Study) -> list[tuple[str, Direction]]:
    return [(one["metric"], Direction(one["direction"])) for one in study.definition.get("objectives", [])]


def _further(study: Study, names: Sequence[str]) -> list[tuple[str, Direction]]:
    """The objectives beside the study's metric, with their directions."""
    searched = _searched(study)
    if not names:
        return searched or [(DEFAULT_COST, Direction.MINIMIZE)]
    try:
        known = {name: Direction(direction) for name, direction in tasks.registry.get(study.task).metrics.items()}
    except TaskError:  # a study may outlive the installation of its task
        known = {}
    known |= dict(searched) | dict.fromkeys(COSTS, Direction.MINIMIZE)
    for i, name in enumerate(names):
        if name in (study.metric, *names[:i]):
            raise SearchError(
                f"objective = '{name}' is given twice; '{study.metric}', the study's metric, is always one"
            )
        if name not in known:
            hint = nearest_hint(name, tuple(known))
            raise SearchError(f"objective = '{name}' is no cost of a run and no metric of task '{study.task}'; {hint}")
    return [(name, known[name]) for name in names]


def _trials_by(session: Session, study: Study, further: Sequence[str]) -> list[tuple[Run, list[float]]]:
    """The trained complete trials that have a value of each objective, with these, by search and number.

    Seconds are those of `search.objectives.value_of`, so that epochs trained again do not count twice.
    """
    complete = (
        Search.study_id == study.id, Run.stage == Stage.SEARCH, Run.state == RunState.COMPLETE,
        Run.value.is_not(None), Run.attempt > 0,
    )  # fmt: skip
    runs = select(Run).join(Run.search).where(*complete).options(contains_eager(Run.search))
    costs = [name for name in further if name in COSTS]
    of_epochs: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    if costs:
        columns = [getattr(CurvePoint, name) for name in costs]
        points = select(CurvePoint.run_id, *columns).join(Run, Run.id == CurvePoint.run_id).join(Run.search)
        for run_id, *of_epoch in session.execute(points.where(*complete).order_by(CurvePoint.run_id)):
            of_epochs[run_id].append(tuple(of_epoch))
    metrics: dict[int, Mapping[str, float]] = {}
    if len(costs) < len(further):
        at_end = (Run.id == CurvePoint.run_id) & (Run.epoch == CurvePoint.epoch)
        last = select(CurvePoint.run_id, CurvePoint.metrics).join(Run, at_end).join(Run.search).where(*complete)
        metrics = {run_id: of for run_id, of in session.execute(last)}
    found = []
    for run in session.execute(runs.order_by(Run.search_id, Run.trial_number)).scalars():
        spent = dict(zip(costs, zip(*of_epochs[run.id], strict=True), strict=False))
        of_costs = {name: cost_of(name, of_epoch) for name, of_epoch in spent.items()}
        values = [run.value, *(of_costs.get(name, metrics.get(run.id, {}).get(name)) for name in further)]
        known = [value for value in map(finite_or_none, values) if value is not None]
        if len(known) == len(values):
            found.append((run, known))
    return found


def _pareto_trial(run: Run, values: list[float], *, is_on: bool, leads: bool) -> ParetoTrialView:
    shown = {"settings": run.settings, "training": run.training} if is_on else {"settings": None}
    return ParetoTrialView(
        label=run.search.label, trial=run.trial_number, values=values, on_front=is_on, leads=leads, **shown
    )
