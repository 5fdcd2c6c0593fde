"""The trial that represents each optimizer of a study, and when its runs met the target."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

import tasks.registry
from admeta.client.models import ReachedView, TargetView
from search.analysis import reached_by, time_to_target
from search.records import Point
from search.states import Direction, Stage
from service.database.models import CONFIRM, CurvePoint, Run, Search, Study
from service.database.queries.best import TrialSummary, summarize
from tasks.engine.protocol import Cost
from tasks.errors import TaskError


def chosen_trials(
    session: Session, study: Study, searches: Sequence[tuple[Search, int | None]]
) -> dict[int, TrialSummary]:
    """By search, the trial that represents the optimizer.

    Args:
        searches: of the study, each with the id of its best run of stage search.
    """
    confirm: dict[int, dict[int, list[Run]]] = {search.id: defaultdict(list) for search, _ in searches}
    for run in session.execute(select(Run).where(Run.search_id.in_(confirm), Run.stage == CONFIRM)).scalars():
        confirm[run.search_id][run.trial_number].append(run)
    of_trials = (
        and_(Run.search_id == search_id, Run.trial_number.in_(list(trials)), Run.stage == Stage.SEARCH)
        for search_id, trials in confirm.items()
        if trials
    )
    is_candidate = or_(Run.id.in_([best for _, best in searches if best is not None]), *of_trials)
    candidates: dict[int, list[Run]] = defaultdict(list)
    for run in session.execute(select(Run).where(is_candidate)).scalars():
        candidates[run.search_id].append(run)
    chosen: dict[int, TrialSummary] = {}
    for search_id, runs in candidates.items():
        trials = confirm[search_id]
        summaries = [_choose_and_report(run, trials[run.trial_number], study, list(trials)) for run in runs]
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


def curves_of(session: Session, run_ids: Sequence[int]) -> dict[int, list[Point]]:
    """By run, its evaluations in order, without their metrics."""
    curves: dict[int, list[Point]] = {run_id: [] for run_id in run_ids}
    query = (
        select(CurvePoint.run_id, CurvePoint.epoch, CurvePoint.step, CurvePoint.value, CurvePoint.train_s)
        .where(CurvePoint.run_id.in_(curves))
        .order_by(CurvePoint.run_id, CurvePoint.epoch)
    )
    for run_id, epoch, step, value, train_s in session.execute(query):
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
