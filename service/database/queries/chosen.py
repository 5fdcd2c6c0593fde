"""What represents an optimizer of a study: its best trial, the best of n of its trials, the edges of its spaces.

Also how the best trial's result depends on one parameter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Select, func, select
from sqlalchemy.orm import Session

import tasks.registry
from admeta.client.models import (
    EdgeView,
    RangeEndView,
    SensitivityCurveView,
    SensitivityPointView,
    SensitivityView,
    TargetView,
)
from search.analysis import BestOfN, GoodRange, best_of_n, good_range, reached_by, spread, time_to_target, typical_std
from search.confirmation import choosing_seeds
from search.edge import Searched, edges, is_near_an_end, widened
from search.errors import SearchError, nearest_hint
from search.optimizer_search import OptimizerSearch
from search.records import Point
from search.sensitivity import Sensitivity, varies_on_log_scale, without
from search.states import SETTINGS_FAILURES, Direction, RunState, Stage, StudyState
from service.database.engine import reading
from service.database.models import CONFIRM, CurvePoint, Run, Search, Study
from service.database.queries.best import best_run_id
from service.database.queries.lookup import confirm_of, definition_of, find_study
from service.database.queries.summaries import TrialSummary, is_result, summarize
from service.database.retry import REQUEST, retried
from tasks.engine.protocol import Cost
from tasks.errors import TaskError


def searches_with_best(session: Session, study: Study) -> list[tuple[Search, int | None]]:
    """The study's searches in their order, each with the id of its best run of stage search."""
    query = select(Search, best_run_id()).join(Search.study).where(Search.study_id == study.id)
    return [(search, best) for search, best in session.execute(query.order_by(Search.position))]


def chosen_trials(
    session: Session, study: Study, searches: Sequence[tuple[Search, int | None]]
) -> dict[int, TrialSummary]:
    """By search, the trial that represents the optimizer.

    Args:
        study: of the searches, or one of those that have its objective.
        searches: each with the id of its best run of stage search.
    """
    confirm: dict[int, dict[int, list[Run]]] = {search.id: defaultdict(list) for search, _ in searches}
    study_of = {search.id: search.study_id for search, _ in searches}
    confirms = Run.search_id.in_(confirm), Run.stage == CONFIRM
    for run in session.execute(select(Run).where(*confirms)).scalars():
        confirm[run.search_id][run.trial_number].append(run)
    trials_of = select(Run.search_id, Run.trial_number).where(*confirms).distinct().subquery()
    of_trial = (Run.search_id == trials_of.c.search_id) & (Run.trial_number == trials_of.c.trial_number)
    confirmed = select(Run).join(trials_of, of_trial).where(Run.stage == Stage.SEARCH)
    best = select(Run).where(Run.id.in_([best for _, best in searches if best is not None]))
    candidates: dict[int, dict[int, Run]] = defaultdict(dict)
    for query in (confirmed, best):
        for run in session.execute(query).scalars():
            candidates[run.search_id][run.id] = run
    chosen: dict[int, TrialSummary] = {}
    for search_id, runs in candidates.items():
        trials = confirm[search_id]
        if len(trials) > 1:
            of = session.get_one(Study, study_of[search_id])
            trials = _confirmed_now(trials, runs.values(), study=of)
        summaries = [
            _choose_and_report(run, trials.get(run.trial_number, []), study, list(trials)) for run in runs.values()
        ]
        chosen[search_id] = min(summaries, key=lambda pair: _preference(pair[0], study.direction))[1]
    return chosen


def _confirmed_now(confirm: dict[int, list[Run]], candidates: Iterable[Run], *, study: Study) -> dict[int, list[Run]]:
    """By trial number, the confirm runs of the trials that a search has chosen.

    An extended study chooses anew among all its trials, so that it may have confirmed more than `top_k`. Those chosen
    before count until a new one has a result.
    """
    top_k = confirm_of(study).top_k
    if len(confirm) <= top_k:
        return confirm
    has_results = [run for run in candidates if any(map(is_result, confirm.get(run.trial_number, ())))]
    in_order = sorted(has_results, key=lambda run: run.trial_number)
    best = study.direction.best_first(in_order, lambda run: run.value or 0.0)[:top_k]
    return {run.trial_number: confirm[run.trial_number] for run in best}


def _choose_and_report(
    run: Run, confirm_runs: Sequence[Run], study: Study, confirmed: Sequence[int]
) -> tuple[TrialSummary, TrialSummary]:
    """What chooses the trial, and what is then reported of it.

    Where several trials were confirmed, half of the seeds choose and the others report.
    """
    choosing = choosing_seeds(one.seed for one in confirm_runs)
    if len(confirmed) < 2 or not choosing:
        summary = summarize(run, confirm_runs, metric=study.metric)
        return summary, summary
    halves = ([one for one in confirm_runs if (one.seed in choosing) is chooses] for chooses in (True, False))
    first, second = (summarize(run, half, metric=study.metric) for half in halves)
    return first, second


def _preference(summary: TrialSummary, direction: Direction) -> tuple[bool, float, bool, float, int]:
    """Sort key: confirmed before unconfirmed, then fewer failed runs, the better value, the earlier trial."""
    cost = 0.0 if summary.score is None else direction.cost(summary.score)
    return not summary.confirmed, summary.failed_share, summary.score is None, cost, summary.run.trial_number


def times_to_target(session: Session, study: Study, chosen: Mapping[int, TrialSummary]) -> dict[int, TargetView]:
    """By search, when the runs of the chosen trial first reached the target; unfinished ones do not count."""
    target = target_of(study)
    if target is None:
        return {}
    runs = {search_id: [run for run in one.counted if run.state.is_finished] for search_id, one in chosen.items()}
    curves = curves_of(session, [run.id for found in runs.values() for run in found])
    return {
        search_id: _target_view([curves[run.id] for run in found], target=target, direction=study.direction)
        for search_id, found in runs.items()
        if found
    }


def _target_view(curves: Sequence[Sequence[Point]], *, target: float, direction: Direction) -> TargetView:
    times = time_to_target(curves, target=target, direction=direction).to_json()
    return TargetView(**times, reached=reached_by([math.inf if time is None else time for time in times["train_s"]]))


_IDS = 5_000  # of a statement: PostgreSQL takes 65,535 parameters


def evaluations(session: Session, run_ids: Sequence[int], *columns: Any) -> Iterator[Any]:
    """The run's id and these columns of each evaluation of the runs, by run and epoch."""
    query = select(CurvePoint.run_id, *columns).order_by(CurvePoint.run_id, CurvePoint.epoch)
    for start in range(0, len(run_ids), _IDS):
        yield from session.execute(query.where(CurvePoint.run_id.in_(run_ids[start : start + _IDS])))


def curves_of(session: Session, run_ids: Sequence[int]) -> dict[int, list[Point]]:
    """By run, its evaluations in order, without their metrics."""
    curves: dict[int, list[Point]] = {run_id: [] for run_id in run_ids}
    columns = CurvePoint.epoch, CurvePoint.step, CurvePoint.value, CurvePoint.train_s
    for run_id, epoch, step, value, train_s in evaluations(session, run_ids, *columns):
        curves[run_id].append(Point(epoch=epoch, step=step, value=value, metrics={}, cost=Cost(train_s=train_s)))
    return curves


def target_of(study: Study) -> float | None:
    """The study's own target, or else the task's for its default metric."""
    stated: float | None = (study.definition.get("budget") or {}).get("target")
    if stated is not None:
        return stated
    try:
        info = tasks.registry.get(study.task)
    except TaskError:  # a study may outlive the installation of its task
        return None
    return info.target_value if study.metric == info.default_metric else None


MAX_EXPECTED = 500
"""Trials up to which the expected best is computed: the cost grows with the square of the length."""


def trial_values(session: Session, study: Study) -> dict[int, list[float | None]]:
    """By search, the last value of each trial that says something of its settings; None for one that diverged."""
    values: dict[int, list[float | None]] = defaultdict(list)
    for search_id, failure, value in session.execute(_telling_trials(study, Run.search_id, Run.failure, Run.value)):
        values[search_id].append(None if failure else value)
    return values


def _telling_trials(study: Study, *columns: Any) -> Select[*tuple[Any, ...]]:
    """Columns of the finished trials that say something of their settings: not those lost to an accident."""
    ended = Run.state.in_([RunState.COMPLETE, RunState.PRUNED]) & Run.value.is_not(None)
    diverged = Run.failure.in_(SETTINGS_FAILURES)
    return (
        select(*columns)
        .join(Run.search)
        .where(Search.study_id == study.id, Run.stage == Stage.SEARCH, ended | diverged)
        .order_by(Run.search_id, Run.trial_number)
    )


def best_by_search(values: Mapping[int, Sequence[float | None]], *, direction: Direction) -> dict[int, BestOfN]:
    known = [value for of in values.values() for value in of if value is not None]
    worst = direction.worst(known) if known else None
    return {
        search_id: best_of_n(of[:MAX_EXPECTED], direction=direction, worst=worst) for search_id, of in values.items()
    }


def found_edges(
    session: Session, study: Study, labels: Mapping[int, str], chosen: Mapping[int, TrialSummary]
) -> dict[str, Any]:
    """What the best trials have at an end of their spaces, and the study that searches further, by names of the view.

    Of searches that have ended. Reads all trials' parameters only where a best trial is near an end.

    Args:
        labels: by search, that of its optimizer in the definition, or of a baseline, which has no space.
    """
    over = {search_id: one for search_id, one in chosen.items() if one.confirmed or study.state.is_terminal}
    try:
        definition = definition_of(study) if over else None
    except SearchError:  # of another version, or a task that is no longer installed
        definition = None
    if definition is None:
        return {}
    spaces = {one.label: one.space for one in definition.optimizers}
    near = {
        search_id: one.run.params
        for search_id, one in over.items()
        if is_near_an_end(spaces.get(labels[search_id], {}), one.run.params)
    }
    if not near:
        return {}
    trials: dict[int, list[tuple[Mapping[str, Any], float | None]]] = defaultdict(list)
    columns = Run.search_id, Run.params, Run.value, Run.failure
    for search_id, params, value, failure in session.execute(_telling_trials(study, *columns)):
        trials[search_id].append((params, None if failure else value))
    found = edges(
        definition, [Searched(label=labels[one], best=params, trials=trials[one]) for one, params in near.items()]
    )
    return {
        "edges": [EdgeView.model_validate(edge) for edge in found],
        "wider": widened(definition, found).to_json() if found else None,
    }


MAX_TRIALS = 1_000
"""Trials of a search among which those are looked for that differ from the chosen one in the parameter alone."""


@retried(REQUEST)
def sensitivity(
    engine: Engine, study: str, *, parameter: str | None = None, within: float = 0.01, margin: float | None = None
) -> SensitivityView:
    """How much each optimizer's result depends on one parameter, from all runs that differ in it alone.

    Args:
        parameter: None: the one that the definition names, or else lr.
        within: tolerance as a share of the best result.
        margin: tolerance in the metric's unit, in its place.

    Raises:
        StudyNotFoundError: no study has this id or name.
        SearchError: no optimizer of the study has this parameter, or this version cannot read its definition.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        definition = definition_of(row)
        if parameter is not None:
            known = {name for optimizer in definition.optimizers for name in optimizer.parameter_names}
            if parameter not in known:
                hint = nearest_hint(parameter, tuple(known))
                raise SearchError(f"parameter = '{parameter}' is of no optimizer of '{row.name}'; {hint}")
        asked = definition.sensitivity or Sensitivity()
        tolerance = _Tolerance(
            parameter=parameter or asked.parameter,
            within=within,
            margin=margin,
            std=_std_between_seeds(session, row),
            worst=_worst_complete(session, row),
        )
        searches = searches_with_best(session, row)
        chosen = chosen_trials(session, row, searches)
        planned = {search.id: definition.planned_search(search.label) for search, _ in searches}
        return SensitivityView(
            study=row.name,
            metric=row.metric,
            direction=row.direction,
            parameter=tolerance.parameter,
            within=within,
            margin=margin,
            std=tolerance.std,
            complete=row.state == StudyState.COMPLETED,
            curves=[
                _sensitivity_curve(session, row, search, planned[search.id].optimizer, chosen.get(search.id), tolerance)
                for search, _ in searches
                if not planned[search.id].is_baseline
            ],
        )


@dataclass(frozen=True, kw_only=True)
class _Tolerance:
    """What is asked of each curve: see `sensitivity` and `search.analysis.good_range`."""

    parameter: str
    within: float
    margin: float | None
    std: float | None
    worst: float | None


def _sensitivity_curve(
    session: Session,
    study: Study,
    search: Search,
    optimizer: OptimizerSearch,
    trial: TrialSummary | None,
    tolerance: _Tolerance,
) -> SensitivityCurveView:
    name = tolerance.parameter
    points = {} if trial is None else _on_one_line(session, optimizer, name, trial.run)
    at = None if trial is None else optimizer.number(name, trial.run.params)
    log = varies_on_log_scale(optimizer, name)
    found = good_range(
        list(points.items()),
        direction=study.direction,
        within=tolerance.within,
        margin=tolerance.margin,
        log=log,
        std=tolerance.std,
        worst=tolerance.worst,
    )
    numbers: dict[str, Any] = dict.fromkeys(_NUMBERS)
    if found is None or at is None:
        reason = sentence = _why_no_range(name, at, trial, points)
    else:
        ends = {
            end: RangeEndView(**vars(edge), factor=edge.at / at if log else None)
            for end, edge in (("low", found.low), ("high", found.high))
        }
        width = found.high.at / found.low.at if log else None
        note = _unsure(found, tolerance.std, n_runs=min(map(len, points.values())))
        best = {"best": found.best, "best_at": found.best_at, "deviation": found.deviation}
        numbers |= {**best, **ends, "tolerance": found.tolerance, "width": width, "note": note}
        reason, sentence = None, _in_words(tolerance, study.metric, numbers, at=at)
    return SensitivityCurveView(
        label=search.label,
        optimizer=search.optimizer,
        trial=None if trial is None else trial.run.trial_number,
        chosen=at,
        log=log,
        points=[_point_view(value, results) for value, results in points.items()],
        reason=reason,
        sentence=sentence,
        **numbers,
    )


_NUMBERS = "best", "best_at", "tolerance", "low", "high", "width", "deviation", "note"


def _std_between_seeds(session: Session, study: Study) -> float | None:
    query = select(Run.search_id, Run.trial_number, Run.value).join(Run.search)
    confirms = Search.study_id == study.id, Run.stage == CONFIRM, Run.state == RunState.COMPLETE
    values: dict[tuple[int, int], list[float]] = defaultdict(list)
    for search_id, trial, value in session.execute(query.where(*confirms, Run.value.is_not(None))):
        if value is not None:
            values[search_id, trial].append(value)
    return typical_std(values.values())


def _worst_complete(session: Session, study: Study) -> float | None:
    worst = func.min(Run.value) if study.direction.is_maximize else func.max(Run.value)
    complete = Search.study_id == study.id, Run.stage == Stage.SEARCH, Run.state == RunState.COMPLETE
    found: float | None = session.execute(select(worst).join(Run.search).where(*complete)).scalar_one()
    return found


def _on_one_line(
    session: Session, optimizer: OptimizerSearch, name: str, chosen: Run
) -> dict[float, list[float | None]]:
    """By value of the parameter, results of the runs whose other parameters are the chosen trial's; None: diverged.

    The value by which the chosen trial was selected is left out where other seeds tell of it.
    """
    others = without(name, chosen.params)
    columns = Run.trial_number, Run.stage, Run.seed, Run.params, Run.value, Run.failure
    ended = (Run.state == RunState.COMPLETE) | Run.failure.in_(SETTINGS_FAILURES)
    of_search = select(*columns).where(Run.search_id == chosen.search_id, ended)
    follow = of_search.where(Run.stage.in_([Stage.CONFIRM, Stage.SENSITIVITY]))
    trials = of_search.where(Run.stage == Stage.SEARCH).order_by(Run.trial_number).limit(MAX_TRIALS)
    found: dict[float, dict[int, float | None]] = defaultdict(dict)
    at = optimizer.number(name, chosen.params)
    for run in [*session.execute(follow), *session.execute(trials)]:
        value = optimizer.number(name, run.params)
        if value is None or without(name, run.params) != others:
            continue
        if run.stage == Stage.SEARCH and value == at and found[value]:
            continue
        found[value].setdefault(run.seed, None if run.failure else run.value)
    return {value: list(by_seed.values()) for value, by_seed in sorted(found.items()) if by_seed}


def _unsure(found: GoodRange, std: float | None, *, n_runs: int) -> str | None:
    """What keeps the range from being known well, in words."""
    if std is None:
        return "no interval of its ends: the spread between seeds is not known, which takes two confirm runs"
    if found.tolerance >= (least := 2 * std / math.sqrt(n_runs)):
        return None
    runs = "one run" if n_runs == 1 else f"the mean of {n_runs} runs"
    return (
        f"the tolerance, {found.tolerance:.2g}, is less than two standard errors of {runs}, {least:.2g}: more seeds or "
        "a larger tolerance would show more"
    )


def _point_view(value: float, results: Sequence[float | None]) -> SensitivityPointView:
    of = spread(results)
    mean = None if of.n_failed else of.mean
    return SensitivityPointView(value=value, mean=mean, std=of.std, n=len(results), n_diverged=of.n_failed)


def _why_no_range(name: str, at: float | None, trial: TrialSummary | None, points: Mapping[float, Any]) -> str:
    if trial is None:
        return "no trial is complete"
    if at is None:
        return f"its best trial has no number for '{name}'"
    if len(points) < 3:
        n = f"{len(points)} value{'' if len(points) == 1 else 's'}"
        return (
            f"runs with its best trial's other settings have {n} of {name}; a range needs 3. A study makes such runs "
            f"with sensitivity: {{parameter: {name}}}"
        )
    return "all runs diverged"


def _in_words(asked: _Tolerance, metric: str, numbers: Mapping[str, Any], *, at: float) -> str:
    low, high, name = numbers["low"], numbers["high"], asked.parameter
    tolerance = f"{100 * asked.within:g} %" if asked.margin is None else f"{asked.margin:g}"
    ends = f"{_end_in_words(low, at, 'less')} to {_end_in_words(high, at, 'more')}"
    result = f"{metric} is within {tolerance} of its best, {numbers['best']:.4g}"
    if not low.at <= at <= high.at:
        return f"the chosen {name}, {at:.3g}, is not in the range where {result}: {ends}"
    return f"{name} may {'lie from' if low.factor is None else 'be off by'} {ends}: there {result}"


def _end_in_words(end: RangeEndView, at: float, beyond: str) -> str:
    """One end, as a factor of the chosen value where there is one, and what it lies between."""
    scale, sign = (1.0, "") if end.factor is None else (at, "× ")
    text = f"{sign}{end.at / scale:.2g}"
    if end.is_open:
        return f"{text} or {beyond}"
    if end.inner is None:
        return text
    between = [f"{end.inner / scale:.2g}", "an open end" if end.outer is None else f"{end.outer / scale:.2g}"]
    low, high = between if beyond == "more" else between[::-1]
    return f"{text} ({low} to {high})"
