"""Delete a study that has ended: our rows and Optuna's, in one transaction. Checkpoints are the caller's business."""

from __future__ import annotations

from optuna.storages._rdb import models as optuna_models
from sqlalchemy import Engine, Select, delete, select
from sqlalchemy.orm import Session

from search.errors import StudyConflictError
from search.states import StudyState
from service.database import events
from service.database.engine import writing
from service.database.events import EventKind
from service.database.lease import lease_is_free
from service.database.models import Search, Study
from service.database.queries.lookup import find_study
from service.database.retry import REQUEST, retried

_UNFINISHED = tuple(state for state in StudyState if not state.is_terminal)
_TRIAL_DETAILS = (
    optuna_models.TrialUserAttributeModel,
    optuna_models.TrialSystemAttributeModel,
    optuna_models.TrialParamModel,
    optuna_models.TrialValueModel,
    optuna_models.TrialIntermediateValueModel,
    optuna_models.TrialHeartbeatModel,
)
_STUDY_DETAILS = (
    optuna_models.StudyDirectionModel,
    optuna_models.StudyUserAttributeModel,
    optuna_models.StudySystemAttributeModel,
)


@retried(REQUEST)
def delete_study(engine: Engine, study: str) -> str:
    """Delete an ended study with its searches, runs and curves, and the Optuna studies of its searches.

    Returns:
        The id it had: the name of its folder of checkpoints. Its events stay, and one more tells of the end.

    Raises:
        StudyNotFoundError: no study has this id or name.
        StudyConflictError: it has not ended, its driver is still stopping its runs, or an unfinished study starts
            from its weights.
    """
    with writing(engine) as session:
        found = find_study(session, study)
        row = session.get_one(Study, found.id, with_for_update=True, populate_existing=True)
        if not row.state.is_terminal:
            raise StudyConflictError(
                f"study '{row.name}' is {row.state}; only COMPLETED, FAILED or CANCELLED studies can be deleted. "
                "Cancel it first."
            )
        if session.execute(select(Study.id).where(Study.id == row.id, lease_is_free(engine))).first() is None:
            raise StudyConflictError(
                f"study '{row.name}' is {row.state}, but its driver is still stopping its runs; repeat the request "
                "in a few seconds."
            )
        _check_unused(session, row)
        events.record_study(session, EventKind.STUDY_DELETED, row)
        _delete_optuna_studies(session, select(Search.optuna_name).where(Search.study_id == row.id))
        session.execute(delete(Study).where(Study.id == row.id))  # the rest of ours by cascade
        return row.id


def _check_unused(session: Session, row: Study) -> None:
    unfinished = select(Study.name, Study.definition).where(Study.state.in_(_UNFINISHED))
    for name, definition in session.execute(unfinished):
        origin = definition["task"].get("init_from")
        if isinstance(origin, dict) and origin.get("study") in (row.id, row.name):
            raise StudyConflictError(
                f"study '{name}' starts from weights of study '{row.name}' (task.init_from) and has not ended; wait "
                "for it or cancel it first."
            )


def _delete_optuna_studies(session: Session, names: Select[str]) -> None:
    """Written out: Optuna's own `delete_study` loads every trial, and commits by itself."""
    study, trial = optuna_models.StudyModel, optuna_models.TrialModel
    ids = list(session.execute(select(study.study_id).where(study.study_name.in_(names))).scalars())
    trials = select(trial.trial_id).where(trial.study_id.in_(ids))
    for detail in _TRIAL_DETAILS:
        session.execute(delete(detail.__table__).where(detail.__table__.c.trial_id.in_(trials)))
    session.execute(delete(trial.__table__).where(trial.__table__.c.study_id.in_(ids)))
    for about in (*_STUDY_DETAILS, study):
        session.execute(delete(about.__table__).where(about.__table__.c.study_id.in_(ids)))
