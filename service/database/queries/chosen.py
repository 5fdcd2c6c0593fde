"""What represents an optimizer of a study: its best trial, the best of n of its trials, the edges of its spaces."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

import tasks.registry
from admeta.client.models import EdgeView, ReachedView, TargetView
from search.analysis import BestOfN, best_of_n, reached_by, time_to_target
from search.definition import StudyDefinition
from search.edge import Searched, edges, is_near_an_end, widened
from search.records import Point
from search.states import Direction, FailureKind, RunState, Stage
from service.database.models import CONFIRM, CurvePoint, Run, Search, Study
from service.database.queries.best import TrialSummary, summarize
from tasks.engine.protocol import Cost
from tasks.errors import TaskError


def chosen_trials(
    session: Session, study: Study, searches: Sequence[tuple[Search, int | None]]
) -> dict[int, TrialSummary]:
    """By search, the trial that represents the optimizer.

    Args:
        study: of the searches, or one of those that have its objective.
        searches: each with the id of its best run of stage search.
    """
    confirm: dict[int, dict[int, list[Run]]] = {search.id: defaultdict(list) for search, _ in searches}
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
        summaries = [_choose_and_report(run, trials[run.trial_number], study, list(trials)) for run in runs.values()]
        chosen[search_id] = min(summaries, key=lambda pair: _preference(pair[0], study.direction))[1]
    return chosen


def _choose_and_report(
    run: Run, confirm_runs: Sequence[Run], study: Study, confirmed: Sequence[int]
) -> tuple[TrialSummary, TrialSummary]:
    """What chooses the trial, and what is then reported of it.

    Where several trials were confirmed, half of the seeds choose and the others report: the best of them by the same
    seeds would be the luckiest.
    """
    choosing = {seed for i, seed in enumerate(sorted({one.seed for one in confirm_runs})) if i % 2}
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
    reached = reached_by([math.inf if time is None else time for time in times["train_s"]])
    return TargetView(**times, reached=ReachedView.model_validate(reached))


_IDS = 5_000  # of a statement: PostgreSQL takes 65,535 parameters


def curves_of(session: Session, run_ids: Sequence[int]) -> dict[int, list[Point]]:
    """By run, its evaluations in order, without their metrics."""
    curves: dict[int, list[Point]] = {run_id: [] for run_id in run_ids}
    columns = CurvePoint.run_id, CurvePoint.epoch, CurvePoint.step, CurvePoint.value, CurvePoint.train_s
    query = select(*columns).order_by(CurvePoint.run_id, CurvePoint.epoch)
    for start in range(0, len(run_ids), _IDS):
        of_some = query.where(CurvePoint.run_id.in_(run_ids[start : start + _IDS]))
        for run_id, epoch, step, value, train_s in session.execute(of_some):
            curves[run_id].append(Point(epoch=epoch, step=step, value=value, metrics={}, cost=Cost(train_s=train_s)))
    return curves


def target_of(study: Study) -> float | None:
    """The study's own target, or else the task's for its default metric."""
    stated: float | None = study.definition["budget"].get("target")
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
    diverged = Run.failure.in_([FailureKind.DIVERGED, FailureKind.NO_METRIC])
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
        definition = StudyDefinition.model_validate(study.definition) if over else None
    except ValidationError:  # of another version, or a task that is no longer installed
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
