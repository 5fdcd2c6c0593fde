"""Deleting a study: nothing of it stays in any table, ours or Optuna's, and nothing of another study goes."""

from __future__ import annotations

import optuna
import pytest
from optuna.storages._rdb import models as optuna_models
from sqlalchemy import Engine, func, select

from search.errors import StudyConflictError, StudyNotFoundError
from search.states import StudyState
from service.database import SqlStore
from service.database.engine import reading
from service.database.events import EventKind, read_events
from service.database.models import Base
from service.database.queries import get_study_view
from service.database.studies import create_study, delete_study, request_cancel
from tests.service.database.fill import complete, curve, definition, leased, run


def _n_rows(engine: Engine) -> dict[str, int]:
    tables = [*Base.metadata.tables.values(), *optuna_models.BaseModel.metadata.tables.values()]
    with reading(engine) as session:
        return {
            table.name: session.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables
            if table.name != "admeta_events"
        }


def _ended_study(store: SqlStore, name: str) -> str:
    lease, searches = leased(store, definition(name))
    run(store, lease, searches[0], 0, complete(0.9, test_accuracy=0.8), points=curve(0.5, 0.9))
    for search in searches:
        study = optuna.create_study(storage=store.optuna_storage(), study_name=search.optuna_name)
        study.set_user_attr("x", 1)
        store.optuna_storage().set_study_system_attr(study._study_id, "y", 1)
        trial = study.ask()
        trial.suggest_float("lr", 0.01, 0.1)
        trial.report(0.5, 1)
        trial.set_user_attr("x", 1)
        study.tell(trial, 0.9)
    store.set_study_state(lease, StudyState.COMPLETED)
    store.release_lease(lease)
    return lease.study_id


def test_nothing_stays_and_nothing_else_goes(engine: Engine, store: SqlStore) -> None:
    _ended_study(store, "kept")
    before = _n_rows(engine)
    study_id = _ended_study(store, "gone")
    assert _n_rows(engine) != before
    assert delete_study(engine, "gone") == study_id
    assert _n_rows(engine) == before
    with pytest.raises(StudyNotFoundError):
        delete_study(engine, study_id)
    assert get_study_view(engine, "kept").state == "COMPLETED"
    assert len(optuna.load_study(study_name="kept/sgdm", storage=store.optuna_storage()).trials) == 1
    last = read_events(engine, after=0, study_id=study_id)[-1]
    assert (last.kind, last.ends_study) == (EventKind.STUDY_DELETED, True)


def test_its_name_is_free_again(engine: Engine, store: SqlStore) -> None:
    old = _ended_study(store, "again")
    delete_study(engine, old)
    view, created = create_study(engine, definition("again", budget={"trials_per_optimizer": 7}))
    assert created
    assert view.id != old
    assert view.searches[0].n_complete == 0


def test_only_what_has_ended_and_nobody_drives(engine: Engine, store: SqlStore) -> None:
    lease, _ = leased(store, definition("busy"))
    with pytest.raises(StudyConflictError, match="'busy' is RUNNING"):
        delete_study(engine, "busy")
    request_cancel(engine, "busy")
    with pytest.raises(StudyConflictError, match="still stopping its runs"):
        delete_study(engine, "busy")
    store.release_lease(lease)
    delete_study(engine, "busy")


def test_not_while_another_study_starts_from_its_weights(engine: Engine, store: SqlStore) -> None:
    study_id = _ended_study(store, "origin")
    origin = {"study": "origin", "optimizer": "sgdm", "trial": 0}
    create_study(engine, definition("later", task={"name": "digits", "init_from": origin}))
    with pytest.raises(StudyConflictError, match="'later' starts from weights of study 'origin'"):
        delete_study(engine, study_id)
    request_cancel(engine, "later")
    assert delete_study(engine, study_id) == study_id
