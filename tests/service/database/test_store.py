"""Conformance of the store: what `search.store.Store` promises, on both databases."""

from __future__ import annotations

import dataclasses
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.orm import Session

from search.definition import StudyDefinition
from search.errors import LeaseLostError, SearchError, StudyNotFoundError
from search.records import AttemptStart, Capacity, CompetingStudy, Lease, Point, RunOutcome
from search.states import FailureKind, RunState, Stage, StudyState
from service.database import SqlStore, make_engine
from service.database.models import Attempt, Run, Study
from service.database.queries import get_trial
from service.database.studies import request_cancel, request_pause, runnable_studies
from tests.service.database.fill import FACTS, complete, curve, definition, leased, run

DIVERGED = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged at step 7")
CRASHED = RunOutcome(state=RunState.FAIL, failure=FailureKind.ERROR, error="RuntimeError: out of luck")


def test_study_is_what_was_created(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, searches = leased(store, two_searches)
    study = store.get_study(lease.study_id)
    assert study.definition == two_searches
    assert study.state == StudyState.RUNNING
    assert study.started_at is not None
    assert study.created_at.utcoffset() is not None
    assert study.created_at <= study.started_at
    assert [s.label for s in searches] == ["admetar", "sgdm"]
    assert [s.optuna_name for s in searches] == ["digits/admetar", "digits/sgdm"]


def test_space_keeps_its_order(store: SqlStore) -> None:
    space = {
        "weight_decay": {"type": "float", "low": 0.0, "high": 0.1},
        "lr": {"type": "float", "low": 0.001, "high": 0.1},
    }
    lease, _ = leased(store, definition(optimizers=[{"name": "adamw", "space": space}]))
    assert list(store.get_study(lease.study_id).definition.optimizers[0].space) == ["weight_decay", "lr"]


def test_no_secret_is_stored_with_an_error(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user's own code raises may contain what is in its environment."""
    monkeypatch.setenv("HUB_TOKEN", "hub-0123456789")
    monkeypatch.setenv("WANDB_API_KEY", "wandb-0123456789")
    monkeypatch.setenv("CACHE_KEY_PATH", "/var/cache/keys")
    lease, (search, _) = leased(store, definition())
    told = "401 for hub-0123456789 and wandb-0123456789, see /var/cache/keys"
    failed = RunOutcome(state=RunState.FAIL, failure=FailureKind.ERROR, error=f"HTTPError: {told}")
    open_run = run(store, lease, search, 0, None)
    store.fail_attempt(lease, open_run.id, outcome=failed)
    store.start_attempt(lease, open_run.id)
    store.interrupt_attempt(lease, open_run.id, reason=told)
    store.start_attempt(lease, open_run.id)
    store.finish_run(lease, open_run.id, failed)
    store.set_study_state(lease, StudyState.FAILED, reason=told)
    with Session(store.engine) as session:
        stored = list(session.execute(select(Attempt.error)).scalars())
        stored += [session.execute(select(Run.error)).scalar_one(), session.execute(select(Study.reason)).scalar_one()]
        stored += session.execute(text("SELECT data FROM admeta_events")).scalars()
    assert sum("401 for *** and ***, see /var/cache/keys" in str(one) for one in stored) == 5 + 4
    assert "0123456789" not in str(stored)


def test_unknown_study(store: SqlStore) -> None:
    with pytest.raises(StudyNotFoundError, match="nope"):
        store.get_study("nope")
    assert store.acquire_lease("nope", owner="a", ttl_s=1) is None
    assert store.searches("nope") == []


def test_run_is_created_once(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, other) = leased(store, two_searches)
    key = {"trial_number": 0, "stage": Stage.SEARCH, "seed": 2**32 - 1}
    first = store.create_run(lease, search.id, **key, params={"lr": 0.1, "betas": [0.9, 0.999]})
    again = store.create_run(lease, search.id, **key, params={"lr": 0.2})
    assert again == first
    assert first.state == RunState.WAITING
    assert first.attempt == 0
    assert first.params == {"lr": 0.1, "betas": [0.9, 0.999]}
    others = [
        store.create_run(lease, other.id, **key, params={}),
        store.create_run(lease, search.id, **(key | {"stage": Stage.CONFIRM}), params={}),
        store.create_run(lease, search.id, **(key | {"seed": 1}), params={}),
    ]
    assert store.runs(lease.study_id) == [first, *others]


def test_run_of_another_study_is_refused(store: SqlStore) -> None:
    lease, (search, _) = leased(store, definition("one"))
    other_lease, _ = leased(store, definition("two"))
    record = run(store, lease, search, 0, None)
    with pytest.raises(SearchError, match="no search"):
        store.create_run(other_lease, search.id, trial_number=0, stage=Stage.SEARCH, seed=0, params={})
    with pytest.raises(SearchError, match="no run"):
        store.finish_run(other_lease, record.id, complete(1.0))


def test_attempts_are_counted_once(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, _) = leased(store, two_searches)
    record = run(store, lease, search, 0, None)
    assert (record.state, record.attempt) == (RunState.RUNNING, 1)
    assert store.start_attempt(lease, record.id).attempt == 1  # its answer was lost
    failed = store.fail_attempt(lease, record.id, outcome=CRASHED)
    assert (failed.state, failed.attempt, failed.n_failures) == (RunState.WAITING, 1, 1)
    assert store.fail_attempt(lease, record.id, outcome=CRASHED).n_failures == 1  # its answer was lost
    second = store.start_attempt(lease, record.id)
    assert (second.state, second.attempt, second.n_failures) == (RunState.RUNNING, 2, 1)
    store.finish_run(lease, record.id, complete(0.5))
    trial = get_trial(store.engine, "digits", "admetar", 0)
    assert [(a.attempt, a.state, a.error) for a in trial.runs[0].attempts] == [
        (1, "FAIL", "RuntimeError: out of luck"),
        (2, "COMPLETE", None),
    ]
    assert store.start_attempt(lease, record.id).state == RunState.COMPLETE  # finished stays finished


def test_interruption_is_no_failure(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, _) = leased(store, two_searches)
    record = run(store, lease, search, 0, None)
    for _ in range(2):  # the answer to the first was lost
        waiting = store.interrupt_attempt(lease, record.id, reason="the study was paused")
        assert (waiting.state, waiting.attempt, waiting.n_failures) == (RunState.WAITING, 1, 0)
    assert store.start_attempt(lease, record.id).attempt == 2
    (first, _) = get_trial(store.engine, "digits", "admetar", 0).runs[0].attempts
    assert (first.state, first.error) == ("INTERRUPTED", "the study was paused")


def test_next_driver_closes_open_attempts_as_lost(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, _) = leased(store, two_searches)
    record = run(store, lease, search, 0, None)
    store.release_lease(lease)
    successor = store.acquire_lease(lease.study_id, owner="successor", ttl_s=60)
    assert successor is not None
    again = store.start_attempt(successor, record.id)
    assert (again.attempt, again.n_failures) == (2, 0)
    attempts = get_trial(store.engine, "digits", "admetar", 0).runs[0].attempts
    assert [a.state for a in attempts] == ["LOST", "RUNNING"]


def test_attempt_is_described(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, _) = leased(store, two_searches)
    record = run(store, lease, search, 0, None)
    start = AttemptStart(node="n1", pid=2**31, device="cuda:0", resumed_from_epoch=3, environment={"torch": "2"})
    store.add_points(lease, record.id, [], start=start)
    (attempt,) = get_trial(store.engine, "digits", "admetar", 0).runs[0].attempts
    assert (attempt.node, attempt.device, attempt.resumed_from_epoch) == ("n1", "cuda:0", 3)


def test_points_are_stored_once_and_those_trained_again_take_their_place(
    store: SqlStore, two_searches: StudyDefinition
) -> None:
    lease, (search, _) = leased(store, two_searches)
    record = run(store, lease, search, 0, None, points=curve(0.1, 0.2, 0.3))
    again = curve(0.1, 0.9, train_s=2.0)[1:]  # the worker died, its checkpoint was of epoch 1
    for _ in range(2):  # an answer may be lost
        store.add_points(lease, record.id, again)
        store.add_points(lease, record.id, curve(0.1)[:1])
    store.add_points(lease, record.id, [])
    assert [(p.epoch, p.step, p.value) for p in store.points(record.id)] == [(1, 10, 0.1), (2, 20, 0.9), (3, 30, 0.3)]
    (stored,) = store.runs(lease.study_id)
    assert (stored.epoch, stored.n_epochs, stored.step, stored.cost.train_s) == (3, 4, 30, 5.0)  # all that was trained


def test_numbers_that_are_not_finite(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, _) = leased(store, two_searches)
    metrics = {"val_accuracy": math.nan, "val_loss": math.inf, "x": -math.inf, "y": 0.1}
    point = Point(epoch=1, step=1, value=math.nan, metrics=metrics, lr=0.1)
    record = run(store, lease, search, 0, None, points=[point])
    (stored,) = store.points(record.id)
    assert stored.value is None
    assert math.isnan(stored.metrics["val_accuracy"])
    assert stored.metrics["val_loss"] == math.inf
    assert stored.metrics["x"] == -math.inf
    assert stored.metrics["y"] == 0.1
    store.finish_run(lease, record.id, RunOutcome(state=RunState.COMPLETE, value=math.inf))
    assert store.runs(lease.study_id)[0].value is None


def test_text_that_no_database_takes(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, _) = leased(store, two_searches)
    outcome = dataclasses.replace(CRASHED, error="a\0b \ud800 ü")
    run(store, lease, search, 0, outcome)
    error = store.runs(lease.study_id)[0].error
    assert error is not None
    assert error.startswith("a\ufffdb ")
    assert error.endswith(" ü")


@pytest.mark.parametrize("outcome", [complete(0.7, test_accuracy=0.6), DIVERGED, RunOutcome(state=RunState.PRUNED)])
def test_finished_run_stays_as_it_is(store: SqlStore, two_searches: StudyDefinition, outcome: RunOutcome) -> None:
    lease, (search, _) = leased(store, two_searches)
    run(store, lease, search, 0, outcome)
    (first,) = store.runs(lease.study_id)
    assert first.state == outcome.state
    assert (first.value, first.failure, first.error) == (outcome.value, outcome.failure, outcome.error)
    assert first.test_metrics == outcome.test_metrics
    store.finish_run(lease, first.id, complete(0.99))
    store.fail_attempt(lease, first.id, outcome=CRASHED)
    assert store.runs(lease.study_id) == [first]


def test_run_that_never_started_can_finish(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, _) = leased(store, two_searches)
    record = store.create_run(lease, search.id, trial_number=0, stage=Stage.SEARCH, seed=0, params={})
    store.finish_run(lease, record.id, RunOutcome(state=RunState.FAIL, failure=FailureKind.CANCELLED))
    assert store.runs(lease.study_id)[0].failure == FailureKind.CANCELLED
    with pytest.raises(ValueError, match="RUNNING"):
        store.finish_run(lease, record.id, RunOutcome(state=RunState.RUNNING))


def test_study_states(store: SqlStore, engine: Engine) -> None:
    lease, _ = leased(store, definition("ends"))
    assert store.set_study_state(lease, StudyState.COMPLETED, reason="all done") == StudyState.COMPLETED
    assert store.set_study_state(lease, StudyState.RUNNING) == StudyState.COMPLETED
    study = store.get_study(lease.study_id)
    assert (study.state, study.reason) == (StudyState.COMPLETED, "all done")
    assert study.finished_at is not None

    lease, _ = leased(store, definition("waits"))
    store.set_study_state(lease, StudyState.RUNNING)
    for reason in ("waits for a card", None):
        assert store.set_study_state(lease, StudyState.RUNNING, reason=reason) == StudyState.RUNNING
        assert store.get_study(lease.study_id).reason == reason

    lease, _ = leased(store, definition("paused"))
    request_pause(engine, "paused")
    assert store.renew_lease(lease) == StudyState.PAUSED
    assert store.set_study_state(lease, StudyState.RUNNING) == StudyState.PAUSED  # a start does not undo a pause

    lease, (search, _) = leased(store, definition("cancelled"))
    record = run(store, lease, search, 0, None)
    request_cancel(engine, "cancelled")
    assert store.renew_lease(lease) == StudyState.CANCELLED
    assert store.set_study_state(lease, StudyState.COMPLETED) == StudyState.CANCELLED
    store.finish_run(lease, record.id, DIVERGED)  # the driver may still close what it has
    store.release_lease(lease)
    assert store.acquire_lease(lease.study_id, owner="next", ttl_s=60) is None  # nothing to drive any more


def test_every_write_is_fenced(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, _) = leased(store, two_searches)
    record = run(store, lease, search, 0, None)
    store.release_lease(lease)
    new = store.acquire_lease(lease.study_id, owner="new", ttl_s=60)
    assert new is not None
    start = AttemptStart(node="n", pid=1, device="cpu", resumed_from_epoch=0, environment={})
    writes = [
        lambda: store.renew_lease(lease),
        lambda: store.set_study_state(lease, StudyState.FAILED),
        lambda: store.create_run(lease, search.id, trial_number=1, stage=Stage.SEARCH, seed=0, params={}),
        lambda: store.start_attempt(lease, record.id),
        lambda: store.add_points(lease, record.id, [], start=start),
        lambda: store.add_points(lease, record.id, curve(0.1)),
        lambda: store.fail_attempt(lease, record.id, outcome=CRASHED),
        lambda: store.interrupt_attempt(lease, record.id, reason="paused"),
        lambda: store.finish_run(lease, record.id, complete(1.0)),
        lambda: store.keep_card_facts(lease, "0" * 64, "H200", FACTS),
    ]
    before = (store.get_study(lease.study_id), store.runs(lease.study_id), store.points(record.id))
    for write in writes:
        with pytest.raises(LeaseLostError, match="driver"):
            write()
    assert (store.get_study(lease.study_id), store.runs(lease.study_id), store.points(record.id)) == before
    store.release_lease(lease)  # not its own any more: nothing happens
    assert store.renew_lease(new) == StudyState.RUNNING


def test_lease_of_the_same_owner_is_kept(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, _ = leased(store, two_searches)
    assert store.acquire_lease(lease.study_id, owner="driver", ttl_s=60) == lease
    assert store.acquire_lease(lease.study_id, owner="other", ttl_s=60) is None


def test_a_lease_of_before_a_step_of_the_clock_is_free(store: SqlStore) -> None:
    """Its end is an hour away after a step of an hour: no driver could have it so long."""
    lease, _ = leased(store, definition("stepped"))
    with store.engine.begin() as connection:
        connection.execute(
            update(Study)
            .where(Study.id == lease.study_id)
            .values(lease_expires_at=datetime.now(UTC) + timedelta(hours=1))
        )
    assert runnable_studies(store.engine) == [lease.study_id]
    assert store.acquire_lease(lease.study_id, owner="other", ttl_s=60) is not None


def test_no_end_is_before_its_start(store: SqlStore) -> None:
    """The machine's clock was set back in between."""
    lease, (search, *_) = leased(store, definition("stepped"))
    runs = [
        store.create_run(lease, search.id, trial_number=number, stage=Stage.SEARCH, seed=0, params={})
        for number in range(3)
    ]
    for record in runs:
        store.start_attempt(lease, record.id)
    back = SqlStore(store.engine, clock=lambda: datetime.now(UTC) - timedelta(hours=1))
    back.finish_run(lease, runs[0].id, complete(0.5))
    back.fail_attempt(lease, runs[1].id, outcome=CRASHED)
    back.set_study_state(lease, StudyState.FAILED)
    with Session(store.engine) as session:
        for kind in (Study, Run, Attempt):
            rows = session.scalars(select(kind).where(kind.finished_at.is_not(None))).all()
            assert rows
            assert all(row.started_at == row.finished_at for row in rows)


def test_what_a_study_found_about_a_card_is_there_for_the_next(store: SqlStore) -> None:
    lease, _ = leased(store, definition("first"))
    fewer = dataclasses.replace(FACTS, n_at_once=4, reason="8 ran out of memory")
    for shape, card, facts in (("a", "H200", FACTS), ("a", "", FACTS), ("b", "H200", FACTS), ("a", "H200", fewer)):
        store.keep_card_facts(lease, shape, card, facts)
    assert store.card_facts("a") == {"H200": fewer, "": FACTS}
    assert store.card_facts("c") == {}


def test_rivals_are_the_other_studies_at_work(store: SqlStore) -> None:
    mine, _ = leased(store, definition("mine"))
    other, (search, _) = leased(store, definition("other", priority=3, resources={"cpus": 2, "gpus": 0.5}))
    expired, _ = leased(store, definition("expired"))
    store.acquire_lease(expired.study_id, owner="driver", ttl_s=-1)
    run(store, other, search, 0, None)
    run(store, other, search, 1, complete(0.5))
    store.create_run(other, search.id, trial_number=2, stage=Stage.SEARCH, seed=0, params={})
    (rival,) = store.competing_studies(mine.study_id)
    assert rival == CompetingStudy(priority=3, n_runs=2, cpus=0, gpus=0)  # its driver has told nothing yet
    for gpus in (0.25, 0.0625):
        store.set_run_size(other, Capacity(cpus=2, gpus=gpus))
        (rival,) = store.competing_studies(mine.study_id)
        assert rival == CompetingStudy(priority=3, n_runs=2, cpus=2, gpus=gpus)
    with pytest.raises(LeaseLostError):
        store.set_run_size(dataclasses.replace(other, owner="another"), Capacity(cpus=1, gpus=0))


def test_expired_lease_can_be_taken_or_renewed(store: SqlStore) -> None:
    lease, _ = leased(store, definition("taken"))
    short = store.acquire_lease(lease.study_id, owner="driver", ttl_s=-1)
    assert short is not None
    assert store.acquire_lease(lease.study_id, owner="other", ttl_s=60) is not None
    with pytest.raises(LeaseLostError):
        store.renew_lease(short)

    lease, _ = leased(store, definition("kept"))
    assert store.acquire_lease(lease.study_id, owner="driver", ttl_s=-1) is not None
    store.renew_lease(lease)  # expired, but nobody took it
    assert store.acquire_lease(lease.study_id, owner="other", ttl_s=60) is None


def test_one_of_many_wins_the_lease(url: str, store: SqlStore) -> None:
    """Each owner with an engine of its own, as in processes of their own."""
    lease, _ = leased(store, definition())
    engines = [make_engine(url, pool_size=1) for _ in range(6)]
    stores = [SqlStore(engine) for engine in engines]
    with ThreadPoolExecutor(len(stores)) as pool:
        for round_ in range(8):
            assert store.acquire_lease(lease.study_id, owner="driver", ttl_s=-1) is not None

            def acquire(i: int, round_: int = round_) -> Lease | None:
                return stores[i].acquire_lease(lease.study_id, owner=f"{round_}/{i}", ttl_s=60)

            won = [taken for taken in pool.map(acquire, range(len(stores))) if taken is not None]
            assert len(won) == 1
            store.renew_lease(won[0])
            store.release_lease(won[0])
            assert store.acquire_lease(lease.study_id, owner="driver", ttl_s=60) is not None
    for engine in engines:
        engine.dispose()


def test_many_threads_write_one_study(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, _) = leased(store, two_searches)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: run(store, lease, search, n, complete(n / 10), points=curve(0.1, 0.2)), range(24)))
    runs = store.runs(lease.study_id)
    assert sorted(r.trial_number for r in runs) == list(range(24))
    assert {(r.state, r.epoch) for r in runs} == {(RunState.COMPLETE, 2)}


def test_same_run_from_many_threads_is_one(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, (search, _) = leased(store, two_searches)
    with ThreadPoolExecutor(8) as pool:
        records = list(
            pool.map(
                lambda _: store.create_run(
                    lease, search.id, trial_number=0, stage=Stage.SEARCH, seed=0, params={"lr": 1.0}
                ),
                range(8),
            )
        )
    assert len({record.id for record in records}) == 1


def test_store_does_not_leak_the_password() -> None:
    store = SqlStore(make_engine("postgresql://user:s3cret@db.example:5432/admeta"))
    assert "s3cret" not in repr(store)
    assert "db.example" in repr(store)
    assert "s3cret" not in repr(store.engine)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(store)


def test_definition_of_another_version_is_named(store: SqlStore, two_searches: StudyDefinition) -> None:
    lease, _ = leased(store, two_searches)
    with store.engine.begin() as connection:
        connection.execute(text('UPDATE admeta_studies SET definition = \'{"name": "digits"}\''))
    with pytest.raises(SearchError, match="study 'digits' cannot be read"):
        SqlStore(store.engine).get_study(lease.study_id)
