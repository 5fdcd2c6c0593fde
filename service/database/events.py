"""Events: what happened, in the order in which it was committed. Written with the change, for followers.

An event's id is larger than every id that a reader could have seen before, so that reading "everything after id n"
misses nothing. SQLite has one writer at a time. PostgreSQL's sequences do not guarantee it: an id that was drawn early
may be committed late. So events are written when their transaction commits, under a lock held to the end of the commit.

Events are for following a study; the other tables have the state. `prune` deletes old events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, cast

from sqlalchemy import BindParameter, Engine, Table, Text, bindparam, delete, event, func, insert, select, true
from sqlalchemy import type_coerce as coerce
from sqlalchemy.orm import Session

from admeta.client.models.base import finite_or_none
from search.records import Point
from search.states import Stage, StudyState
from service.database.engine import reading, writing
from service.database.models import Event, Run, Study
from service.database.retry import REQUEST, retried

KEEP = timedelta(hours=24)
KEEP_ROWS = 200_000
"""What `prune` leaves: one day, and at most this many rows (about 80 MB)."""

_TABLE = cast(Table, Event.__table__)
_LOCK_KEY = 0x61646D657476
_MAX_HANG = "15s"
"""The server then ends the session of a writer that hangs while it holds the lock, which stops all others."""
_HANG: BindParameter[str] = bindparam("hang", callable_=lambda: _MAX_HANG)
_LOCK = select(
    func.set_config("idle_in_transaction_session_timeout", _HANG, true()), func.pg_advisory_xact_lock(_LOCK_KEY)
).subquery("lock")
_COLUMNS = (_TABLE.c.at, _TABLE.c.study_id, _TABLE.c.kind, _TABLE.c.data)
_INSERT_UNDER_LOCK = insert(_TABLE).from_select(
    _COLUMNS, select(*(bindparam(column.name, type_=column.type) for column in _COLUMNS)).select_from(_LOCK)
)
"""For PostgreSQL: a row's id is drawn after the lock was taken."""
_PENDING = "admeta_events"
_PRUNE_BATCH = 5000


class EventKind(StrEnum):
    """The kinds of events. `trial.…` is about a trial's run of stage search, `run.…` about another one."""

    STUDY_CREATED = "study.created"
    STUDY_STATE = "study.state"
    STUDY_EXTENDED = "study.extended"  # a study that had ended goes on; its state follows as another event
    STUDY_DELETED = "study.deleted"
    TRIAL_CREATED = "trial.created"
    TRIAL_STARTED = "trial.started"
    TRIAL_WAITING = "trial.waiting"  # an attempt ended, another follows
    TRIAL_FINISHED = "trial.finished"
    RUN_CREATED = "run.created"
    RUN_STARTED = "run.started"
    RUN_WAITING = "run.waiting"
    RUN_FINISHED = "run.finished"
    METRIC = "metric"  # points were added to a run's curve


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    """One event as it is sent: `data` is JSON text."""

    id: int
    at: datetime
    study_id: str
    kind: str
    data: str

    @property
    def ends_study(self) -> bool:
        """Whether it is the last one of its study: the end of a stream that follows the study."""
        if self.kind == EventKind.STUDY_DELETED:
            return True
        return self.kind == EventKind.STUDY_STATE and StudyState(json.loads(self.data)["state"]).is_terminal


def record_study(session: Session, kind: EventKind, row: Study, **more: Any) -> None:
    """Record an event of a study, with the row's state and further fields."""
    record(session, row.id, kind, {"name": row.name, "state": row.state.value, "reason": row.reason, **more})


def record_run(session: Session, change: str, run: Run, *, study_id: str, label: str, **more: Any) -> None:
    """Record an event of a run, with the row's state.

    Args:
        change: created, started, waiting or finished.
        label: of the run's search.
        more: further fields of the event.
    """
    noun = "trial" if run.stage == Stage.SEARCH else "run"
    data = _run_data(run, label) | {"state": run.state.value, "attempt": run.attempt} | more
    if run.state.is_finished:
        data |= {"value": finite_or_none(run.value), "failure": run.failure, "test_metrics": _metrics(run.test_metrics)}
    record(session, study_id, EventKind(f"{noun}.{change}"), data)


def record_points(session: Session, run: Run, points: Iterable[Point], *, study_id: str, label: str) -> None:
    """Record one event for new points of a run's curve."""
    content = [
        {
            "epoch": point.epoch,
            "step": point.step,
            "value": finite_or_none(point.value),
            "metrics": _metrics(point.metrics),
            "lr": finite_or_none(point.lr),
        }
        for point in sorted(points, key=lambda point: point.epoch)
    ]
    record(session, study_id, EventKind.METRIC, _run_data(run, label) | {"points": content})


def record(session: Session, study_id: str, kind: EventKind, data: Mapping[str, Any]) -> None:
    """Write an event when the session's transaction commits, and only then."""
    pending = session.info.get(_PENDING)
    if pending is None:
        pending = session.info[_PENDING] = []
        event.listen(session, "before_commit", _write_pending)
    pending.append({"study_id": study_id, "kind": kind.value, "data": dict(data), "at": datetime.now(UTC)})


def _write_pending(session: Session) -> None:
    pending = session.info[_PENDING]
    if not pending:
        return
    session.flush()  # before the lock, so that others do not wait for it
    on_postgresql = session.get_bind().dialect.name == "postgresql"
    session.execute(_INSERT_UNDER_LOCK if on_postgresql else insert(_TABLE), pending)
    session.info[_PENDING] = []


@retried(REQUEST)
def read_events(
    engine: Engine, *, after: int, until: int | None = None, study_id: str | None = None, limit: int = 500
) -> list[StoredEvent]:
    """Events with after < id ≤ until, oldest first; at most `limit`."""
    query = select(Event.id, Event.at, Event.study_id, Event.kind, coerce(Event.data, Text))
    query = query.where(Event.id > after).order_by(Event.id).limit(limit)
    if until is not None:
        query = query.where(Event.id <= until)
    if study_id is not None:
        query = query.where(Event.study_id == study_id)
    with reading(engine) as session:
        return [
            StoredEvent(id=id_, at=at, study_id=study, kind=kind, data=data)
            for id_, at, study, kind, data in session.execute(query)
        ]


@retried(REQUEST)
def kept_range(engine: Engine) -> tuple[int, int]:
    """The oldest and the newest id; (1, 0) where there is no event."""
    with reading(engine) as session:
        oldest, newest = session.execute(select(func.min(Event.id), func.max(Event.id))).one()
    return (1, 0) if newest is None else (oldest, newest)


@retried(REQUEST)
def prune(engine: Engine, *, keep: timedelta = KEEP, keep_rows: int = KEEP_ROWS) -> int:
    """Delete events older than `keep`, and all but about `keep_rows`; the newest one always stays.

    Returns:
        How many were deleted, in transactions of a few thousand, so that no writer waits long.
    """
    n_pruned = 0
    _, newest = kept_range(engine)
    is_old = (Event.at < datetime.now(UTC) - keep) | (Event.id <= newest - keep_rows)
    while True:
        with reading(engine) as session:
            oldest = select(Event.id, is_old & (Event.id < newest)).order_by(Event.id).limit(_PRUNE_BATCH)
            gone = [id_ for id_, goes in session.execute(oldest) if goes]
        if gone:
            with writing(engine) as session:
                session.execute(delete(Event).where(Event.id <= gone[-1]))
            n_pruned += len(gone)
        if len(gone) < _PRUNE_BATCH:
            return n_pruned


def _run_data(run: Run, label: str) -> dict[str, Any]:
    return {"run": run.id, "label": label, "trial": run.trial_number, "stage": run.stage.value, "seed": run.seed}


def _metrics(metrics: Mapping[str, float] | None) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in (metrics or {}).items()}
