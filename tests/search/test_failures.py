"""What counts against a run and what does not; runs that are stopped or cancelled from outside; what Tune reports."""

from __future__ import annotations

import errno
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError, RuntimeEnvSetupError

from search.assignment import Assignment, Report
from search.coordinator import FREE_FALSE_STARTS, Coordinator, Idle
from search.errors import LeaseLostError
from search.records import Point, RunOutcome, RunRecord, StudyRecord
from search.states import FailureKind, RunState
from search.stopping import END_S, SAVE_S, StopSwitch
from search.trainable import PreemptedError
from search.tuning import AttemptCallback, StudyLoop, StudyScheduler, StudySearcher, describe
from tasks.engine.protocol import Cost
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def study(store: MemoryStore) -> StudyRecord:
    return store.add_study(define(optimizers=[{"name": "sgdm"}], max_failures=1, confirm={"top_k": 0}))


def start(coordinator: Coordinator, ticket: str) -> Assignment:
    """The next run, on a worker."""
    assignment = coordinator.next(ticket)
    assert not isinstance(assignment, Idle)
    coordinator.begin(ticket)
    return assignment


def epoch(n: int) -> Report:
    point = Point(epoch=n, step=n, value=0.1 * n, metrics={"val_score": 0.1 * n})
    return Report(points=[point])


def only_run(store: MemoryStore, study: StudyRecord) -> RunRecord:
    (run,) = store.runs(study.id)
    return run


def only_trial(store: MemoryStore) -> FrozenTrial:
    """Optuna's trial of the first run."""
    storage = store.optuna_storage()
    return storage.get_all_trials(storage.get_study_id_from_name("small/sgdm"))[0]


def test_a_lost_node_does_not_count_where_the_run_came_further(store: MemoryStore, study: StudyRecord) -> None:
    coordinator = coordinator_for(store, study, slots=1)
    for n in (1, 2):
        start(coordinator, f"t{n}")
        coordinator.report(f"t{n}", epoch(n))
        coordinator.fail(f"t{n}", kind=FailureKind.PREEMPTED, error="its node has died")
        assert (only_run(store, study).state, only_run(store, study).n_failures) == (RunState.WAITING, 0)
    for n in (3, 4):  # no further: it may be the run that kills its nodes
        start(coordinator, f"t{n}")
        coordinator.fail(f"t{n}", kind=FailureKind.PREEMPTED, error="its node has died")
    assert only_run(store, study).failure is FailureKind.PREEMPTED
    assert only_run(store, study).attempt == 4


def test_a_worker_that_never_began_is_replaced_a_few_times(store: MemoryStore, study: StudyRecord) -> None:
    coordinator = coordinator_for(store, study, slots=1)
    for n in range(FREE_FALSE_STARTS):
        assert not isinstance(coordinator.next(f"t{n}"), Idle)
        coordinator.fail(f"t{n}", kind=FailureKind.LOST, error="gone")
        assert (only_run(store, study).state, only_run(store, study).attempt) == (RunState.WAITING, 0)
    for n in (10, 11):
        coordinator.next(f"t{n}")
        coordinator.fail(f"t{n}", kind=FailureKind.LOST, error="gone")
    assert (only_run(store, study).state, only_run(store, study).attempt) == (RunState.FAIL, 2)


def test_a_worker_that_cannot_start_counts_at_once(store: MemoryStore, study: StudyRecord) -> None:
    coordinator = coordinator_for(store, study, slots=1)
    for n in range(2):
        coordinator.next(f"t{n}")
        coordinator.fail(f"t{n}", kind=FailureKind.ERROR, error="no module named admeta")
    assert (only_run(store, study).state, only_run(store, study).error) == (RunState.FAIL, "no module named admeta")


def test_an_interrupted_run_waits_and_goes_on(store: MemoryStore, study: StudyRecord) -> None:
    coordinator = coordinator_for(store, study, slots=1)
    first = start(coordinator, "t0")
    coordinator.report("t0", epoch(1))
    coordinator.interrupt("t0", reason="the study was paused")
    assert (only_run(store, study).state, only_run(store, study).n_failures) == (RunState.WAITING, 0)
    again = start(coordinator_for(store, study, owner="second", slots=1), "t1")
    assert (again.run_id, again.checkpoint_dir) == (first.run_id, first.checkpoint_dir)


def test_a_cancelled_trial_leaves_and_the_rest_goes_on(store: MemoryStore, study: StudyRecord) -> None:
    cluster = Cluster(coordinator_for(store, study))
    next(iter(cluster.rounds()))
    ticket, (assignment, _) = next(iter(cluster.live.items()))
    run = store.all_runs[assignment.run_id]
    store.all_runs[run.id] = replace(run, state=RunState.FAIL, failure=FailureKind.CANCELLED)
    assert cluster.coordinator.drop_cancelled() == [ticket]
    assert cluster.coordinator.drop_cancelled() == []
    assert cluster.coordinator.report(ticket, epoch(2))  # what its worker still says changes nothing
    cluster.coordinator.fail(ticket, kind=FailureKind.LOST, error="killed")
    del cluster.live[ticket]
    cluster.run()
    assert [r.state for r in store.runs(study.id)].count(RunState.COMPLETE) == 3
    assert store.all_runs[run.id].failure is FailureKind.CANCELLED
    optuna_id = store.optuna_storage().get_study_id_from_name("small/sgdm")
    states = [trial.state for trial in store.optuna_storage().get_all_trials(optuna_id)]
    assert (states.count(TrialState.FAIL), states.count(TrialState.COMPLETE)) == (1, 3)


def test_points_that_a_dead_driver_did_not_tell_optuna_are_told(store: MemoryStore, study: StudyRecord) -> None:
    start(coordinator_for(store, study, slots=1), "t0")
    run = only_run(store, study)
    store.curves[run.id] = {1: epoch(1).points[0]}  # stored; the driver died before it could report
    store.all_runs[run.id] = replace(run, epoch=1, step=1)
    second = coordinator_for(store, study, owner="second", slots=1)
    start(second, "t1")
    second.report("t1", epoch(2))
    optuna_id = store.optuna_storage().get_study_id_from_name("small/sgdm")
    (trial,) = store.optuna_storage().get_all_trials(optuna_id)
    assert sorted(trial.intermediate_values) == [1, 2]


@pytest.mark.parametrize("retries", [0, 1])
def test_what_was_reported_before_a_crash_stays(store: MemoryStore, retries: int) -> None:
    """syne-tune issue 252, ray issue 34136: five reports, then the worker dies for good."""
    study = store.add_study(
        define(
            task={"name": "synthetic", "model": "idle", "epochs": 9},
            optimizers=[{"name": "sgdm"}],
            budget={"trials_per_optimizer": 1},
            max_failures=retries,
            confirm={"top_k": 0},
        )
    )
    coordinator = coordinator_for(store, study, slots=1)
    for n in range(retries + 1):
        start(coordinator, f"t{n}")
        for e in range(1, 6 if n == 0 else 3):  # a retry without a checkpoint does not come as far
            coordinator.report(f"t{n}", epoch(e))
        coordinator.fail(f"t{n}", kind=FailureKind.LOST, error="gone")
    run = only_run(store, study)
    assert (run.state, run.epoch) == (RunState.FAIL, 5)
    assert [p.epoch for p in store.points(run.id)] == [1, 2, 3, 4, 5]
    assert sorted(only_trial(store).intermediate_values) == [1, 2, 3, 4, 5]


def test_the_curve_is_that_of_the_attempt_which_came_to_its_end(store: MemoryStore) -> None:
    """Optuna drops a step that was reported before, so that a retry's curve would be a mixture of both."""
    study = store.add_study(define(optimizers=[{"name": "sgdm"}], max_failures=1, confirm={"top_k": 0}))
    coordinator = coordinator_for(store, study, slots=1)
    start(coordinator, "t0")
    for e in (1, 2):
        coordinator.report("t0", epoch(e))
    coordinator.fail("t0", kind=FailureKind.LOST, error="gone")
    start(coordinator, "t1")  # its checkpoint is of epoch 1
    again = [
        Point(epoch=e, step=e, value=0.7 + e / 100, metrics={"val_score": 0.7}, cost=Cost(train_s=1.0)) for e in (2, 3)
    ]
    coordinator.report("t1", Report(points=[epoch(1).points[0], again[0]]))
    coordinator.report("t1", Report(points=again[1:], end=RunOutcome(state=RunState.COMPLETE, value=again[1].value)))
    run = only_run(store, study)
    assert [p.value for p in store.points(run.id)] == [0.1, again[0].value, again[1].value]
    assert only_trial(store).intermediate_values == {1: 0.1, 2: again[0].value, 3: again[1].value}
    assert (run.value, run.cost.train_s) == (again[1].value, 2.0)


class _Trial:
    trial_id = "t0"


def test_what_the_coordinator_raises_inside_tune_reaches_the_driver(store: MemoryStore, study: StudyRecord) -> None:
    """Tune would log it and go on, or hold it against the run."""
    coordinator, stop = coordinator_for(store, study, slots=1), StopSwitch()
    searcher, scheduler = StudySearcher(coordinator, stop), StudyScheduler(coordinator, stop)
    assert searcher.suggest("t0")["assignment"]["optimizer"] == "sgdm"
    store.owners[study.id] = "another driver"
    trial: Any = _Trial()
    AttemptCallback(coordinator, stop).on_trial_start(0, [], trial)
    assert isinstance(stop.error, LeaseLostError)
    assert stop.is_thrown
    assert scheduler.on_trial_result(None, trial, epoch(1).to_result()) == "STOP"
    assert searcher.suggest("t1") == "FINISHED"


def test_draining_ends_each_run_at_its_next_evaluation(store: MemoryStore, study: StudyRecord) -> None:
    coordinator, stop = coordinator_for(store, study, slots=1), StopSwitch()
    searcher, scheduler = StudySearcher(coordinator, stop), StudyScheduler(coordinator, stop)
    searcher.suggest("t0")
    trial: Any = _Trial()
    AttemptCallback(coordinator, stop).on_trial_start(0, [], trial)
    assert scheduler.on_trial_result(None, trial, epoch(1).to_result()) == "CONTINUE"
    loop = StudyLoop.__new__(StudyLoop)
    loop.__dict__ |= {
        "_scheduler_alg": scheduler,
        "_stopping_actors": {},
        "_earliest_stopping_actor": 0.0,
        "_actor_cleanup_timeout": 0,
    }
    loop._cleanup_stopping_actors()
    assert not stop.is_thrown
    assert loop._actor_force_cleanup_timeout == END_S
    stop.drain()
    assert searcher.suggest("t1") == "FINISHED"
    assert scheduler.on_trial_result(None, trial, epoch(2).to_result()) == "STOP"
    assert (only_run(store, study).state, only_run(store, study).epoch) == (RunState.WAITING, 2)
    loop._cleanup_stopping_actors()
    assert not stop.is_thrown
    assert loop._actor_force_cleanup_timeout == SAVE_S  # for the checkpoints, on a slow storage
    stop.throw()  # the study is cancelled
    loop._cleanup_stopping_actors()
    assert stop.is_thrown
    assert loop._actor_force_cleanup_timeout == END_S


def test_a_run_that_is_given_back_waits_and_counts_as_no_failure(
    store: MemoryStore, study: StudyRecord, tmp_path: Path
) -> None:
    coordinator, stop = coordinator_for(store, study, slots=1), StopSwitch()
    scheduler = StudyScheduler(coordinator, stop)
    start(coordinator, "t0")
    trial: Any = _Trial()
    trial.pickled_error_file = tmp_path / "error"
    trial.pickled_error_file.write_bytes(pickle.dumps(RayTaskError("train", "trace", PreemptedError("told to stop"))))
    for _ in range(2):  # the second time it is not live any more
        scheduler.on_trial_error(None, trial)
    assert stop.error is None
    assert (only_run(store, study).state, only_run(store, study).n_failures) == (RunState.WAITING, 0)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ActorDiedError(), FailureKind.LOST, "the worker died"),
        (RayActorError(error_msg="The actor died because its node has died."), FailureKind.PREEMPTED, "went away"),
        (RayActorError(preempted=True), FailureKind.PREEMPTED, "went away"),
        (ActorUnavailableError("connection reset by peer", None), FailureKind.PREEMPTED, "was cut off"),
        (RuntimeEnvSetupError("pip timed out"), FailureKind.LOST, "could not prepare the worker's environment"),
        (RayActorError(error_msg="No module", actor_init_failed=True), FailureKind.ERROR, "could not start: No module"),
        (RayTaskError("train", "trace", ValueError("bad luck")), FailureKind.ERROR, "ValueError: bad luck"),
        (
            RayTaskError("train", "trace", OSError(errno.ENOSPC, "No space left on device")),
            FailureKind.LOST,
            "disk is full",
        ),
        (RuntimeError("Tune's own"), FailureKind.ERROR, "RuntimeError: Tune's own"),
        (RayTaskError("train", "trace", ValueError("x" * 10**6)), FailureKind.ERROR, "ValueError: xxx"),
    ],
)
def test_errors_are_told_apart(error: BaseException, kind: FailureKind, words: str) -> None:
    found, text = describe(error)
    assert found is kind
    assert words in text
    assert len(text) < 5000
