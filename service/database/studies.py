"""What requests and the supervisor do with studies: create, cancel, pause, resume, delete, find those to drive.

A driver sees a changed state when it next renews its lease. The functions hold no state, and wait a few seconds for a
database that cannot be used.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from optuna.storages._rdb import models as optuna_models
from pydantic import ValidationError
from sqlalchemy import Engine, Select, case, delete, func, select, text
from sqlalchemy.orm import Session

from admeta.client.models import StudyChanges, StudyView, TrialView
from search.definition import StudyDefinition
from search.errors import StudyConflictError
from search.recipe import recipe_of
from search.states import FINISHED_STATES, AttemptState, FailureKind, RunState, Stage, StudyState
from service.database import events, idempotency
from service.database.engine import reading, writing
from service.database.errors import QueueFullError
from service.database.events import EventKind
from service.database.idempotency import Answer, IdempotencyKey
from service.database.lease import close_attempt, lease_is_free
from service.database.models import RUN_IS_UNFINISHED, Run, Search, Study
from service.database.queries import detectable, get_study_view, get_trial
from service.database.queries.lookup import by_name, find_study
from service.database.queries.studies import study_view
from service.database.retry import REQUEST, retried

_UNFINISHED = tuple(state for state in StudyState if not state.is_terminal)
_QUEUE_LOCK_KEY = 0x61646D657471  # on PostgreSQL: one submission at a time counts the queue and adds to it


@retried(REQUEST)
@idempotency.repeated_on_conflict
def create_study(
    engine: Engine, definition: StudyDefinition, *, max_queued: int | None = None, key: IdempotencyKey | None = None
) -> tuple[StudyView, bool]:
    """Store a study with its searches, in one transaction; QUEUED until a driver takes it.

    Args:
        max_queued: refuse a new study where so many are QUEUED already; None: never.
        key: the request's Idempotency-Key, if it has one.

    Returns:
        The study, and whether it is new: the same definition under the same name is the study that exists.

    Raises:
        StudyConflictError: the name belongs to another definition.
        QueueFullError: see `max_queued`.
        AnsweredBeforeError, KeyReusedError: see `service.database.idempotency`.
    """
    content = definition.to_json()
    digest = definition_sha256(content)
    can_show = detectable(engine, definition)
    with writing(engine) as session:
        idempotency.check(session, key)
        row = by_name(session, definition.name)
        is_new = row is None
        if row is None:
            if max_queued is not None:
                check_queue(session, max_queued)
            row = _study_row(definition, content, digest)
            session.add(row)
            session.flush()
            session.add_all(search_rows(row.id, definition))
            session.flush()
            events.record_study(session, EventKind.STUDY_CREATED, row)
        elif row.definition_sha256 != digest and not any(_is_same(one, definition) for one in _definitions_of(row)):
            raise StudyConflictError(
                f"study '{definition.name}' exists with another definition (id {row.id}, {row.state}); "
                "choose another name, or submit exactly the same definition to get that study"
            )
        view = study_view(session, row).model_copy(update={"detectable": can_show})
        answer = Answer(status=201 if is_new else 200, location=f"/v1/studies/{row.id}", body=view.model_dump_json())
        idempotency.keep(session, key, answer)
    return view, is_new


def check_released(session: Session, row: Study, engine: Engine) -> None:
    if session.execute(select(Study.id).where(Study.id == row.id, lease_is_free(engine))).first() is None:
        raise StudyConflictError(
            f"study '{row.name}' is {row.state}, but its driver is still stopping its runs; repeat the request "
            "in a few seconds."
        )


def _definitions_of(row: Study) -> list[dict[str, Any]]:
    """The study's definition, and those that it had before it was extended."""
    return [row.definition, *(one["definition"] for one in row.extensions)]


def _is_same(stored: dict[str, Any], definition: StudyDefinition) -> bool:
    """Whether a stored definition means the same, even if an older version wrote it, without the newer fields."""
    try:
        return StudyDefinition.model_validate(stored) == definition
    except ValidationError:
        return False


def check_queue(session: Session, max_queued: int) -> None:
    if session.get_bind().dialect.name == "postgresql":  # SQLite has one writer at a time anyway
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _QUEUE_LOCK_KEY})
    queued = select(func.count()).where(Study.state == StudyState.QUEUED)
    n_queued = session.execute(queued).scalar_one()
    if n_queued >= max_queued:
        raise QueueFullError(
            f"{n_queued} studies are queued; the limit is {max_queued}.",
            hint="Submit it again when some have started, or cancel queued ones. The limit is ADMETA_MAX_QUEUED.",
        )


def definition_sha256(content: dict[str, Any]) -> str:
    """Hash of a resolved definition; the order of keys and the spacing do not count."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@retried(REQUEST)
def request_cancel(engine: Engine, study: str) -> StudyView:
    """Set the study CANCELLED. Its driver stops the runs when it sees it; see also `lease.close_unfinished`.

    Raises:
        StudyNotFoundError: no study has this id or name.
        StudyConflictError: it is COMPLETED, FAILED or CANCELLED already.
    """
    target, reason = StudyState.CANCELLED, "cancelled on request"
    return _change(engine, study, _UNFINISHED, verb="cancelled", target=lambda _row: target, reason=reason)


@retried(REQUEST)
def request_pause(engine: Engine, study: str) -> StudyView:
    """Let no further run start; the driver checkpoints and stops those that run.

    Raises:
        StudyNotFoundError: no study has this id or name.
        StudyConflictError: it is neither QUEUED nor RUNNING.
    """
    allowed = (StudyState.QUEUED, StudyState.RUNNING)
    return _change(engine, study, allowed, verb="paused", target=lambda _row: StudyState.PAUSED)


@retried(REQUEST)
def request_resume(engine: Engine, study: str) -> StudyView:
    """Resume a paused study; a driver that still holds it does so at its next renewal.

    Raises:
        StudyNotFoundError: no study has this id or name.
        StudyConflictError: it is not PAUSED.
    """

    def target(row: Study) -> StudyState:
        return StudyState.QUEUED if row.started_at is None else StudyState.RUNNING

    return _change(engine, study, (StudyState.PAUSED,), verb="resumed", target=target)


def _change(
    engine: Engine,
    study: str,
    allowed: tuple[StudyState, ...],
    *,
    verb: str,
    target: Callable[[Study], StudyState],
    reason: str | None = None,
) -> StudyView:
    with writing(engine) as session:
        row = locked(session, study)
        if row.state not in allowed:
            *first, last = allowed
            states = f"{', '.join(first)} or {last}" if first else last
            raise StudyConflictError(
                f"study '{row.name}' is {row.state}; only {states} studies can be {verb}."
                + (" Extend it, or submit it again under another name." if row.state.is_terminal else "")
            )
        row.state, row.reason = target(row), reason
        if row.state.is_terminal:
            row.finished_at = datetime.now(UTC)
        events.record_study(session, EventKind.STUDY_STATE, row)
    return get_study_view(engine, row.id)


def locked(session: Session, study: str) -> Study:
    """The study of this id or name as it is now; no other transaction changes it. Raises StudyNotFoundError."""
    found = find_study(session, study)
    return session.get_one(Study, found.id, with_for_update=True, populate_existing=True)


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
    """End a trial's unfinished runs as cancelled. Its driver then ends their workers.

    Raises:
        StudyNotFoundError, TrialNotFoundError: there is no such study or trial.
        StudyConflictError: the trial and its confirm runs have ended already.
    """
    view = get_trial(engine, study, label, number)
    with writing(engine) as session:
        row = locked(session, study)
        query = (
            select(Run)
            .join(Run.search)
            .where(Search.study_id == row.id, Search.label == label, Run.trial_number == number, RUN_IS_UNFINISHED)
            .where(Run.stage != Stage.SENSITIVITY)
        )
        runs = session.execute(query).scalars().all()
        if not runs:
            raise StudyConflictError(
                f"trial {number} of search '{label}' of study '{row.name}' is {view.state} and has no waiting or "
                "running run; only trials that have one can be cancelled."
            )
        for run in runs:
            _cancel_run(session, run, study_id=row.id, label=label)
    return get_trial(engine, study, label, number)


def _cancel_run(session: Session, run: Run, *, study_id: str, label: str) -> None:
    now, error = datetime.now(UTC), "the trial was cancelled on request"
    close_attempt(session, run, AttemptState.FAIL, error=error, at=now)
    run.state, run.failure, run.error, run.finished_at = RunState.FAIL, FailureKind.CANCELLED, error, now
    events.record_run(session, "finished", run, study_id=study_id, label=label, error=error)


@retried(REQUEST)
def delete_study(engine: Engine, study: str) -> str:
    """Delete an ended study with its searches, runs and curves, and the Optuna studies of its searches.

    Returns:
        Its id, which is the name of its folder of checkpoints; the caller removes that. Its events stay.

    Raises:
        StudyNotFoundError: no study has this id or name.
        StudyConflictError: it has not ended, its driver is still stopping its runs, or an unfinished study starts
            from its weights.
    """
    with writing(engine) as session:
        row = locked(session, study)
        if not row.state.is_terminal:
            raise StudyConflictError(
                f"study '{row.name}' is {row.state}; only COMPLETED, FAILED or CANCELLED studies can be deleted. "
                "Cancel it first."
            )
        check_released(session, row, engine)
        _check_unused(session, row)
        events.record_study(session, EventKind.STUDY_DELETED, row)
        _delete_optuna_studies(session, select(Search.optuna_name).where(Search.study_id == row.id))
        session.execute(delete(Study).where(Study.id == row.id))  # the rest of our rows by cascade
        return row.id


def _check_unused(session: Session, row: Study) -> None:
    unfinished = select(Study.name, Study.definition).where(Study.state.in_(_UNFINISHED))
    for name, definition in session.execute(unfinished):
        origin = (definition.get("task") or {}).get("init_from")
        if isinstance(origin, dict) and origin.get("study") in (row.id, row.name):
            raise StudyConflictError(
                f"study '{name}' starts from weights of study '{row.name}' (task.init_from) and has not ended; wait "
                "for it or cancel it first."
            )


def _delete_optuna_studies(session: Session, names: Select[str]) -> None:
    """Optuna's own `delete_study` loads every trial, and commits by itself."""
    study, trial = optuna_models.StudyModel.__table__, optuna_models.TrialModel.__table__
    ids = list(session.execute(select(study.c.study_id).where(study.c.study_name.in_(names))).scalars())
    trials = select(trial.c.trial_id).where(trial.c.study_id.in_(ids))
    for table in reversed(optuna_models.BaseModel.metadata.sorted_tables):  # those that refer to others first
        if "trial_id" in table.c and table is not trial:
            session.execute(delete(table).where(table.c.trial_id.in_(trials)))
        elif "study_id" in table.c:
            session.execute(delete(table).where(table.c.study_id.in_(ids)))


@retried(REQUEST)
def runnable_studies(engine: Engine, *, limit: int = 100) -> list[str]:
    """Ids of the QUEUED and RUNNING studies without a driver, in the order in which they should start."""
    query = (
        select(Study.id)
        .where(Study.state.in_((StudyState.QUEUED, StudyState.RUNNING)), lease_is_free(engine))
        .order_by(Study.priority.desc(), Study.created_at, Study.id)
        .limit(limit)
    )
    with reading(engine) as session:
        return list(session.execute(query).scalars())


@retried(REQUEST)
def set_waiting_reason(engine: Engine, study_id: str, reason: str) -> None:
    """Store why a study waits for a driver; nothing if it has one by now or has ended. A driver's start removes it."""
    waits = Study.state.in_((StudyState.QUEUED, StudyState.RUNNING)), lease_is_free(engine)
    with writing(engine) as session:
        query = select(Study).where(Study.id == study_id, *waits).with_for_update()
        row = session.execute(query).scalar_one_or_none()
        if row is not None and row.reason != reason:
            row.reason = reason
            events.record_study(session, EventKind.STUDY_STATE, row)


@retried(REQUEST)
def study_progress(engine: Engine, study_id: str) -> int:
    """A number that grows when the study makes progress: epochs stored and runs finished."""
    finished = case((Run.state.in_(FINISHED_STATES), 1), else_=0)
    query = select(func.coalesce(func.sum(Run.epoch + finished), 0)).join(Run.search).where(Search.study_id == study_id)
    with reading(engine) as session:
        return int(session.execute(query).scalar_one())


def _study_row(definition: StudyDefinition, content: dict[str, Any], digest: str) -> Study:
    return Study(
        id=secrets.token_hex(6),
        name=definition.name,
        task=definition.task.name,
        model=definition.task.model,
        metric=definition.objective.metric,
        direction=definition.objective.direction,
        origin=None if definition.task.init_from is None else str(definition.task.init_from),
        recipe=recipe_of(definition),
        epochs=definition.task.epochs,
        data_fingerprint=None,
        definition=content,
        definition_sha256=digest,
        priority=definition.priority,
        state=StudyState.QUEUED,
        reason=None,
        created_at=datetime.now(UTC),
        started_at=None,
        finished_at=None,
    )


def search_rows(study_id: str, definition: StudyDefinition) -> list[Search]:
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
        for position, optimizer in enumerate(search.optimizer for search in definition.planned_searches())
    ]
