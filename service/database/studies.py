"""What the service does to studies: create, cancel, pause, resume, find those that need a driver, close what is left.

Owns the states a request may bring about. Drivers see them when they next renew their lease. All functions take an
engine, hold no state and wait a few seconds for a database that is away.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Engine, Select, case, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from search.definition import StudyDefinition
from search.errors import StudyConflictError
from search.states import AttemptState, FailureKind, RunState, StudyState
from service.database import events, idempotency, progress
from service.database.engine import reading, writing
from service.database.errors import QueueFullError
from service.database.events import EventKind
from service.database.idempotency import Answer, Once
from service.database.lease import lease_is_free
from service.database.models import RUN_IS_UNFINISHED, Run, Search, Study
from service.database.queries import get_study_view, get_trial
from service.database.queries.lookup import by_name, find_study
from service.database.queries.studies import study_view
from service.database.retry import REQUEST, retried
from service.models import StudyChanges, StudyView, TrialView

_QUEUE_LOCK_KEY = 0x61646D657471  # on PostgreSQL: counts the queue and adds to it, one submission at a time


@retried(REQUEST)
def create_study(
    engine: Engine, definition: StudyDefinition, *, max_queued: int | None = None, once: Once | None = None
) -> tuple[StudyView, bool]:
    """Store a study with its searches, in one transaction; QUEUED until a driver takes it.

    Args:
        max_queued: refuse a new study where so many are QUEUED already; None: never.
        once: the request that asks for it, where it is to take effect once.

    Returns:
        The study, and whether it is new: the same definition under the same name is the study that exists.

    Raises:
        StudyConflictError: the name belongs to another definition.
        QueueFullError: see `max_queued`.
        AnsweredBeforeError, KeyReusedError: see `service.database.idempotency`.
    """
    try:
        return _create(engine, definition, max_queued=max_queued, once=once)
    except IntegrityError:  # somebody else created it, or was asked with the same key, since we looked
        return _create(engine, definition, max_queued=max_queued, once=once)


def _create(
    engine: Engine, definition: StudyDefinition, *, max_queued: int | None, once: Once | None
) -> tuple[StudyView, bool]:
    content = definition.to_json()
    digest = definition_sha256(content)
    with writing(engine) as session:
        idempotency.check(session, once)
        row = by_name(session, definition.name)
        is_new = row is None
        if row is None:
            if max_queued is not None:
                _check_queue(session, max_queued)
            row = _study_row(secrets.token_hex(6), definition, content, digest)
            session.add(row)
            session.flush()
            session.add_all(_search_rows(row.id, definition))
            session.flush()
            events.record_study(session, EventKind.STUDY_CREATED, row)
        elif row.definition_sha256 != digest and not _is_same(row.definition, definition):
            raise StudyConflictError(
                f"study '{definition.name}' exists with another definition (id {row.id}, {row.state}); "
                "choose another name, or submit exactly the same definition to get that study"
            )
        view = study_view(session, row)
        answer = Answer(status=201 if is_new else 200, location=f"/v1/studies/{row.id}", body=view.model_dump_json())
        idempotency.keep(session, once, answer)
    return view, is_new


def _is_same(stored: dict[str, Any], definition: StudyDefinition) -> bool:
    """Whether a stored definition means the same, though an older version wrote it without today's newer fields."""
    try:
        return StudyDefinition.model_validate(stored) == definition
    except ValidationError:
        return False


def _check_queue(session: Session, max_queued: int) -> None:
    if session.get_bind().dialect.name == "postgresql":  # SQLite has one writer at a time anyway
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _QUEUE_LOCK_KEY})
    queued = select(func.count()).where(Study.state == StudyState.QUEUED)
    n_queued = session.execute(queued).scalar_one()
    if n_queued >= max_queued:
        raise QueueFullError(
            f"{n_queued} studies are queued; the limit is {max_queued}.",
            hint="Submit it again when some have started, or cancel queued ones. "
            "The limit is ADMETA_MAX_QUEUED of the service.",
        )


def definition_sha256(content: dict[str, Any]) -> str:
    """Hash of a resolved definition; the order of keys and the spacing do not count."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@retried(REQUEST)
def request_cancel(engine: Engine, study: str, *, reason: str = "cancelled on request") -> StudyView:
    """Cancel at once, as far as SQL knows. Its driver stops the runs when it sees it; see also `close_unfinished`.

    Raises:
        StudyNotFoundError: no study has this id or name.
        StudyConflictError: it is COMPLETED, FAILED or CANCELLED already.
    """
    return _change(
        engine,
        study,
        allowed=(StudyState.QUEUED, StudyState.RUNNING, StudyState.PAUSED),
        verb="cancelled",
        target=lambda _row: StudyState.CANCELLED,
        reason=reason,
    )


@retried(REQUEST)
def request_pause(engine: Engine, study: str) -> StudyView:
    """Let no further run start; the driver checkpoints and stops those that run.

    Raises:
        StudyNotFoundError: no study has this id or name.
        StudyConflictError: it is neither QUEUED nor RUNNING.
    """
    return _change(
        engine,
        study,
        allowed=(StudyState.QUEUED, StudyState.RUNNING),
        verb="paused",
        target=lambda _row: StudyState.PAUSED,
    )


@retried(REQUEST)
def request_resume(engine: Engine, study: str) -> StudyView:
    """Go on with a paused study; a driver that still holds it does so at its next renewal.

    Raises:
        StudyNotFoundError: no study has this id or name.
        StudyConflictError: it is not PAUSED.
    """
    return _change(
        engine,
        study,
        allowed=(StudyState.PAUSED,),
        verb="resumed",
        target=lambda row: StudyState.QUEUED if row.started_at is None else StudyState.RUNNING,
    )


@retried(REQUEST)
def change_study(engine: Engine, study: str, changes: StudyChanges) -> StudyView:
    """Change a study's notes and tags, in whatever state it is.

    Raises:
        StudyNotFoundError: no study has this id or name.
    """
    with writing(engine) as session:
        row = find_study(session, study)
        row.notes = row.notes if changes.notes is None else changes.notes
        row.tags = row.tags if changes.tags is None else sorted(set(changes.tags))
    return get_study_view(engine, row.id)


@retried(REQUEST)
def request_cancel_trial(engine: Engine, study: str, label: str, number: int) -> TrialView:
    """End a trial's unfinished runs as cancelled, at once as far as SQL knows. Its driver then ends their workers.

    Raises:
        StudyNotFoundError, TrialNotFoundError: there is no such study or trial.
        StudyConflictError: the trial and its confirm runs have ended already.
    """
    view = get_trial(engine, study, label, number)
    with writing(engine) as session:
        found = find_study(session, study)
        row = session.get_one(Study, found.id, with_for_update=True, populate_existing=True)
        query = (
            select(Run)
            .join(Search, Search.id == Run.search_id)
            .where(Search.study_id == row.id, Search.label == label, Run.trial_number == number, RUN_IS_UNFINISHED)
        )
        runs = session.execute(query).scalars().all()
        if not runs:
            raise StudyConflictError(
                f"trial {number} of search '{label}' of study '{row.name}' is {view.state} and no run of it waits or "
                "trains; only such trials can be cancelled."
            )
        for run in runs:
            _cancel_run(session, run, study_id=row.id, label=label)
    return get_trial(engine, study, label, number)


def _cancel_run(session: Session, run: Run, *, study_id: str, label: str) -> None:
    now, error = datetime.now(UTC), "the trial was cancelled on request"
    progress.close(session, run, AttemptState.FAIL, error=error, at=now)
    run.state, run.failure, run.error, run.finished_at = RunState.FAIL, FailureKind.CANCELLED, error, now
    events.record_run(session, "finished", run, study_id=study_id, label=label, error=error)


@retried(REQUEST)
def runnable_studies(engine: Engine, *, limit: int = 100) -> list[str]:
    """Ids of the QUEUED and RUNNING studies that nobody drives, in the order in which they should start."""
    query = (
        select(Study.id)
        .where(Study.state.in_((StudyState.QUEUED, StudyState.RUNNING)), lease_is_free(engine))
        .order_by(Study.priority.desc(), Study.created_at, Study.id)
        .limit(limit)
    )
    return _ids(engine, query)


@retried(REQUEST)
def study_progress(engine: Engine, study_id: str) -> int:
    """A number that grows whenever the study gets anywhere: epochs stored and runs finished."""
    finished = case((Run.state.in_([state for state in RunState if state.is_finished]), 1), else_=0)
    query = (
        select(func.coalesce(func.sum(Run.epoch + finished), 0))
        .join(Search, Search.id == Run.search_id)
        .where(Search.study_id == study_id)
    )
    with reading(engine) as session:
        return int(session.execute(query).scalar_one())


def _study_row(study_id: str, definition: StudyDefinition, content: dict[str, Any], digest: str) -> Study:
    return Study(
        id=study_id,
        name=definition.name,
        task=definition.task.name,
        model=definition.task.model,
        metric=definition.objective.metric,
        direction=definition.objective.direction,
        origin=None if definition.task.init_from is None else str(definition.task.init_from),
        definition=content,
        definition_sha256=digest,
        priority=definition.priority,
        state=StudyState.QUEUED,
        reason=None,
        created_at=datetime.now(UTC),
        started_at=None,
        finished_at=None,
    )


def _search_rows(study_id: str, definition: StudyDefinition) -> list[Search]:
    return [
        Search(
            study_id=study_id,
            label=optimizer.label,
            position=position,
            optimizer=optimizer.name,
            optuna_name=f"{definition.name}/{optimizer.label}",
            fixed=dict(optimizer.fixed),
            n_trials=definition.n_trials_of(optimizer),
            n_confirm_runs=definition.n_confirm_runs_of(optimizer),
        )
        for position, optimizer in enumerate(definition.optimizers)
    ]


def _change(
    engine: Engine,
    study: str,
    *,
    allowed: tuple[StudyState, ...],
    verb: str,
    target: Callable[[Study], StudyState],
    reason: str | None = None,
) -> StudyView:
    with writing(engine) as session:
        found = find_study(session, study)
        row = session.get_one(Study, found.id, with_for_update=True, populate_existing=True)
        if row.state not in allowed:
            raise StudyConflictError(
                f"study '{row.name}' is {row.state}; only {_listed(allowed)} studies can be {verb}."
                + (" Submit it again under another name to start a new one." if row.state.is_terminal else "")
            )
        row.state, row.reason = target(row), reason
        if row.state.is_terminal:
            row.finished_at = datetime.now(UTC)
        events.record_study(session, EventKind.STUDY_STATE, row)
    return get_study_view(engine, row.id)


def _listed(states: Iterable[StudyState]) -> str:
    *first, last = [state.value for state in states]
    return f"{', '.join(first)} or {last}" if first else last


def _ids(engine: Engine, query: Select[str]) -> list[str]:
    with reading(engine) as session:
        return list(session.execute(query).scalars())
