"""The comparison of a study's optimizers: each one's best trial, what sets them apart, and what the search cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Engine, func, select
from sqlalchemy.orm import Session

import tasks.registry
from search.analysis import compare_all, divergence_rate, expected_best_curve, time_to_target
from search.records import Point, RunOutcome
from search.states import Direction, FailureKind, RunState, SignificanceTest, Stage, StudyState
from service.database.engine import reading
from service.database.models import CONFIRM, CurvePoint, Run, Search, Study
from service.database.queries.best import TrialSummary, best_run_id, spread_of, summarize, test_metric
from service.database.queries.lookup import find_study
from service.database.retry import REQUEST, retried
from service.models import ComparisonRow, ComparisonView, PairView, RateView, TargetView
from tasks.engine.protocol import Cost
from tasks.errors import TaskError

MAX_EXPECTED = 1000
"""Trials up to which the expected best is told: longer curves say nothing more, and cost the square of their length."""


@retried(REQUEST)
def comparison(engine: Engine, study: str, *, test: SignificanceTest = SignificanceTest.WELCH) -> ComparisonView:
    """The optimizers of a study, best first; those without a complete trial come last and have no rank.

    An optimizer is represented by its best confirmed trial, by mean validation over the confirm seeds; before anything
    is confirmed by the best value of the search.

    Raises:
        StudyNotFoundError: no study has this id or name.

    Args:
        test: how optimizers are compared: Welch's t, or Wilcoxon on runs that share a seed.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        query = select(Search, best_run_id()).join(Search.study).where(Search.study_id == row.id)
        searches = [(search, best) for search, best in session.execute(query.order_by(Search.position))]
        chosen = _chosen_trials(session, row, searches)
        counts = _counts(session, row)
        values = _complete_values(session, row)
        targets = _targets(session, row, chosen)
        rows = {
            search.label: _row(
                search,
                chosen.get(search.id),
                counts.get(search.id, _NO_RUNS),
                target=targets.get(search.id),
                expected_best=expected_best_curve(values[search.id][:MAX_EXPECTED], direction=row.direction),
                test_metric=test_metric(row.metric),
            )
            for search, _ in searches
        }
        scores = {search.label: chosen[search.id].score if search.id in chosen else None for search, _ in searches}
        ranked = _ranked(rows, scores, row.direction)
        confirmed = {search.label: chosen[search.id] for search, _ in searches if search.id in chosen}
        samples = {one.label: confirmed[one.label].counted for one in ranked if _is_confirmed(confirmed.get(one.label))}
        return ComparisonView(
            **{**row.columns(), "study": row.name},
            complete=row.state == StudyState.COMPLETED,
            rows=ranked,
            pairs=_pairs(samples, direction=row.direction, test=test),
        )


def _is_confirmed(summary: TrialSummary | None) -> bool:
    return summary is not None and summary.confirmed


def _row(search: Search, summary: TrialSummary | None, counts: Mapping[str, Any], **others: Any) -> ComparisonRow:
    n_diverged, n_judged = counts["n_diverged"], counts["n_judged"]
    diverged = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED)
    outcomes = [diverged] * n_diverged + [RunOutcome(state=RunState.COMPLETE)] * (n_judged - n_diverged)
    nothing = spread_of([])
    known = {"trial": None, "settings": None, "search_value": None, "validation": nothing, "test": nothing}
    return ComparisonRow(
        **{**search.columns(), **counts, **(known if summary is None else summary.shown), **others},
        rank=None,
        divergence=RateView.model_validate(divergence_rate(outcomes)),
    )


def _ranked(
    rows: Mapping[str, ComparisonRow], scores: Mapping[str, float | None], direction: Direction
) -> list[ComparisonRow]:
    """Best first; equal ones share a rank (1, 2, 2, 4); those without a score come last, unranked."""
    scored = {label: score for label, score in scores.items() if score is not None}
    ranks = {
        label: 1 + sum(direction.is_better(other, score) for other in scored.values())
        for label, score in scored.items()
    }
    ranked = [
        rows[label].model_copy(update={"rank": ranks[label]})
        for label in direction.best_first(scored, lambda label: scored[label])
    ]
    return ranked + [row for label, row in rows.items() if label not in scored]


def _counts(session: Session, study: Study) -> dict[int, Mapping[str, Any]]:
    """Of each search: its trials by how they ended, and the cost of all its runs, by the names of the view."""
    of_search, failed = Run.stage == Stage.SEARCH, Run.state == RunState.FAIL
    judged = Run.state.in_((RunState.COMPLETE, RunState.PRUNED)) | Run.failure.in_(
        (FailureKind.DIVERGED, FailureKind.NO_METRIC)
    )
    counted = {
        "n_trials": of_search,
        "n_complete": of_search & (Run.state == RunState.COMPLETE),
        "n_pruned": of_search & (Run.state == RunState.PRUNED),
        "n_failed": of_search & failed,
        "n_diverged": of_search & (Run.failure == FailureKind.DIVERGED),
        "n_judged": of_search & judged,
    }
    query = (
        select(
            Run.search_id,
            *(func.count().filter(which).label(name) for name, which in counted.items()),
            func.coalesce(func.sum(Run.n_epochs).filter(of_search), 0).label("n_epochs"),
            *(_total(field.name).label(field.name) for field in fields(Cost)),
        )
        .join(Run.search)
        .where(Search.study_id == study.id)
        .group_by(Run.search_id)
    )
    return {row.search_id: row._asdict() for row in session.execute(query)}


def _total(name: str) -> ColumnElement[Any]:
    column = getattr(Run, name)
    return func.sum(column) if Cost.adds_up(name) else func.max(column)


_NO_RUNS: Mapping[str, Any] = {
    **dict.fromkeys(("n_trials", "n_complete", "n_pruned", "n_failed", "n_diverged", "n_judged", "n_epochs"), 0),
    **vars(Cost()),
}


def _complete_values(session: Session, study: Study) -> dict[int, list[float]]:
    query = (
        select(Run.search_id, Run.value)
        .join(Run.search)
        .where(Search.study_id == study.id, Run.stage == Stage.SEARCH, Run.state == RunState.COMPLETE)
    )
    values: dict[int, list[float]] = defaultdict(list)
    for search_id, value in session.execute(query):
        if value is not None:
            values[search_id].append(value)
    return values


def _chosen_trials(
    session: Session, study: Study, searches: Sequence[tuple[Search, int | None]]
) -> dict[int, TrialSummary]:
    """By search, the trial that represents the optimizer."""
    confirm: dict[tuple[int, int], list[Run]] = defaultdict(list)
    query = select(Run).join(Run.search).where(Search.study_id == study.id, Run.stage == CONFIRM)
    for run in session.execute(query).scalars():
        confirm[run.search_id, run.trial_number].append(run)
    chosen: dict[int, TrialSummary] = {}
    for search, best in searches:
        numbers = [number for search_id, number in confirm if search_id == search.id]
        candidates = session.execute(
            select(Run).where(
                Run.search_id == search.id,
                Run.stage == Stage.SEARCH,
                (Run.id == best) | Run.trial_number.in_(numbers),
            )
        ).scalars()
        summaries = [
            summarize(run, confirm[run.search_id, run.trial_number], metric=study.metric) for run in candidates
        ]
        if summaries:
            chosen[search.id] = _first(summaries, direction=study.direction)
    return chosen


def _first(summaries: Iterable[TrialSummary], *, direction: Direction) -> TrialSummary:
    """Confirmed before unconfirmed, better before worse, earlier before later."""

    def key(summary: TrialSummary) -> tuple[bool, bool, float, int]:
        cost = 0.0 if summary.score is None else direction.cost(summary.score)
        return not summary.confirmed, summary.score is None, cost, summary.run.trial_number

    return min(summaries, key=key)


def _pairs(
    confirm_runs: Mapping[str, Sequence[Run]], *, direction: Direction, test: SignificanceTest
) -> list[PairView]:
    """Every two optimizers compared.

    Args:
        confirm_runs: by label, in the order wanted, the runs of the trial that represents the optimizer.
    """
    samples: dict[str, dict[Hashable, float]] = {
        label: {run.seed: run.value for run in runs if run.state == RunState.COMPLETE and run.value is not None}
        for label, runs in confirm_runs.items()
    }
    confirmed = {label: values for label, values in samples.items() if values}
    found = compare_all(confirmed, direction=direction, test=test)
    return [PairView.model_validate({**vars(pair), **vars(pair.result)}) for pair in found]


def _targets(session: Session, study: Study, chosen: Mapping[int, TrialSummary]) -> dict[int, TargetView]:
    """By search, when the runs of the chosen trial first reached the target; those that are not finished count not."""
    target = _target_of(study)
    if target is None:
        return {}
    runs = {search_id: [run for run in one.counted if run.state.is_finished] for search_id, one in chosen.items()}
    curves: dict[int, list[Point]] = {run.id: [] for found in runs.values() for run in found}
    query = (
        select(CurvePoint.run_id, CurvePoint.epoch, CurvePoint.step, CurvePoint.value, CurvePoint.train_s)
        .where(CurvePoint.run_id.in_(curves))
        .order_by(CurvePoint.run_id, CurvePoint.epoch)
    )
    for run_id, epoch, step, value, train_s in session.execute(query):
        curves[run_id].append(Point(epoch=epoch, step=step, value=value, metrics={}, cost=Cost(train_s=train_s)))
    return {
        search_id: TargetView.model_validate(
            time_to_target([curves[run.id] for run in found], target=target, direction=study.direction).to_json()
        )
        for search_id, found in runs.items()
        if found
    }


def _target_of(study: Study) -> float | None:
    """The study's own target, or else the task's for its default metric."""
    stated: float | None = study.definition["budget"].get("target")
    if stated is not None:
        return stated
    try:
        info = tasks.registry.get(study.task)
    except TaskError:  # a study may outlive the installation of its task
        return None
    return info.target_value if study.metric == info.default_metric else None
