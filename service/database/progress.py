"""Updates the rows of a run from its worker's reports, within a transaction that holds the study's lease.

The caller (`service.database.store`) owns the transaction and records the events (`service.database.events`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, case, delete, insert, literal, select, update
from sqlalchemy.orm import Session

from search.records import AttemptStart, Point, RunOutcome, changed_points
from search.states import AttemptState
from service.database.models import Attempt, CurvePoint, Run
from service.database.types import UtcDateTime


def describe(session: Session, run: Run, start: AttemptStart) -> None:
    """Record where the run's current attempt runs, if it has not ended."""
    _change_open(session, run, asdict(start), Attempt.attempt == run.attempt)


def add_points(session: Session, run: Run, points: Sequence[Point]) -> list[Point]:
    """Add points to the run's curve and their cost to its cost; returns those that were new."""
    stored = []
    if any(point.epoch <= run.epoch for point in points):
        query = select(CurvePoint).where(
            CurvePoint.run_id == run.id, CurvePoint.epoch.in_([point.epoch for point in points])
        )
        stored = [row.record(Point) for row in session.execute(query).scalars()]
    new = changed_points(points, stored=stored)
    if not new:
        return new
    if stored:
        again = CurvePoint.epoch.in_([point.epoch for point in new])
        session.execute(delete(CurvePoint).where(CurvePoint.run_id == run.id, again))
    session.execute(insert(CurvePoint), [{"run_id": run.id, **_columns(point)} for point in new])
    if new[-1].epoch > run.epoch:
        run.epoch, run.step = new[-1].epoch, new[-1].step
    run.cost = sum((point.cost for point in new), run.cost)
    run.n_epochs += len(new) if run.attempt else 0
    return new


def _columns(point: Point) -> dict[str, Any]:
    values = asdict(point)
    cost: dict[str, Any] = values.pop("cost")
    return values | cost


def close(
    session: Session,
    run: Run,
    state: AttemptState,
    *,
    error: str | None,
    at: datetime,
    start: AttemptStart | None = None,
) -> None:
    """End the run's current attempt; a RUNNING run has one.

    Args:
        start: where it ran, if that was not reported before.
    """
    ended = {"state": state, "error": error, "finished_at": attempt_end(at)}
    _change_open(session, run, ended if start is None else ended | asdict(start))


def attempt_end(at: datetime) -> ColumnElement[datetime]:
    """SQL: when an attempt ended, not before its start: the clock may have been set back in between."""
    return case((Attempt.started_at > at, Attempt.started_at), else_=literal(at, UtcDateTime))


def finish(run: Run, outcome: RunOutcome, *, at: datetime) -> None:
    """Write the run's end into its row."""
    run.state, run.value, run.failure = outcome.state, outcome.value, outcome.failure
    run.error, run.test_metrics = outcome.error, dict(outcome.test_metrics)
    run.finished_at = at


def _change_open(session: Session, run: Run, values: Mapping[str, Any], *where: ColumnElement[bool]) -> None:
    session.execute(
        update(Attempt)
        .where(Attempt.run_id == run.id, Attempt.state == AttemptState.RUNNING, *where)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
