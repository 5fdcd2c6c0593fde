"""The lease by which one driver has a study: when it is free, writing under it, and closing what its holder left.

Owns the rows of a run that a worker's reports change. Its callers record the events (`service.database.events`).

A lease's times are of a clock that all drivers of the study share: the server's on PostgreSQL, the host's with SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages._rdb import models as optuna_models
from optuna.trial import TrialState
from sqlalchemy import (
    ColumnElement,
    DateTime,
    Engine,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from search.errors import LeaseLostError, SearchError
from search.records import AttemptStart, Lease, Point, RunOutcome, changed_points
from search.states import TERMINAL_STATES, AttemptState, FailureKind, RunState
from service.database import events
from service.database.engine import reading, writing
from service.database.models import RUN_IS_UNFINISHED, Attempt, CurvePoint, Run, Search, Study, UtcDateTime
from service.database.retry import REQUEST, retried

if TYPE_CHECKING:
    from service.database.store import SqlStore

LONGEST_LEASE_S = 120.0
_OWNER = select(Study.lease_owner).where(Study.id == bindparam("study")).with_for_update()
_OWNER_AND_RUN = (
    select(Study.lease_owner, Run)
    .join(Search, Search.study_id == Study.id)
    .join(Run, Run.search_id == Search.id)
    .where(Study.id == bindparam("study"), Run.id == bindparam("run"))
    .with_for_update(of=(Study, Run))
)


def lease_is_free(engine: Engine) -> ColumnElement[bool]:
    """SQL: nobody holds the study, or its lease has expired.

    A lease that ends later than any taken now could was taken before the clock was set back: it has no known end.
    """
    expires = Study.lease_expires_at
    return or_(
        Study.lease_owner.is_(None),
        expires < _now_plus(engine, timedelta()),
        expires > _now_plus(engine, timedelta(seconds=LONGEST_LEASE_S)),
    )


def lease_end(engine: Engine, ttl_s: float) -> ColumnElement[datetime]:
    """SQL: the end of a lease that is taken now, for at most LONGEST_LEASE_S."""
    assert ttl_s < LONGEST_LEASE_S
    return _now_plus(engine, timedelta(seconds=ttl_s))


def _now_plus(engine: Engine, delay: timedelta) -> ColumnElement[datetime]:
    if engine.dialect.name == "postgresql":
        clock = func.clock_timestamp(type_=DateTime(timezone=True))  # now() would be when the transaction began
        return clock + delay
    return literal(datetime.now(UTC) + delay, UtcDateTime)


@contextmanager
def leased(engine: Engine, lease: Lease) -> Iterator[Session]:
    """A transaction in which no other driver can take the study.

    Raises:
        LeaseLostError: another driver holds it.
    """
    with writing(engine) as session:
        if _owner(session, lease) != lease.owner:
            raise lease_lost(lease)
        yield session


@contextmanager
def leased_run(engine: Engine, lease: Lease, run_id: int) -> Iterator[tuple[Session, Run]]:
    """As `leased`, with a run of the study, read and locked by the same statement.

    Raises:
        LeaseLostError: another driver holds the study.
        SearchError: the study has no such run.
    """
    with writing(engine) as session:
        found = session.execute(_OWNER_AND_RUN, {"study": lease.study_id, "run": run_id}).one_or_none()
        owner = _owner(session, lease) if found is None else found[0]
        if owner != lease.owner:
            raise lease_lost(lease)
        if found is None:
            raise SearchError(f"study {lease.study_id} has no run with id {run_id}")
        yield session, found[1]


def lease_lost(lease: Lease) -> LeaseLostError:
    """The error for a lease that another driver holds."""
    return LeaseLostError(f"driver '{lease.owner}' no longer holds study {lease.study_id}; it must stop")


def _owner(session: Session, lease: Lease) -> str | None:
    return session.execute(_OWNER, {"study": lease.study_id}).scalar_one_or_none()


@retried(REQUEST)
def unclosed_studies(engine: Engine, *, limit: int = 100) -> list[str]:
    """Ids of the ended studies whose driver is gone and left something unfinished: see `close_unfinished`."""
    unfinished = select(Search.study_id).join(Run, Run.search_id == Search.id).where(RUN_IS_UNFINISHED)
    query = (
        select(Study.id)
        .where(
            Study.state.in_(TERMINAL_STATES),
            lease_is_free(engine),
            or_(Study.lease_owner.is_not(None), Study.id.in_(unfinished)),
        )
        .order_by(Study.created_at)
        .limit(limit)
    )
    with reading(engine) as session:
        return list(session.execute(query).scalars())


def close_unfinished(store: SqlStore, study_id: str) -> bool:
    """End the runs and trials of an ended study that has no driver: FAIL, cancelled. A live driver does it itself.

    The study's definition is not read: a later rule may refuse it.

    Returns:
        False where the study has not ended, or a driver still holds it.
    """
    ended = Study.state.in_(TERMINAL_STATES), lease_is_free(store.engine)
    with writing(store.engine) as session:
        row = session.execute(select(Study).where(Study.id == study_id, *ended).with_for_update()).scalar_one_or_none()
        if row is None:
            return False
        row.lease_owner, row.lease_expires_at = None, None  # an old driver that still lives can write no more
        _close_runs(session, study_id, error=f"the study is {row.state}")
        trials = _open_trials(session, study_id)
    for trial_id in trials:
        try:
            store.optuna_storage().set_trial_state_values(trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            continue  # its driver ended it meanwhile
    return True


def _close_runs(session: Session, study_id: str, *, error: str) -> None:
    now = datetime.now(UTC)
    unfinished = select(Run, Search.label).join(Run.search)
    unfinished = unfinished.where(Search.study_id == study_id, RUN_IS_UNFINISHED)
    session.execute(
        update(Attempt)
        .where(Attempt.run_id.in_(unfinished.with_only_columns(Run.id)), Attempt.state == AttemptState.RUNNING)
        .values(state=AttemptState.LOST, error=error, finished_at=attempt_end(now))
        .execution_options(synchronize_session=False)
    )
    for run, label in session.execute(unfinished):
        run.state, run.failure = RunState.FAIL, FailureKind.CANCELLED
        run.error, run.finished_at = error, now
        events.record_run(session, "finished", run, study_id=study_id, label=label, error=error)


def _open_trials(session: Session, study_id: str) -> list[int]:
    """Optuna's ids of the study's unfinished trials; read with SQL, because Optuna would load all trials."""
    trial, study = optuna_models.TrialModel, optuna_models.StudyModel
    query = (
        select(trial.trial_id)
        .join(study, study.study_id == trial.study_id)
        .where(
            study.study_name.in_(select(Search.optuna_name).where(Search.study_id == study_id)),
            trial.state.in_((TrialState.WAITING, TrialState.RUNNING)),
        )
    )
    return list(session.execute(query).scalars())


def describe_attempt(session: Session, run: Run, start: AttemptStart) -> None:
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


def close_attempt(
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


def finish_run(run: Run, outcome: RunOutcome, *, at: datetime) -> None:
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
