"""What a driver learns of earlier studies, on SQLite and PostgreSQL."""

from __future__ import annotations

from search.records import RunOutcome
from search.states import FailureKind, RunState, Stage, StudyState
from service.database import SqlStore
from tests.service.database.fill import complete, definition, leased, run


def best(store: SqlStore, *, limit: int = 10, studies: list[str] | None = None) -> list[float]:
    """Learning rates of the best admetar settings on digits."""
    objective = definition().objective
    found = store.best_settings("admetar", task="digits", objective=objective, studies=studies, limit=limit)
    assert all(settings["betas"] == [0.9, 0.999] for settings in found)  # what was held fixed belongs to the settings
    return [settings["lr"] for settings in found]


def test_best_settings_come_from_ended_studies_best_first(store: SqlStore) -> None:
    lease, (admetar, sgdm) = leased(store, definition("earlier"))
    run(store, lease, admetar, 0, complete(0.7), params={"lr": 0.1})
    run(store, lease, admetar, 1, complete(0.9), params={"lr": 0.2})
    run(store, lease, admetar, 2, complete(0.9), params={"lr": 0.2})  # the same again
    run(store, lease, admetar, 3, RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED), params={"lr": 9.0})
    run(store, lease, admetar, 1, complete(0.99), stage=Stage.CONFIRM, seed=0, params={"lr": 0.2})
    run(store, lease, sgdm, 0, complete(0.95), params={"lr": 0.5})
    assert best(store) == []  # it still runs
    store.set_study_state(lease, StudyState.COMPLETED)
    assert best(store) == [0.2, 0.1]
    assert best(store, limit=1) == [0.2]
    assert best(store, studies=["another"]) == []
    assert best(store, studies=["earlier"]) == [0.2, 0.1]


def test_best_settings_are_of_the_same_objective(store: SqlStore) -> None:
    lease, (admetar, _) = leased(store, definition("by-loss", objective={"metric": "val_loss"}))
    run(store, lease, admetar, 0, complete(0.1), params={"lr": 0.1})
    store.set_study_state(lease, StudyState.COMPLETED)
    assert best(store) == []
