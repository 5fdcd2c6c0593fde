"""The coordinator decides a study: turns, restarts, warm starts, confirmation. No Ray, no SQL, no clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from optuna.trial import TrialState

from search.assignment import Assignment, Report
from search.coordinator import Idle
from search.records import Point, StudyRecord
from search.sections import Budget, WarmStart
from search.states import FailureKind, RunState, Stage, StudyState
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, by_learning_rate, coordinator_for, define


def optuna_states(store: MemoryStore, study: StudyRecord, label: str) -> Counter[TrialState]:
    storage = store.optuna_storage()
    study_id = storage.get_study_id_from_name(f"{study.name}/{label}")
    return Counter(trial.state for trial in storage.get_all_trials(study_id))


def test_every_optimizer_gets_its_trials_and_the_best_is_confirmed() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    Cluster(coordinator_for(store, study)).run()

    runs = store.runs(study.id)
    assert Counter((run.stage, run.state) for run in runs) == {
        (Stage.SEARCH, RunState.COMPLETE): 8,
        (Stage.CONFIRM, RunState.COMPLETE): 4,
    }
    for search in store.searches(study.id):
        own = [run for run in runs if run.search_id == search.id]
        best = max((run for run in own if run.stage is Stage.SEARCH), key=lambda run: run.value or 0.0)
        confirmed = [run for run in own if run.stage is Stage.CONFIRM]
        assert {(run.trial_number, run.seed) for run in confirmed} == {(best.trial_number, 0), (best.trial_number, 1)}
        assert all(run.params == best.params and "test_score" in run.test_metrics for run in confirmed)
        assert optuna_states(store, study, search.label) == {TrialState.COMPLETE: 4}


def test_search_and_confirm_never_share_a_seed() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    Cluster(coordinator_for(store, study)).run()
    seeds = {stage: {run.seed for run in store.runs(study.id) if run.stage is stage} for stage in Stage}
    assert not seeds[Stage.SEARCH] & seeds[Stage.CONFIRM]


def test_turns_are_fair_when_only_one_run_fits() -> None:
    store = MemoryStore()
    study = store.add_study(define(confirm={"top_k": 0}))
    cluster = Cluster(coordinator_for(store, study, slots=1))
    cluster.run()
    assert [a.label for a in cluster.started] == ["adamw", "sgdm"] * 4


@pytest.mark.parametrize(("slots", "limit", "most"), [(1, None, 1), (3, None, 3), (8, 2, 2), (2, 8, 2)])
def test_no_more_runs_are_live_than_fit(slots: int, limit: int | None, most: int) -> None:
    store = MemoryStore()
    study = store.add_study(define(max_concurrent_trials=limit))
    cluster = Cluster(coordinator_for(store, study, slots=slots))
    assert max(len(cluster.live) for _ in cluster.rounds()) == most


def test_pruning_compares_trials_of_one_optimizer_only() -> None:
    """sgdm is worse than adamw in every trial; it still gets its best trial to the end."""

    def score(assignment: Assignment, epoch: int) -> float:
        return by_learning_rate(assignment, epoch) - (100.0 if assignment.label == "sgdm" else 0.0)

    store = MemoryStore()
    study = store.add_study(
        define(pruner={"name": "asha", "min_epochs": 1, "reduction_factor": 2}, budget={"trials_per_optimizer": 8})
    )
    Cluster(coordinator_for(store, study), score).run()
    for search in store.searches(study.id):
        states = Counter(run.state for run in store.runs(study.id) if run.search_id == search.id)
        assert states[RunState.PRUNED] > 0
        assert states[RunState.COMPLETE] >= 3
        optuna = optuna_states(store, study, search.label)
        assert optuna[TrialState.PRUNED] == states[RunState.PRUNED]


def test_a_pruned_trial_keeps_its_last_point() -> None:
    store = MemoryStore()
    study = store.add_study(
        define(pruner={"name": "asha", "min_epochs": 1, "reduction_factor": 2}, budget={"trials_per_optimizer": 8})
    )
    Cluster(coordinator_for(store, study)).run()
    pruned = [run for run in store.runs(study.id) if run.state is RunState.PRUNED]
    assert pruned
    for run in pruned:
        points = store.points(run.id)
        assert [point.epoch for point in points] == list(range(1, run.epoch + 1))
        assert run.value == points[-1].value


@pytest.mark.parametrize("kill_after", range(1, 16, 2))
def test_a_new_driver_finishes_what_the_dead_one_left(kill_after: int) -> None:
    """Exactly the budget, whatever was live; nothing that was finished is run again."""
    store = MemoryStore()
    study = store.add_study(define(confirm={"top_k": 1, "seeds": [0, 1, 2]}))
    first = Cluster(coordinator_for(store, study))
    for number in first.rounds():
        if number == kill_after:
            break
    finished = {run.id for run in store.runs(study.id) if run.state.is_finished}
    second = Cluster(coordinator_for(store, study, owner="second"))
    second.run()

    runs = store.runs(study.id)
    assert Counter(run.stage for run in runs) == {Stage.SEARCH: 8, Stage.CONFIRM: 6}
    assert all(run.state is RunState.COMPLETE for run in runs)
    assert not finished & {assignment.run_id for assignment in second.started}
    for search in store.searches(study.id):
        assert optuna_states(store, study, search.label) == {TrialState.COMPLETE: 4}


def test_a_trial_left_half_made_is_completed_first() -> None:
    """The driver died between Optuna's ask and our run: the trial is adopted, none is added."""
    store = MemoryStore()
    study = store.add_study(define())
    coordinator_for(store, study)  # creates the Optuna studies
    storage = store.optuna_storage()
    optuna_id = storage.get_study_id_from_name("small/adamw")
    storage.create_new_trial(optuna_id)

    Cluster(coordinator_for(store, study, owner="second")).run()
    assert optuna_states(store, study, "adamw") == {TrialState.COMPLETE: 4}


def test_an_end_that_optuna_missed_is_told_at_the_next_start() -> None:
    store = MemoryStore()
    study = store.add_study(define(confirm={"top_k": 0}))
    cluster = Cluster(coordinator_for(store, study, slots=1))
    next(iter(cluster.rounds()))
    run = next(run for run in store.runs(study.id) if run.state is RunState.RUNNING)
    store.all_runs[run.id] = replace(run, state=RunState.COMPLETE, value=1.5)  # recorded by us, not yet by Optuna
    coordinator_for(store, study, owner="second")
    assert optuna_states(store, study, "adamw") == {TrialState.COMPLETE: 1}


def test_cancelling_closes_every_open_run_and_trial() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    cluster = Cluster(coordinator_for(store, study))
    for number in cluster.rounds():
        if number == 4:
            break
    cluster.coordinator.cancel()
    assert all(run.state.is_finished for run in store.runs(study.id))
    assert {r.failure for r in store.runs(study.id) if r.state is RunState.FAIL} == {FailureKind.CANCELLED}
    for search in store.searches(study.id):
        assert not optuna_states(store, study, search.label)[TrialState.RUNNING]
    assert cluster.coordinator.next("after") is Idle.DONE


def test_ten_trials_by_four_workers_and_a_restart_are_ten() -> None:
    """optuna issue 3518."""
    store = MemoryStore()
    study = store.add_study(
        define(optimizers=[{"name": "sgdm"}], budget={"trials_per_optimizer": 10}, confirm={"top_k": 0})
    )
    for number in Cluster(coordinator_for(store, study, slots=4)).rounds():
        if number == 4:
            break
    Cluster(coordinator_for(store, study, owner="second", slots=4)).run()
    assert [run.state for run in store.runs(study.id)] == [RunState.COMPLETE] * 10
    assert optuna_states(store, study, "sgdm") == {TrialState.COMPLETE: 10}


def test_the_same_configuration_is_not_trained_twice() -> None:
    space = {"lr": {"type": "categorical", "choices": [0.1, 0.01]}}
    store = MemoryStore()
    study = store.add_study(
        define(
            optimizers=[{"name": "sgdm", "space": space}],
            budget={"trials_per_optimizer": 10},
            sampler={"name": "random", "seed": 3},
            confirm={"top_k": 2, "seeds": [0]},
        )
    )
    cluster = Cluster(coordinator_for(store, study, slots=4))
    cluster.run()
    assert sum(assignment.stage is Stage.SEARCH for assignment in cluster.started) == 2
    search_runs = [run for run in store.runs(study.id) if run.stage is Stage.SEARCH]
    assert len(search_runs) == 10
    assert len({(run.params["lr"], run.value) for run in search_runs}) == 2
    assert optuna_states(store, study, "sgdm") == {TrialState.COMPLETE: 10}
    confirmed = [assignment for assignment in cluster.started if assignment.stage is Stage.CONFIRM]
    assert {assignment.settings["lr"] for assignment in confirmed} == {0.1, 0.01}  # the top two are two configurations


def test_assignments_carry_what_the_worker_needs_and_no_secret() -> None:
    store = MemoryStore()
    study = store.add_study(define(optimizers=[{"name": "admetar", "fixed": {"k": 3}}], resources={"cpus": 4}))
    coordinator = coordinator_for(store, study)
    assignment = coordinator.next("t")
    assert isinstance(assignment, Assignment)
    assert {"lr", "lambd", "k", "betas"} <= assignment.settings.keys()
    assert assignment.threads == 4
    assert assignment.checkpoint_dir == f"checkpoints/{study.id}/admetar/00000/search-100"
    assert Assignment.from_config(assignment.to_config()) == assignment


def finished_study(store: MemoryStore, **changes: object) -> StudyRecord:
    study = store.add_study(define(**{"name": "earlier", **changes}))
    Cluster(coordinator_for(store, study)).run()
    store.studies[study.id] = replace(study, state=StudyState.COMPLETED)
    del store.owners[study.id]
    return study


def test_a_warm_start_begins_with_the_best_of_earlier_studies() -> None:
    store = MemoryStore()
    earlier = finished_study(store, budget={"trials_per_optimizer": 6})
    later = store.add_study(
        define(name="later", warm_start={"n_trials": 2}, budget={"trials_per_optimizer": 20}, confirm={"top_k": 0})
    )
    Cluster(coordinator_for(store, later)).run()
    for before, after in zip(store.searches(earlier.id), store.searches(later.id), strict=True):
        old = [r for r in store.runs(earlier.id) if r.search_id == before.id and r.stage is Stage.SEARCH]
        best = sorted(old, key=lambda r: -(r.value or 0.0))[:2]  # the best one is the confirmed one
        new = [r for r in store.runs(later.id) if r.search_id == after.id and r.stage is Stage.SEARCH]
        assert [r.params for r in new[:2]] == [r.params for r in best]
        assert len(new) == 20
        assert optuna_states(store, later, after.label) == {TrialState.COMPLETE: 20}


def test_a_warm_start_takes_no_settings_of_another_recipe() -> None:
    """Three settings of a shorter training were queued first, an order of magnitude off for this one."""
    store = MemoryStore()
    finished_study(store, task={"name": "synthetic", "model": "idle", "epochs": 2})
    later = define(name="later", warm_start={})
    assert store.best_settings("adamw", like=later, studies=None, limit=3) == []
    earlier = finished_study(store, name="same")
    found = store.best_settings("adamw", like=later, studies=None, limit=3)
    assert len(found) == 3
    assert found[0].settings["lr"] in [run.params["lr"] for run in store.runs(earlier.id) if run.stage is Stage.CONFIRM]


@pytest.mark.parametrize(("n_trials", "budget", "taken"), [(3, 4, 1), (3, 10, 1), (3, 29, 2), (3, 100, 3), (1, 100, 1)])
def test_a_small_search_takes_over_one_trial_at_most(n_trials: int, budget: int, taken: int) -> None:
    warm = WarmStart(n_trials=n_trials)
    assert warm.n_trials_within(Budget(trials_per_optimizer=budget)) == taken


@pytest.mark.parametrize("kill_after", [1, 4])
def test_a_restart_does_not_warm_start_twice(kill_after: int) -> None:
    store = MemoryStore()
    finished_study(store)
    later = store.add_study(define(name="later", warm_start={"n_trials": 3}))
    for number in Cluster(coordinator_for(store, later)).rounds():
        if number == kill_after:
            break
    Cluster(coordinator_for(store, later, owner="second")).run()
    for search in store.searches(later.id):
        assert optuna_states(store, later, search.label) == {TrialState.COMPLETE: 4}


def test_a_warm_start_leaves_out_what_the_space_does_not_hold() -> None:
    store = MemoryStore()
    finished_study(store)
    narrow = {"lr": {"type": "float", "low": 10.0, "high": 20.0}}
    later = store.add_study(define(name="later", optimizers=[{"name": "sgdm", "space": narrow}], warm_start={}))
    Cluster(coordinator_for(store, later)).run()
    assert all(10.0 <= run.params["lr"] <= 20.0 for run in store.runs(later.id))
    assert optuna_states(store, later, "sgdm") == {TrialState.COMPLETE: 4}


def test_a_study_whose_workers_do_not_start_says_so() -> None:
    """Ray has room for the run, and gives it no process: after a step of the clock, say."""
    store, clock = MemoryStore(), [0.0]
    study = store.add_study(define())
    coordinator = coordinator_for(store, study, slots=1, elapsed_s=lambda: clock[0])
    coordinator.next("t0")
    for now, told in ((30.0, False), (130.0, True)):
        clock[0] = now
        coordinator.tell_why_waiting()
        assert ("has waited 2 min for Ray to start a worker" in (store.get_study(study.id).reason or "")) is told
    coordinator.begin("t0")
    coordinator.tell_why_waiting()
    assert (
        store.get_study(study.id).reason == "its first runs read the data, build the model and train their first epoch"
    )


def test_a_study_that_waits_beside_others_says_so() -> None:
    """Whether runs of other studies hold the CPUs or Ray is at fault cannot be told apart: both are named."""
    store, clock = MemoryStore(), [0.0]
    study = store.add_study(define())
    coordinator = coordinator_for(store, study, slots=1, elapsed_s=lambda: clock[0], shared=True)
    coordinator.next("t0")
    clock[0] = 130.0
    coordinator.tell_why_waiting()
    assert "2 min for Ray to start a worker; runs of other studies may hold" in (store.get_study(study.id).reason or "")


def test_what_precedes_the_first_epoch_is_told() -> None:
    """By the driver that began the study and by the next one; nothing once a run has reported."""
    store = MemoryStore()
    study = store.add_study(define())
    for slots in (0, 1):
        coordinator = coordinator_for(store, study, slots=slots)
        coordinator.next("t0")
        coordinator.tell_why_waiting()
        wanted = (
            "starts its first workers" if slots else "waits for CPUs or cards, which studies of higher priority use"
        )
        assert str(store.get_study(study.id).reason).startswith(wanted)
    coordinator.begin("t0")
    assert str(store.get_study(study.id).reason).startswith("its first runs read the data")
    coordinator.report("t0", Report(points=[Point(epoch=1, step=1, value=0.5, metrics={"val_accuracy": 0.5}, lr=0.1)]))
    assert store.get_study(study.id).reason is None


def test_searches_are_repeated_with_seeds_of_their_own() -> None:
    """Three searches of each optimizer: each draws otherwise, trains with another seed, and confirms its own best."""
    store = MemoryStore()
    definition = define(searches=3, sampler={"name": "random"})
    study = store.add_study(definition)
    Cluster(coordinator_for(store, study, slots=4)).run()
    labels = [search.label for search in store.searches(study.id)]
    assert labels == ["adamw", "adamw.2", "adamw.3", "sgdm", "sgdm.2", "sgdm.3"]
    runs = store.runs(study.id)
    assert len(runs) == definition.n_runs == 6 * (4 + 2)
    drawn = {}
    for search in store.searches(study.id):
        own = [run for run in runs if run.search_id == search.id]
        searched = [run for run in own if run.stage is Stage.SEARCH]
        drawn[search.label] = tuple(run.params["lr"] for run in searched)
        repeat = definition.planned_search(search.label).repeat
        assert {run.seed for run in searched} == {definition.training_seed + repeat}
        best = max(searched, key=lambda run: run.value or 0.0)
        confirm = [(run.trial_number, run.seed) for run in own if run.stage is Stage.CONFIRM]
        assert confirm == [(best.trial_number, 0), (best.trial_number, 1)]
    assert len(set(drawn.values())) == 6


@pytest.mark.parametrize("kill_after", [2, 7, 12])
def test_repeated_searches_go_on_after_a_driver_died(kill_after: int) -> None:
    whole_store = MemoryStore()
    whole = whole_store.add_study(define(searches=2))
    Cluster(coordinator_for(whole_store, whole, slots=1)).run()
    store = MemoryStore()
    study = store.add_study(define(searches=2))
    for number in Cluster(coordinator_for(store, study, slots=1)).rounds():
        if number == kill_after:
            break
    Cluster(coordinator_for(store, study, owner="second", slots=1)).run()

    def ended(of: MemoryStore, study: StudyRecord) -> list[tuple[object, ...]]:
        return sorted((r.search_id, r.trial_number, r.stage, r.seed, str(r.params), r.value) for r in of.runs(study.id))

    assert ended(store, study) == ended(whole_store, whole)
