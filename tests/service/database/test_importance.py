"""Importance is worked out once for each number of finished trials, and then remembered in the database."""

from __future__ import annotations

import optuna
import pytest
from sqlalchemy import Engine

from search.errors import TooFewTrialsError
from search.importance import Importance
from search.states import ImportanceMethod
from service.database import SqlStore
from service.database.queries import plots
from service.database.queries.plots import search_importance


def add_trials(store: SqlStore, n: int, *, state: optuna.trial.TrialState = optuna.trial.TrialState.COMPLETE) -> None:
    study = optuna.create_study(study_name="s/a", storage=store.optuna_storage(), load_if_exists=True)
    for _ in range(n):
        trial = study.ask()
        value = trial.suggest_float("lr", 0, 1) + 0.01 * trial.suggest_float("lambd", 0, 1)
        study.tell(trial, value if state is optuna.trial.TrialState.COMPLETE else None, state=state)


def test_it_is_worked_out_again_only_after_another_trial_ended(
    store: SqlStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = plots.importance
    monkeypatch.setattr(plots, "importance", lambda study, **how: calls.append(how) or real(study, **how))

    def ask(asked: SqlStore, method: ImportanceMethod | None = None) -> Importance:
        return search_importance(engine, asked.optuna_storage(), "s/a", method=method)

    add_trials(store, 12)
    first = ask(store)
    assert next(iter(first.shares)) == "lr"
    assert first.intervals["lr"][0] <= first.shares["lr"] <= first.intervals["lr"][1]
    assert ask(SqlStore(engine)) == first  # another service
    assert len(calls) == 1
    assert ask(store, ImportanceMethod.PED_ANOVA).method is ImportanceMethod.PED_ANOVA
    assert ask(store) == first
    assert len(calls) == 2
    add_trials(store, 1)
    assert ask(store).n_trials == 13
    assert len(calls) == 3
    add_trials(store, 1, state=optuna.trial.TrialState.FAIL)
    assert ask(store).n_trials == 13
    assert len(calls) == 4


def test_nothing_is_remembered_of_what_cannot_be_told(store: SqlStore, engine: Engine) -> None:
    with pytest.raises(KeyError):
        search_importance(engine, store.optuna_storage(), "s/a", method=None)
    add_trials(store, 2)
    for _ in range(2):
        with pytest.raises(TooFewTrialsError, match="has 2 trials"):
            search_importance(engine, store.optuna_storage(), "s/a", method=None)
