"""Optuna's storage in our database: many writers, lost answers, no password."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import psycopg
import pytest
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sqlalchemy import Engine, text
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import OperationalError

from service.database import SqlStore, make_engine
from service.database.optuna_storage import NONCE_KEY, optuna_storage
from service.database.retry import DRIVER
from tests.service.database.test_retry import cut_connections

WRITERS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import optuna
from service.database import SqlStore, make_engine
optuna.logging.set_verbosity(optuna.logging.ERROR)
store = SqlStore(make_engine(sys.argv[1]))

def write(_):
    sampler = optuna.samplers.RandomSampler()
    study = optuna.load_study(study_name="s/a", storage=store.optuna_storage(), sampler=sampler)
    for _ in range(20):
        trial = study.ask()
        x = trial.suggest_float("x", 0, 1)
        trial.report(x, 1)
        study.tell(trial, x)

with ThreadPoolExecutor(8) as pool:
    list(pool.map(write, range(8)))
"""


@pytest.fixture
def storage(store: SqlStore) -> BaseStorage:
    return store.optuna_storage()


def new_study(storage: BaseStorage, name: str = "s/a") -> optuna.Study:
    return optuna.create_study(
        storage=storage, study_name=name, direction="maximize", sampler=optuna.samplers.RandomSampler()
    )


def test_optunas_own_view_is_true(storage: BaseStorage, url: str) -> None:
    study = new_study(storage)
    study.enqueue_trial({"x": 0.5})
    for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL):
        trial = study.ask()
        x = trial.suggest_float("x", 0, 1)
        trial.report(x, 1)
        trial.report(x, 2)
        study.tell(trial, x if state == TrialState.COMPLETE else None, state=state)
    fresh = optuna.load_study(study_name="s/a", storage=url.replace("postgresql:", "postgresql+psycopg:"))
    assert [t.state for t in fresh.trials] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]
    assert [t.number for t in fresh.trials] == [0, 1, 2]
    assert fresh.trials[0].params == {"x": 0.5}
    assert fresh.trials[1].intermediate_values.keys() == {1, 2}
    assert fresh.best_value == 0.5


@pytest.mark.slow
def test_sixteen_writers_lose_nothing(storage: BaseStorage, url: str) -> None:
    """optuna issues 1499 and 820. Readers all the while, as a dashboard does: optuna-dashboard issue 545."""
    study = new_study(storage)
    processes = [subprocess.Popen([sys.executable, "-c", WRITERS, url]) for _ in range(2)]
    reader = make_engine(url)
    while any(process.poll() is None for process in processes):
        with reader.connect() as connection:
            connection.execute(text("SELECT count(*) FROM trials JOIN trial_values USING (trial_id)")).scalar()
        time.sleep(0.02)
    reader.dispose()
    assert [process.returncode for process in processes] == [0, 0]
    trials = study.get_trials(deepcopy=False)
    assert [t.number for t in trials] == list(range(320))
    assert {t.state for t in trials} == {TrialState.COMPLETE}


class Flaky:
    """Fails the next commits: before they happen, or after they did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before = self.after = 0
        commit: Callable[[DefaultDialect, Any], None] = DefaultDialect.do_commit

        def flaky(dialect: DefaultDialect, connection: Any) -> None:
            if self.before:
                self.before -= 1
                raise lost_connection()
            commit(dialect, connection)
            if self.after:
                self.after -= 1
                raise lost_connection()

        monkeypatch.setattr(DefaultDialect, "do_commit", flaky)


def lost_connection() -> OperationalError:
    return OperationalError("COMMIT", {}, psycopg.OperationalError("connection lost"), connection_invalidated=True)


@pytest.fixture
def flaky(storage: BaseStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    """Asks for the storage first, so that its own set-up is left alone."""
    return Flaky(monkeypatch)


@pytest.mark.parametrize("when", ["before", "after"])
def test_nothing_is_done_twice_when_an_answer_is_lost(storage: BaseStorage, flaky: Flaky, when: str) -> None:
    def lose_one() -> None:
        setattr(flaky, when, 1)

    lose_one()
    study_id = storage.create_new_study([StudyDirection.MAXIMIZE], "s/a")
    lose_one()
    trial_id = storage.create_new_trial(study_id)
    lose_one()
    waiting_id = storage.create_new_trial(study_id, optuna.trial.create_trial(state=TrialState.WAITING))
    lose_one()
    assert storage.set_trial_state_values(waiting_id, TrialState.RUNNING)
    lose_one()
    distribution = optuna.distributions.FloatDistribution(0, 1)
    storage.set_trial_param(trial_id, "x", 0.25, distribution)
    lose_one()
    storage.set_trial_param(waiting_id, "x", 0.75, distribution)  # its distribution is known by now
    lose_one()
    storage.set_trial_intermediate_value(trial_id, 1, 0.5)
    lose_one()
    storage.set_trial_user_attr(trial_id, "node", "n1")
    lose_one()
    assert storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [0.75])
    assert (flaky.before, flaky.after) == (0, 0)
    first, second = storage.get_all_trials(study_id)
    assert (first.number, first.state, first.value) == (0, TrialState.COMPLETE, 0.75)
    assert (first.params, first.intermediate_values, first.user_attrs) == ({"x": 0.25}, {1: 0.5}, {"node": "n1"})
    assert (second.number, second.state, second.params) == (1, TrialState.RUNNING, {"x": 0.75})


def test_a_new_trial_reads_as_it_was_written(storage: BaseStorage) -> None:
    """Right after it was made it is not asked for in the database; later it is."""
    study = new_study(storage)
    trial_id = storage.create_new_trial(study._study_id)
    first = storage.get_trial(trial_id)
    assert (first.number, first.state, first.params) == (0, TrialState.RUNNING, {})
    first.user_attrs["mine"] = 1  # a copy of the reader's own
    storage.set_trial_user_attr(trial_id, "a", 2)
    second = storage.get_trial(trial_id)
    assert second.user_attrs == {"a": 2}
    assert (second.datetime_start, second.system_attrs) == (first.datetime_start, first.system_attrs)


def test_our_short_writes_leave_what_optunas_own_do(storage: BaseStorage, url: str) -> None:
    """Side by side: one study by our storage, one by Optuna's on the same database."""
    own = optuna.storages.RDBStorage(url.replace("postgresql:", "postgresql+psycopg:"))
    distributions = {
        "lr": optuna.distributions.FloatDistribution(1e-4, 1.0, log=True),
        "k": optuna.distributions.IntDistribution(1, 9, step=2),
        "dema": optuna.distributions.CategoricalDistribution(["full", "off"]),
    }
    found = []
    for name, opened in (("ours", storage), ("optunas", optuna.storages._CachedStorage(own))):
        study_id = opened.create_new_study([StudyDirection.MAXIMIZE], name)
        for states in ((TrialState.COMPLETE, [math.inf]), (TrialState.PRUNED, [-math.inf]), (TrialState.FAIL, None)):
            trial_id = opened.create_new_trial(study_id)
            for parameter, value in (("lr", 0.1), ("k", 3), ("dema", 1)):
                opened.set_trial_param(trial_id, parameter, value, distributions[parameter])
            for step, value in ((1, 0.5), (2, math.nan), (3, math.inf), (1, 0.75)):
                opened.set_trial_intermediate_value(trial_id, step, value)
            assert opened.set_trial_state_values(trial_id, *states)
            for write in (
                lambda opened=opened, id_=trial_id: opened.set_trial_param(id_, "lr", 0.2, distributions["lr"]),
                lambda opened=opened, id_=trial_id: opened.set_trial_intermediate_value(id_, 9, 0.1),
                lambda opened=opened, id_=trial_id: opened.set_trial_state_values(id_, TrialState.FAIL),
            ):
                with pytest.raises(UpdateFinishedTrialError):
                    write()
        other = opened.create_new_trial(study_id)
        with pytest.raises(ValueError, match="log"):
            opened.set_trial_param(other, "lr", 0.1, optuna.distributions.FloatDistribution(1e-4, 1.0))
        with pytest.raises(KeyError):
            opened.set_trial_intermediate_value(10**6, 1, 0.1)
        found.append(optuna.storages.RDBStorage.get_all_trials(own, study_id))
    own.remove_session()
    own.engine.dispose()
    for ours, optunas in zip(*found, strict=True):
        for name in ("number", "state", "values", "params", "distributions", "user_attrs"):
            assert getattr(ours, name) == getattr(optunas, name), name
        assert str(ours.intermediate_values) == str(optunas.intermediate_values)
        assert (ours.duration is None) == (optunas.duration is None)


def test_a_drivers_writes_are_the_short_ones(storage: BaseStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is made once more by Optuna's own way: each says itself whether it was done."""
    study = new_study(storage)
    study.ask().suggest_float("lr", 0.0, 1.0)  # the first of its name is Optuna's, which looks for an older one
    for own in ("_set_trial_param", "set_trial_intermediate_value", "set_trial_state_values"):
        monkeypatch.setattr(optuna.storages.RDBStorage, own, _must_not_be_called)
    trial = study.ask()
    value = trial.suggest_float("lr", 0.0, 1.0)
    for step in (1, 2):
        trial.report(0.5 * step, step)
    study.tell(trial, 1.0)
    stored = study.trials[-1]
    assert (stored.params, stored.intermediate_values, stored.value) == ({"lr": value}, {1: 0.5, 2: 1.0}, 1.0)


def _must_not_be_called(*_: Any, **__: Any) -> None:
    raise AssertionError("Optuna's own write was made too")


def test_real_conflicts_stay_errors(storage: BaseStorage) -> None:
    study = new_study(storage)
    with pytest.raises(DuplicatedStudyError):
        storage.create_new_study([StudyDirection.MAXIMIZE], "s/a")
    trial = study.ask()
    study.tell(trial, 1.0)
    with pytest.raises(UpdateFinishedTrialError):
        storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    study.enqueue_trial({})
    waiting = study.trials[-1]._trial_id
    assert storage.set_trial_state_values(waiting, TrialState.RUNNING)
    assert not storage.set_trial_state_values(waiting, TrialState.RUNNING)  # somebody else has it


def test_trial_numbers_are_unique_over_threads(storage: BaseStorage) -> None:
    study = new_study(storage)
    with ThreadPoolExecutor(8) as pool:
        trials = list(pool.map(lambda _: study.ask(), range(40)))
    assert sorted(trial.number for trial in trials) == list(range(40))
    nonces = {trial.system_attrs[NONCE_KEY] for trial in study.get_trials()}
    assert len(nonces) == 40


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_storage_survives_lost_connections(storage: BaseStorage, engine: Engine, server: Engine) -> None:
    study = new_study(storage)
    for _ in range(4):
        cut_connections(server, engine)
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        cut_connections(server, engine)
        trial.report(0.1, 1)
        study.tell(trial, 0.5)
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 4


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_storage_carries_no_password(engine: Engine) -> None:
    with_password = make_engine(engine.url.set(password="s3cret"))
    patient = optuna_storage(with_password, DRIVER)._backend  # type: ignore[attr-defined]
    inner = patient._storage
    assert "s3cret" not in repr(inner.__getstate__())
    assert "s3cret" not in inner.url
    assert "s3cret" not in inner.engine.url.render_as_string(hide_password=False)
    inner.engine.dispose()
    with_password.dispose()


def test_storage_cannot_be_pickled(storage: BaseStorage) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(storage)


def test_odd_file_names(tmp_path: Path, prepared_database: Path) -> None:
    path = tmp_path / "a {b} 100%.sqlite3"
    path.write_bytes(prepared_database.read_bytes())
    new_study(SqlStore(make_engine(f"sqlite:///{path}")).optuna_storage())
    assert path.stat().st_size > 0
