"""The comparison of a study's optimizers: each one's best trial with its evidence, and what the search cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from search.analysis import expected_best_curve
from search.records import RunOutcome
from search.states import Direction, FailureKind, RunState, SignificanceTest, Stage, StudyState
from service.database.engine import reading
from service.database.lookup import find_study
from service.database.models import RUN_CONFIRMS, Run, Search, Study
from service.database.queries import verdicts
from service.database.queries.evidence import Evidence, test_metric, weigh
from service.database.queries.winners import best_run_id
from service.database.retry import REQUEST, retried
from service.models import ComparisonRow, ComparisonView, SpreadView, TargetView

MAX_EXPECTED = 1000
"""Trials up to which the expected best is told: longer curves say nothing more, and cost the square of their length."""
_NOTHING = SpreadView(mean=None, std=None, n=0, n_failed=0)


@retried(REQUEST)
def comparison(engine: Engine, study: str, *, test: SignificanceTest = SignificanceTest.WELCH) -> ComparisonView:
    """The optimizers of a study, best first; those without a complete trial come last and have no rank.

    An optimizer stands by its best confirmed trial, by mean validation over the confirm seeds; before anything is
    confirmed by the best value of the search.

    Raises:
        StudyNotFoundError: no study has this id or name.

    Args:
        test: how optimizers are compared: Welch's t, or Wilcoxon on runs that share a seed.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        searches = session.execute(
            select(Search, best_run_id())
            .join(Study, Study.id == Search.study_id)
            .where(Search.study_id == row.id)
            .order_by(Search.position)
        ).all()
        winners = _winners(session, row, [(search, best) for search, best in searches])
        costs = _costs(session, row)
        values = _complete_values(session, row)
        targets = _targets(session, row, winners)
    scored = [
        (
            None if (winner := winners.get(search.id)) is None else winner.score,
            _row(row, search, winner, costs[search.id], values[search.id]).model_copy(
                update={"target": targets.get(search.id)}
            ),
        )
        for search, _ in searches
    ]
    ranked = _ranked(scored, direction=row.direction)
    confirmed = {search.label: winners[search.id].counted for search, _ in searches if _is_confirmed(winners, search)}
    return ComparisonView(
        study=row.name,
        task=row.task,
        metric=row.metric,
        direction=row.direction,
        complete=row.state == StudyState.COMPLETED,
        rows=ranked,
        pairs=verdicts.pairs(
            {found.label: confirmed[found.label] for found in ranked if found.label in confirmed},
            direction=row.direction,
            test=test,
        ),
    )


def _is_confirmed(winners: Mapping[int, Evidence], search: Search) -> bool:
    return search.id in winners and winners[search.id].confirmed


def _targets(session: Session, study: Study, winners: Mapping[int, Evidence]) -> dict[int, TargetView]:
    target = verdicts.target_of(study)
    if target is None:
        return {}
    runs = {search_id: winner.counted for search_id, winner in winners.items()}
    return verdicts.times_to_target(session, runs, target=target, direction=study.direction)


@dataclass(kw_only=True)
class _Cost:
    """Counts and seconds of one search. Counts are of trials, seconds of all runs; an outcome for each trial."""

    n_trials: int = 0
    n_complete: int = 0
    n_pruned: int = 0
    n_failed: int = 0
    n_diverged: int = 0
    train_s: float = 0.0
    gpu_s: float = 0.0
    optimizer_s: float = 0.0
    outcomes: list[RunOutcome] = field(default_factory=list)


def _costs(session: Session, study: Study) -> dict[int, _Cost]:
    query = (
        select(
            Run.search_id,
            Run.stage,
            Run.state,
            Run.failure,
            func.count(),
            func.sum(Run.train_s),
            func.sum(Run.gpu_s),
            func.sum(Run.optimizer_s),
        )
        .join(Search, Search.id == Run.search_id)
        .where(Search.study_id == study.id)
        .group_by(Run.search_id, Run.stage, Run.state, Run.failure)
    )
    costs: dict[int, _Cost] = defaultdict(_Cost)
    for search_id, stage, state, failure, n, train_s, gpu_s, optimizer_s in session.execute(query):
        cost = costs[search_id]
        cost.train_s += train_s
        cost.gpu_s += gpu_s
        cost.optimizer_s += optimizer_s
        if stage == Stage.SEARCH:
            cost.n_trials += n
            cost.n_complete += n if state == RunState.COMPLETE else 0
            cost.n_pruned += n if state == RunState.PRUNED else 0
            cost.n_failed += n if state == RunState.FAIL else 0
            cost.n_diverged += n if failure == FailureKind.DIVERGED else 0
            cost.outcomes += [RunOutcome(state=state, failure=failure)] * n
    return costs


def _complete_values(session: Session, study: Study) -> dict[int, list[float]]:
    query = (
        select(Run.search_id, Run.value)
        .join(Search, Search.id == Run.search_id)
        .where(
            Search.study_id == study.id,
            Run.stage == Stage.SEARCH,
            Run.state == RunState.COMPLETE,
        )
    )
    values: dict[int, list[float]] = defaultdict(list)
    for search_id, value in session.execute(query):
        if value is not None:
            values[search_id].append(value)
    return values


def _winners(session: Session, study: Study, searches: Sequence[tuple[Search, int | None]]) -> dict[int, Evidence]:
    """The trial by which each search stands."""
    confirm: dict[tuple[int, int], list[Run]] = defaultdict(list)
    query = select(Run).join(Search, Search.id == Run.search_id)
    for run in session.execute(query.where(Search.study_id == study.id, RUN_CONFIRMS)).scalars():
        confirm[run.search_id, run.trial_number].append(run)
    winners: dict[int, Evidence] = {}
    for search, best in searches:
        numbers = [number for search_id, number in confirm if search_id == search.id]
        candidates = session.execute(
            select(Run).where(
                Run.search_id == search.id,
                Run.stage == Stage.SEARCH,
                (Run.id == best) | Run.trial_number.in_(numbers),
            )
        ).scalars()
        weighed = [weigh(run, confirm[run.search_id, run.trial_number], metric=study.metric) for run in candidates]
        if weighed:
            winners[search.id] = _first(weighed, direction=study.direction)
    return winners


def _first(weighed: Iterable[Evidence], *, direction: str) -> Evidence:
    """Confirmed before unconfirmed, better before worse, earlier before later."""
    cost = Direction(direction).cost

    def key(evidence: Evidence) -> tuple[bool, bool, float, int]:
        score = evidence.score
        return (
            not evidence.confirmed,
            score is None,
            0.0 if score is None else cost(score),
            evidence.run.trial_number,
        )

    return min(weighed, key=key)


def _row(study: Study, search: Search, winner: Evidence | None, cost: _Cost, values: Sequence[float]) -> ComparisonRow:
    return ComparisonRow(
        label=search.label,
        optimizer=search.optimizer,
        rank=None,
        trial=None if winner is None else winner.run.trial_number,
        settings=None if winner is None else {**search.fixed, **winner.run.params},
        search_value=None if winner is None else winner.run.value,
        validation=_NOTHING if winner is None else winner.validation,
        test=_NOTHING if winner is None else winner.test,
        test_metric=test_metric(study.metric),
        n_trials=cost.n_trials,
        n_complete=cost.n_complete,
        n_pruned=cost.n_pruned,
        n_failed=cost.n_failed,
        n_diverged=cost.n_diverged,
        divergence=verdicts.rate(cost.outcomes),
        target=None,
        expected_best=expected_best_curve(values[:MAX_EXPECTED], direction=study.direction),
        train_s=cost.train_s,
        gpu_s=cost.gpu_s,
        optimizer_s=cost.optimizer_s,
    )


def _ranked(scored: Sequence[tuple[float | None, ComparisonRow]], *, direction: str) -> list[ComparisonRow]:
    """Best first; equal ones share a rank (1, 2, 2, 4); those without a score come last, unranked."""
    cost = Direction(direction).cost
    with_score = sorted(((cost(s), row) for s, row in scored if s is not None), key=lambda pair: pair[0])
    ranked = [
        row.model_copy(update={"rank": 1 + sum(other < score for other, _ in with_score)}) for score, row in with_score
    ]
    return ranked + [row for score, row in scored if score is None]
