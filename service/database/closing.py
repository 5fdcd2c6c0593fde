"""Close what a driver left behind when its study ended: runs and trials that nobody will ever finish.

A live driver does this itself when it stops. Here it is done for those that died before they could.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages._rdb import models as optuna_models
from optuna.trial import TrialState
from sqlalchemy import Engine, or_, select, update
from sqlalchemy.orm import Session

from search.states import AttemptState, FailureKind, RunState, StudyState
from service.database import events
from service.database.engine import reading, writing
from service.database.lease import lease_is_free
from service.database.models import RUN_IS_UNFINISHED, Attempt, Run, Search, Study
from service.database.retry import REQUEST, retried
from service.database.store import SqlStore

TERMINAL = tuple(state for state in StudyState if state.is_terminal)


@retried(REQUEST)
def unclosed_studies(engine: Engine, *, limit: int = 100) -> list[str]:
    """Ids of the ended studies whose driver is gone and left something unfinished: see `close_unfinished`."""
    unfinished = select(Search.study_id).join(Run, Run.search_id == Search.id).where(RUN_IS_UNFINISHED)
    query = (
        select(Study.id)
        .where(
            Study.state.in_(TERMINAL),
            lease_is_free(engine),
            or_(Study.lease_owner.is_not(None), Study.id.in_(unfinished)),
        )
        .order_by(Study.created_at)
        .limit(limit)
    )
    with reading(engine) as session:
        return list(session.execute(query).scalars())


def close_unfinished(store: SqlStore, study_id: str, *, error: str = "the study was cancelled") -> bool:
    """End the runs and trials of an ended study that nobody drives: FAIL, cancelled. Its old driver is fenced off.

    Returns:
        False where the study still goes on or a driver still holds it (that driver closes them itself).
    """
    with writing(store.engine) as session:
        row = session.execute(
            select(Study)
            .where(Study.id == study_id, Study.state.in_(TERMINAL), lease_is_free(store.engine))
            .with_for_update()
        ).scalar_one_or_none()
        if row is None:
            return False
        row.lease_owner, row.lease_expires_at = None, None
        _close_runs(session, study_id, error=error)
        trials = _open_trials(session, study_id)
    _fail_trials(store, trials)
    return True


def _close_runs(session: Session, study_id: str, *, error: str) -> None:
    now = datetime.now(UTC)
    unfinished = select(Run, Search.label).join(Search, Search.id == Run.search_id)
    unfinished = unfinished.where(Search.study_id == study_id, RUN_IS_UNFINISHED)
    open_runs = unfinished.with_only_columns(Run.id)
    session.execute(
        update(Attempt)
        .where(Attempt.run_id.in_(open_runs), Attempt.state == AttemptState.RUNNING)
        .values(state=AttemptState.LOST, error=error, finished_at=now)
        .execution_options(synchronize_session=False)
    )
    for run, label in session.execute(unfinished):
        run.state, run.failure = RunState.FAIL, FailureKind.CANCELLED
        run.error, run.finished_at = error, now
        events.record_run(session, "finished", run, study_id=study_id, label=label, error=error)


def _open_trials(session: Session, study_id: str) -> list[int]:
    """Optuna's ids of the study's trials that are not finished; asked in SQL, because Optuna would load them all."""
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


def _fail_trials(store: SqlStore, trial_ids: Iterable[int]) -> None:
    storage = store.optuna_storage()
    for trial_id in trial_ids:
        try:
            storage.set_trial_state_values(trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            continue  # its driver was quicker
