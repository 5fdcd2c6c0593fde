"""The coordinator and failures: what is tried again, when a search gives up, what the study says. No Ray, no SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from optuna.trial import TrialState

from search.assignment import Assignment
from search.records import StudyRecord
from search.states import FailureKind, RunState, Stage
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, by_learning_rate, coordinator_for, define


def optuna_states(store: MemoryStore, study: StudyRecord, label: str) -> Counter[TrialState]:
    storage = store.optuna_storage()
    study_id = storage.get_study_id_from_name(f"{study.name}/{label}")
    return Counter(trial.state for trial in storage.get_all_trials(study_id))


def test_divergence_is_a_result_and_not_retried() -> None:
    def score(assignment: Assignment, epoch: int) -> float | None:
        return None if assignment.trial_number == 1 and epoch == 2 else by_learning_rate(assignment, epoch)

    store = MemoryStore()
    study = store.add_study(define(max_failures=2))
    cluster = Cluster(coordinator_for(store, study), score)
    cluster.run()
    failed = [run for run in store.runs(study.id) if run.state is RunState.FAIL and run.stage is Stage.SEARCH]
    assert [run.trial_number for run in failed] == [1, 1]
    assert all(run.failure is FailureKind.DIVERGED and run.attempt == 1 for run in failed)
    assert failed[0].error == "diverged at step 2"
    assert optuna_states(store, study, "adamw") == {TrialState.COMPLETE: 3, TrialState.FAIL: 1}


@pytest.mark.parametrize(("n_errors", "state", "attempts"), [(1, RunState.COMPLETE, 2), (2, RunState.FAIL, 2)])
def test_an_error_is_retried_up_to_max_failures(n_errors: int, state: RunState, attempts: int) -> None:
    store = MemoryStore()
    study = store.add_study(define(max_failures=1))
    errors = [(FailureKind.ERROR, "RuntimeError: out of luck")] * n_errors
    cluster = Cluster(coordinator_for(store, study), failures={("adamw", 2, Stage.SEARCH, 100): errors})
    cluster.run()
    run = next(r for r in store.runs(study.id) if r.search_id == store.searches(study.id)[0].id and r.trial_number == 2)
    assert (run.state, run.attempt, run.n_failures) == (state, attempts, n_errors)
    assert (run.error == "RuntimeError: out of luck") is (state is RunState.FAIL)
    assert sum(r.stage is Stage.SEARCH for r in store.runs(study.id)) == 8


@pytest.mark.parametrize(
    ("raised", "n_failures"),
    [
        (["NameError: x"] * 6, 2),
        (["OSError: away", "NameError: x", "NameError: x", "NameError: x"], 3),
        (["OSError: 1", "OSError: 2"] * 3, 6),
        ([None, "OSError: disk full"] * 6, 6),
    ],
)
def test_an_exception_that_repeats_itself_before_the_first_epoch_is_not_tried_again(
    raised: Sequence[str | None], n_failures: int
) -> None:
    """It is the code's. After an epoch it may be the machine's, and one that differs may be chance."""
    store = MemoryStore()
    study = store.add_study(define(optimizers=["sgdm"], max_failures=5, confirm={"top_k": 0}))
    failures = {
        ("sgdm", 1, Stage.SEARCH, 100): [None if error is None else (FailureKind.ERROR, error) for error in raised]
    }
    Cluster(coordinator_for(store, study), failures=failures).run()
    (run,) = [run for run in store.runs(study.id) if run.state is RunState.FAIL]
    assert (run.n_failures, run.failure) == (n_failures, FailureKind.ERROR)
    assert run.error == [error for error in raised if error][n_failures - 1]


def test_one_optimizer_that_always_fails_does_not_stop_the_others() -> None:
    def score(assignment: Assignment, epoch: int) -> float | None:
        return None if assignment.label == "adamw" else by_learning_rate(assignment, epoch)

    store = MemoryStore()
    study = store.add_study(define())
    Cluster(coordinator_for(store, study), score).run()
    adamw, sgdm = store.searches(study.id)
    assert {r.state for r in store.runs(study.id) if r.search_id == adamw.id} == {RunState.FAIL}
    assert sum(r.stage is Stage.CONFIRM for r in store.runs(study.id) if r.search_id == sgdm.id) == 2
    assert not any(r.stage is Stage.CONFIRM for r in store.runs(study.id) if r.search_id == adamw.id)


def test_a_study_says_which_optimizer_has_no_result() -> None:
    """An exception and a missing metric alike, and the last trial's error; another optimizer's results stay."""
    store = MemoryStore()
    study = store.add_study(define(budget={"trials_per_optimizer": 3}, max_failures=0))
    coordinator = coordinator_for(store, study)
    failures = {("adamw", n, Stage.SEARCH, 100): [(FailureKind.ERROR, f"ValueError: no {n}")] for n in range(3)}
    Cluster(coordinator, failures=failures).run()
    assert coordinator.completion_reason() == "adamw: all 3 trials failed, the last with: ValueError: no 2"
    assert Counter(run.state for run in store.runs(study.id)) == {RunState.FAIL: 3, RunState.COMPLETE: 5}
    resumed = coordinator_for(store, study, owner="second")
    assert resumed.completion_reason() == coordinator.completion_reason()


def test_a_search_that_fails_from_the_start_ends() -> None:
    """It is the code or the data. The other optimizer trains on, and a new driver starts no more either."""
    store = MemoryStore()
    study = store.add_study(define(budget={"trials_per_optimizer": 8}, max_failures=1))
    failures = {("adamw", n, Stage.SEARCH, 100): [(FailureKind.ERROR, f"ValueError: no {n}")] * 2 for n in range(8)}
    cluster = Cluster(coordinator_for(store, study, slots=2), failures=failures)
    for number in cluster.rounds():
        if number == 3:
            break
    coordinator = coordinator_for(store, study, owner="second", slots=2)
    Cluster(coordinator, failures=failures).run()
    runs = [run for run in store.runs(study.id) if run.stage is Stage.SEARCH]
    assert Counter(run.state for run in runs) == {RunState.FAIL: 5, RunState.COMPLETE: 8}
    assert {run.n_failures for run in runs if run.state is RunState.FAIL} == {2}
    reason = (
        "adamw: its first 5 trials failed, and no other starts until the study is extended; the last with: "
        "ValueError: no 4"
    )
    assert coordinator.completion_reason() == reason
    n_runs = len(store.runs(study.id))
    Cluster(coordinator_for(store, study, owner="third")).run()
    assert len(store.runs(study.id)) == n_runs


@pytest.mark.parametrize(
    "kinds",
    [
        [*[FailureKind.ERROR] * 4, FailureKind.DIVERGED, FailureKind.ERROR],
        [*[FailureKind.ERROR] * 3, FailureKind.OUT_OF_MEMORY, *[FailureKind.ERROR] * 2],
        [FailureKind.DIVERGED] * 6,
    ],
)
def test_a_search_goes_on_where_it_is_not_the_code_that_fails(kinds: list[FailureKind]) -> None:
    store = MemoryStore()
    study = store.add_study(define(optimizers=[{"name": "sgdm"}], budget={"trials_per_optimizer": 8}, max_failures=0))
    failures = {("sgdm", n, Stage.SEARCH, 100): [(kind, "no")] for n, kind in enumerate(kinds)}
    Cluster(coordinator_for(store, study), failures=failures).run()
    assert RunState.COMPLETE in {run.state for run in store.runs(study.id)}


def test_a_search_goes_on_where_a_trial_came_further_than_those_that_failed() -> None:
    store = MemoryStore()
    study = store.add_study(define(optimizers=[{"name": "sgdm"}], budget={"trials_per_optimizer": 8}, max_failures=0))
    failures = {("sgdm", n, Stage.SEARCH, 100): [(FailureKind.ERROR, "no")] for n in range(5)}
    Cluster(coordinator_for(store, study, slots=6), failures=failures).run()
    states = Counter(run.state for run in store.runs(study.id) if run.stage is Stage.SEARCH)
    assert states == {RunState.FAIL: 5, RunState.COMPLETE: 3}


def test_an_extended_study_gives_a_search_that_failed_from_the_start_another_chance() -> None:
    store = MemoryStore()
    fields: dict[str, Any] = {"optimizers": [{"name": "sgdm"}], "max_failures": 0, "confirm": {"top_k": 0}}
    study = store.add_study(define(**fields, budget={"trials_per_optimizer": 8}))
    failures = {("sgdm", n, Stage.SEARCH, 100): [(FailureKind.ERROR, "no")] for n in range(6)}
    Cluster(coordinator_for(store, study, slots=1), failures=failures).run()
    assert len(store.runs(study.id)) == 5
    extended = store.extend(study.id, study.definition)
    coordinator = coordinator_for(store, extended, owner="second")
    Cluster(coordinator, failures=failures).run()
    assert Counter(run.state for run in store.runs(study.id)) == {RunState.FAIL: 6, RunState.COMPLETE: 2}
    assert coordinator.completion_reason() is None


def test_one_trial_that_did_not_fail_is_a_result() -> None:
    store = MemoryStore()
    study = store.add_study(define(budget={"trials_per_optimizer": 3}, max_failures=0))
    coordinator = coordinator_for(store, study)
    failures = {("adamw", n, Stage.SEARCH, 100): [(FailureKind.ERROR, "no")] for n in range(2)}
    Cluster(coordinator, failures=failures).run()
    assert coordinator.completion_reason() is None


def test_the_first_error_is_told_before_any_trial_has_ended() -> None:
    """Whoever watches code that cannot train need not wait for all attempts of all first trials."""
    store = MemoryStore()
    study = store.add_study(define())
    coordinator = coordinator_for(store, study, slots=1)
    coordinator.next("t0")
    coordinator.begin("t0")
    coordinator.fail("t0", kind=FailureKind.ERROR, error="ValueError: 3 columns")
    reason = store.get_study(study.id).reason or ""
    assert reason.startswith("starts its first workers; ")
    assert reason.endswith(" trial 0 (search, seed 100): attempt 1 failed: ValueError: 3 columns")
    coordinator.next("t1")
    coordinator.begin("t1")
    assert "ValueError: 3 columns" in (store.get_study(study.id).reason or "")
