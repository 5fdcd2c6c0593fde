"""The coordinator decides a study: turns, budgets, retries, restarts, confirmation. No Ray, no SQL, no clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from optuna.trial import TrialState

from search.assignment import Assignment, Pace, Report
from search.coordinator import Idle
from search.packing import CardKind, Packing
from search.places import ALONE, OUT_OF_COHORT
from search.records import Point, RunOutcome, StudyRecord
from search.sections import Budget, WarmStart
from search.states import FailureKind, RunState, Stage, StudyState
from tasks.engine.protocol import Cost
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


def test_the_target_ends_a_search_and_only_that_one() -> None:
    def score(assignment: Assignment, epoch: int) -> float:
        return 0.95 if assignment.label == "adamw" and assignment.trial_number >= 1 else 0.5

    store = MemoryStore()
    study = store.add_study(
        define(budget={"trials_per_optimizer": 6, "target": 0.94}, confirm={"top_k": 0}, sampler={"name": "random"})
    )
    Cluster(coordinator_for(store, study, slots=1), score).run()
    counts = Counter(run.search_id for run in store.runs(study.id))
    adamw, sgdm = store.searches(study.id)
    assert (counts[adamw.id], counts[sgdm.id]) == (2, 6)


def test_the_epoch_budget_is_each_optimizers_own() -> None:
    store = MemoryStore()
    study = store.add_study(
        define(budget={"trials_per_optimizer": 50, "epochs_per_optimizer": 9}, confirm={"top_k": 0})
    )
    Cluster(coordinator_for(store, study, slots=1)).run()
    for search in store.searches(study.id):
        assert sum(run.epoch for run in store.runs(study.id) if run.search_id == search.id) == 9


@pytest.mark.parametrize("slots", [1, 8])
def test_an_epoch_budget_alone_pays_for_trials_until_it_is_spent(slots: int) -> None:
    """27 epochs each, stopped at 3 or 9: at most one training more than 200, however many run at once."""
    store = MemoryStore()
    task = {"name": "synthetic", "model": "idle", "epochs": 27}
    study = store.add_study(
        define(task=task, budget={"epochs_per_optimizer": 200}, pruner="asha", confirm={"top_k": 1, "seeds": [0]})
    )
    for n_rounds in Cluster(coordinator_for(store, study, slots=slots)).rounds():
        if n_rounds == 20:
            break  # the driver dies
    Cluster(coordinator_for(store, study, slots=slots, owner="second")).run()
    for search in store.searches(study.id):
        runs = [run for run in store.runs(study.id) if run.search_id == search.id]
        trials = [run for run in runs if run.stage is Stage.SEARCH]
        assert 200 <= sum(run.n_epochs for run in trials) < 200 + 27
        assert len(trials) > 200 / 27
        assert {run.epoch for run in trials if run.state is RunState.PRUNED} <= {3, 9}
        assert all(run.state.is_finished for run in runs)
        assert [run.state for run in runs if run.stage is Stage.CONFIRM] == [RunState.COMPLETE]


def test_a_search_whose_trials_spend_nothing_ends() -> None:
    """Each fails at once, of an error that no other trial repairs."""
    store = MemoryStore()
    study = store.add_study(
        define(optimizers=["adamw"], budget={"gpu_hours_per_optimizer": 1.0}, max_failures=0, confirm={"top_k": 0})
    )
    cluster = Cluster(coordinator_for(store, study, gpus=1.0))
    cluster.failures = {
        ("adamw", number, Stage.SEARCH, 100): [(FailureKind.ERROR, "no such file")] for number in range(1000)
    }
    cluster.run()
    runs = store.runs(study.id)
    assert 20 <= len(runs) < 23
    reason = cluster.coordinator.completion_reason()
    assert reason is not None
    assert reason.startswith("adamw: none of its first 20 trials trained an epoch; adamw: all ")


def test_gpu_hours_alone_pay_for_trials_until_they_are_spent() -> None:
    """An hour a training, six at once: after the first epochs it is known what the others will cost."""
    store = MemoryStore()
    study = store.add_study(define(budget={"gpu_hours_per_optimizer": 10.0}, confirm={"top_k": 0}))
    coordinator = coordinator_for(store, study, slots=6, gpus=1.0)
    live: dict[str, int] = {}
    n_started = 0
    while True:
        while isinstance(coordinator.next(f"t{n_started}"), Assignment):
            coordinator.begin(f"t{n_started}")
            live[f"t{n_started}"] = 0
            n_started += 1
        if not live:
            break
        for ticket in list(live):
            live[ticket] += 1
            end = RunOutcome(state=RunState.COMPLETE, value=0.5) if live[ticket] == 3 else None
            point = Point(epoch=live[ticket], step=1, value=0.5, metrics={}, cost=Cost(gpu_s=1200.0))
            if coordinator.report(ticket, Report(points=[point], end=end)):
                del live[ticket]
    counts = Counter(run.search_id for run in store.runs(study.id))
    assert counts == {search.id: 10 for search in store.searches(study.id)}


def test_trials_that_fail_at_once_do_not_go_on_for_ever() -> None:
    store = MemoryStore()
    study = store.add_study(define(budget={"epochs_per_optimizer": 12}, confirm={"top_k": 0}))
    Cluster(coordinator_for(store, study, slots=2), lambda *_: None).run()
    assert Counter(run.search_id for run in store.runs(study.id)) == {s.id: 12 for s in store.searches(study.id)}


def test_a_finite_space_ends_a_budget_of_epochs() -> None:
    space = {"lr": {"type": "categorical", "choices": [0.1, 0.01]}}
    store = MemoryStore()
    study = store.add_study(
        define(
            optimizers=[{"name": "sgdm", "space": space}],
            budget={"epochs_per_optimizer": 900},
            confirm={"top_k": 0},
        )
    )
    Cluster(coordinator_for(store, study, slots=1)).run()
    assert [run.epoch for run in store.runs(study.id)] == [3, 3]


def test_epochs_trained_again_count_against_the_budget() -> None:
    """Every trial loses its worker after two epochs and starts over: five epochs each, three of them on its curve."""
    store = MemoryStore()
    study = store.add_study(
        define(
            optimizers=[{"name": "sgdm"}],
            budget={"trials_per_optimizer": 50, "epochs_per_optimizer": 20},
            confirm={"top_k": 0},
        )
    )
    coordinator = coordinator_for(store, study, slots=1)
    n_trained = 0
    while isinstance(coordinator.next("t"), Assignment):
        for attempt, n_epochs in enumerate((2, 3)):
            if attempt:
                coordinator.fail("t", kind=FailureKind.LOST, error="the worker died")
                assert isinstance(coordinator.next("t"), Assignment)
            coordinator.begin("t")
            for epoch in range(1, n_epochs + 1):
                n_trained += 1
                point = Point(epoch=epoch, step=epoch, value=0.5, metrics={}, cost=Cost(train_s=float(n_trained)))
                end = RunOutcome(state=RunState.COMPLETE, value=0.5) if epoch == 3 else None
                coordinator.report("t", Report(points=[point], end=end))
    runs = store.runs(study.id)
    assert n_trained == sum(run.n_epochs for run in runs) == 20
    assert sum(run.epoch for run in runs) == 12


def test_a_result_taken_over_costs_no_budget() -> None:
    """Two choices, so most trials are repetitions: they train nothing, and neither epochs nor GPU hours count."""

    def cost(epoch: int) -> Point:
        return Point(epoch=epoch, step=epoch, value=0.1 * epoch, metrics={}, cost=Cost(gpu_s=600.0))

    space = {"lr": {"type": "categorical", "choices": [0.1, 0.01]}}
    budget = {"trials_per_optimizer": 12, "epochs_per_optimizer": 7, "gpu_hours_per_optimizer": 1.1, "gpu_hours": 1.1}
    store = MemoryStore()
    study = store.add_study(
        define(
            optimizers=[{"name": "sgdm", "space": space}],
            budget=budget,
            sampler={"name": "random", "seed": 3},
            confirm={"top_k": 0},
        )
    )
    coordinator = coordinator_for(store, study, slots=1)
    n_trained = 0
    while isinstance(coordinator.next("t"), Assignment):
        coordinator.begin("t")
        n_trained += 1
        for epoch in (1, 2, 3):
            end = RunOutcome(state=RunState.COMPLETE, value=0.3) if epoch == 3 else None
            coordinator.report("t", Report(points=[cost(epoch)], end=end))
    runs = store.runs(study.id)
    assert (n_trained, len(runs)) == (2, 12)
    assert sorted(run.cost.gpu_s for run in runs) == [0.0] * 10 + [1800.0] * 2
    assert {tuple(p.value for p in store.points(run.id)) for run in runs} == {(0.1, 0.2, 0.1 * 3)}


@pytest.mark.parametrize("limit", [{"gpu_hours": 1.0}, {"gpu_hours_per_optimizer": 0.5}])
def test_gpu_hours_end_the_search_stage_of_every_optimizer_alike(limit: dict[str, float]) -> None:
    store = MemoryStore()
    study = store.add_study(define(budget={"trials_per_optimizer": 50, **limit}, confirm={"top_k": 0}))
    coordinator = coordinator_for(store, study, slots=1)
    while isinstance(coordinator.next("t"), Assignment):
        coordinator.begin("t")
        point = Point(epoch=1, step=1, value=0.5, metrics={}, cost=Cost(gpu_s=600.0))  # ten minutes a trial
        coordinator.report("t", Report(points=[point], end=RunOutcome(state=RunState.COMPLETE, value=0.5)))
    assert Counter(run.search_id for run in store.runs(study.id)) == {s.id: 3 for s in store.searches(study.id)}


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_target_is_reached_from_its_own_side(direction: str) -> None:
    value = 0.95 if direction == "maximize" else 0.05
    store = MemoryStore()
    study = store.add_study(
        define(
            optimizers=[{"name": "sgdm"}],
            objective={"metric": "val_score", "direction": direction},
            budget={"trials_per_optimizer": 5, "target": 0.5},
            confirm={"top_k": 0},
        )
    )
    Cluster(
        coordinator_for(store, study, slots=1),
        lambda assignment, _: value if assignment.trial_number else 0.5 - (value - 0.5),
    ).run()
    assert len(store.runs(study.id)) == 2


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


def test_wall_hours_end_the_search_stage_within_an_epoch_of_each_trial() -> None:
    """Running trials are closed with what they reported, and the study says why it did not run them all."""
    store = MemoryStore()
    study = store.add_study(define(budget={"trials_per_optimizer": 50, "max_hours": 1.0}))
    clock = [0.0]
    coordinator = coordinator_for(store, study, slots=2, elapsed_s=lambda: clock[0])
    cluster = Cluster(coordinator)
    for number in cluster.rounds():
        if number == 7:  # six trials are complete, and the next two have trained their first epoch
            clock[0] = 3700.0
    stages = Counter((run.stage, run.state) for run in store.runs(study.id))
    assert stages == {(Stage.SEARCH, RunState.COMPLETE): 4, (Stage.SEARCH, RunState.PRUNED): 2} | {
        (Stage.CONFIRM, RunState.COMPLETE): 4
    }
    for run in store.runs(study.id):
        if run.state is RunState.PRUNED:
            assert (run.epoch, run.value) == (2, store.points(run.id)[-1].value)
            assert run.error == "budget.max_hours (1) was spent during the trial's epoch 2"
    assert coordinator.completion_reason() == (
        "adamw: budget.max_hours (1) was spent; sgdm: budget.max_hours (1) was spent"
    )


def test_trials_that_wait_when_the_hours_are_spent_do_not_begin_again() -> None:
    """A driver that resumes after the limit closes what its predecessor left: curves count, the rest never ran."""
    store = MemoryStore()
    study = store.add_study(define(budget={"trials_per_optimizer": 50, "max_hours": 1.0}, confirm={"top_k": 0}))
    first = Cluster(coordinator_for(store, study, slots=2))
    for number in first.rounds():
        if number == 4:
            break
    coordinator_for(store, study, owner="second", slots=2).next("reserved")  # asked for, and its driver died
    third = coordinator_for(store, study, owner="third", slots=2, elapsed_s=lambda: 3700.0)
    cluster = Cluster(third)
    cluster.run()
    assert not cluster.started
    assert Counter((run.state, run.failure) for run in store.runs(study.id)) == {
        (RunState.COMPLETE, None): 2,
        (RunState.PRUNED, None): 2,
    }
    assert third.completion_reason() is not None


def test_a_search_that_did_all_it_planned_needs_no_reason() -> None:
    """Also where the hours were spent afterwards, by the confirmation."""
    store = MemoryStore()
    study = store.add_study(define(budget={"trials_per_optimizer": 2, "max_hours": 1.0}))
    clock = [0.0]
    coordinator = coordinator_for(store, study, slots=1, elapsed_s=lambda: clock[0])
    for _ in Cluster(coordinator).rounds():
        if all(run.state.is_finished for run in store.runs(study.id)) and len(store.runs(study.id)) == 4:
            clock[0] = 3700.0
    assert Counter(run.stage for run in store.runs(study.id)) == {Stage.SEARCH: 4, Stage.CONFIRM: 4}
    assert coordinator.completion_reason() is None


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


def test_one_trial_that_did_not_fail_is_a_result() -> None:
    store = MemoryStore()
    study = store.add_study(define(budget={"trials_per_optimizer": 3}, max_failures=0))
    coordinator = coordinator_for(store, study)
    failures = {("adamw", n, Stage.SEARCH, 100): [(FailureKind.ERROR, "no")] for n in range(2)}
    Cluster(coordinator, failures=failures).run()
    assert coordinator.completion_reason() is None


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


def test_out_of_memory_beside_others_has_one_more_try_alone() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    crowded = (FailureKind.OUT_OF_MEMORY, "out of memory on cuda")
    failures = {("adamw", 0, Stage.SEARCH, 100): [crowded], ("sgdm", 1, Stage.SEARCH, 100): [crowded, crowded]}
    cluster = Cluster(coordinator_for(store, study, gpus=0.25, slots=4), failures=failures)
    cluster.run()
    adamw, sgdm = store.searches(study.id)
    by_trial = {(r.search_id, r.trial_number): r for r in store.runs(study.id) if r.stage is Stage.SEARCH}
    assert by_trial[adamw.id, 0].state is RunState.COMPLETE
    assert by_trial[sgdm.id, 1].state is RunState.FAIL
    assert by_trial[sgdm.id, 1].failure is FailureKind.OUT_OF_MEMORY
    tries = {(a.label, a.trial_number): [] for a in cluster.started}
    for a in cluster.started:
        if a.stage is Stage.SEARCH:
            tries[a.label, a.trial_number].append(a.gpus)
    assert tries["adamw", 0] == tries["sgdm", 1] == [0.25, 1.0]
    assert {a.placement for a in cluster.started if a.gpus == 1.0} == {ALONE}
    assert all(t == [0.25] for key, t in tries.items() if key not in {("adamw", 0), ("sgdm", 1)})


def test_out_of_memory_with_a_card_of_its_own_is_not_tried_again() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    failures = {("adamw", 0, Stage.SEARCH, 100): [(FailureKind.OUT_OF_MEMORY, "out of memory on cuda")]}
    cluster = Cluster(coordinator_for(store, study, gpus=1.0), failures=failures)
    cluster.run()
    failed = [run for run in store.runs(study.id) if run.state is RunState.FAIL]
    assert [(run.attempt, run.failure) for run in failed] == [(1, FailureKind.OUT_OF_MEMORY)]


def test_nothing_new_starts_while_a_run_waits_for_a_whole_card() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    coordinator = coordinator_for(store, study, gpus=0.5, slots=4)
    for ticket in ("a", "b"):
        assert isinstance(coordinator.next(ticket), Assignment)
        coordinator.begin(ticket)
    coordinator.fail("a", kind=FailureKind.OUT_OF_MEMORY, error="out of memory on cuda")
    offered = [coordinator.next(ticket) for ticket in ("c", "d", "e", "f", "g", "h")]
    assert isinstance(offered[0], Assignment)
    assert offered[0].gpus == 1.0
    assert offered[1:] == [Idle.WAIT] * 5
    coordinator.begin("c")
    assert isinstance(coordinator.next("i"), Assignment)


def test_a_cohort_without_memory_is_given_up_once_its_other_runs_have_ended() -> None:
    """It costs no failure. The runs that follow share the card as the packing says, and their records say why."""
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    packing = packing_of_one_card(store, [0.0])
    coordinator = coordinator_for(store, study, gpus=0.25, slots=4, packing=packing, cohort=4)
    for ticket in ("a", "b", "c"):
        assignment = coordinator.next(ticket)
        assert isinstance(assignment, Assignment)
        assert (assignment.cohort, assignment.slot) == (4, None)
        coordinator.begin(ticket)
    for ticket in ("a", "b"):
        coordinator.fail(ticket, kind=FailureKind.OUT_OF_MEMORY, error="out of memory on cuda. Run fewer")
    assert coordinator.next("d") is Idle.WAIT
    coordinator.tell_why_waiting()
    assert "no cohort: out of memory on cuda; 2 trials a card, growing" in (store.get_study(study.id).reason or "")
    assert coordinator.report("c", Report(points=[], end=RunOutcome(state=RunState.COMPLETE, value=1.0)))
    again = coordinator.next("e")
    assert isinstance(again, Assignment)
    assert (again.trial_number, again.attempt, again.cohort, again.share) == (0, 2, 1, 0.5)
    assert again.placement == "no cohort: out of memory on cuda; 2 trials a card, growing"
    assert all(run.n_failures == 0 for run in store.runs(study.id))


def test_a_run_that_leaves_its_cohort_has_a_process_of_its_own_and_the_others_stay() -> None:
    """It costs no failure. Should it find no memory beside the cohort, the study goes on without one."""
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    coordinator = coordinator_for(store, study, gpus=0.25, slots=2, cohort=4)
    for ticket in ("a", "b"):
        coordinator.next(ticket)
        coordinator.begin(ticket)
    coordinator.leave_cohort("a", reason="several at once")
    coordinator.interrupt("b", reason="another diverged")
    coordinator.leave_cohort("a", reason="cancelled meanwhile")
    alone, stays = (coordinator.next(ticket) for ticket in ("c", "d"))
    assert isinstance(alone, Assignment)
    assert isinstance(stays, Assignment)
    assert (alone.attempt, alone.cohort, alone.gpus, alone.placement) == (2, 1, 0.25, OUT_OF_COHORT)
    assert (stays.attempt, stays.cohort, stays.gpus) == (2, 4, 0.25)
    for ticket in ("c", "d"):
        coordinator.begin(ticket)
    coordinator.fail("c", kind=FailureKind.OUT_OF_MEMORY, error="out of memory on cuda. Run fewer")
    assert coordinator.next("e") is Idle.WAIT
    assert coordinator.report("d", Report(points=[], end=RunOutcome(state=RunState.COMPLETE, value=1.0)))
    again = coordinator.next("e")
    assert isinstance(again, Assignment)
    assert (again.trial_number, again.cohort) == (alone.trial_number, 1)
    assert all(run.n_failures == 0 for run in store.runs(study.id))


def test_the_next_driver_knows_which_runs_have_left_their_cohort() -> None:
    """Whether the last one had started them again or not; the others go on in a cohort."""
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    coordinator = coordinator_for(store, study, slots=3, cohort=4)
    for ticket in ("a", "b", "c"):
        coordinator.next(ticket)
        coordinator.begin(ticket)
    for ticket in ("a", "b"):
        coordinator.leave_cohort(ticket, reason="several at once")
    coordinator.next("d")
    coordinator.begin("d")
    left = {run.id for run in store.runs(study.id)[:2]}
    for owner in ("second", "third"):
        coordinator = coordinator_for(store, study, owner=owner, slots=4, cohort=4)
        started = [coordinator.next(ticket) for ticket in "efgh"]
        assert {one.run_id for one in started if isinstance(one, Assignment) and one.cohort == 1} == left
        assert {one.placement for one in started if isinstance(one, Assignment) and one.cohort == 1} == {OUT_OF_COHORT}
        assert [one.cohort for one in started if isinstance(one, Assignment)].count(4) == 2


def test_the_next_driver_knows_that_the_study_gave_its_cohort_up() -> None:
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    coordinator = coordinator_for(store, study, gpus=0.25, slots=4, cohort=4)
    coordinator.next("a")
    coordinator.begin("a")
    coordinator.give_up_cohort("a", reason="the model cannot be stacked (vmap). Look")
    coordinator = coordinator_for(store, study, owner="second", gpus=0.25, slots=4, cohort=4)
    started = [coordinator.next(ticket) for ticket in "bcde"]
    assert [one.cohort for one in started if isinstance(one, Assignment)] == [1] * 4
    words = "no cohort: the model cannot be stacked (vmap)"
    assert {one.placement for one in started if isinstance(one, Assignment)} == {words}


def test_the_next_driver_knows_which_runs_need_a_whole_card() -> None:
    """Unless the cluster has none now, or each of its runs has a whole one anyway."""
    store = MemoryStore()
    study = store.add_study(define(max_failures=3))
    coordinator = coordinator_for(store, study, gpus=0.25, slots=2)
    for ticket in ("a", "b"):
        coordinator.next(ticket)
        coordinator.begin(ticket)
    coordinator.fail("b", kind=FailureKind.OUT_OF_MEMORY, error="out of memory on cuda")
    for gpus, holds in ((0.25, [0.25, 1.0]), (1.0, [1.0, 1.0]), (0.0, [0.0, 0.0])):
        coordinator = coordinator_for(store, study, owner=f"of {gpus}", gpus=gpus, slots=2)
        started = [coordinator.next(ticket) for ticket in "cd"]
        found = sorted((one.run_id, one.gpus) for one in started if isinstance(one, Assignment))
        assert [amount for _, amount in found] == holds


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


def lose(
    *trials: int, kind: FailureKind = FailureKind.LOST
) -> dict[tuple[str, int, Stage, int], list[tuple[FailureKind, str]]]:
    """Failures of each attempt of these trials of adamw."""
    return {("adamw", number, Stage.SEARCH, 100): [(kind, "the worker died")] * 3 for number in trials}


def trials_of(store: MemoryStore, study: StudyRecord, label: str) -> Counter[RunState]:
    (search,) = [one for one in store.searches(study.id) if one.label == label]
    return Counter(
        run.state for run in store.runs(study.id) if run.search_id == search.id and run.stage is Stage.SEARCH
    )


@pytest.mark.parametrize("kind", [FailureKind.LOST, FailureKind.PREEMPTED])
def test_a_trial_lost_with_its_machine_is_replaced(kind: FailureKind) -> None:
    store = MemoryStore()
    study = store.add_study(define())
    coordinator = coordinator_for(store, study)
    Cluster(coordinator, failures=lose(1, 3, kind=kind)).run()
    assert trials_of(store, study, "adamw") == {RunState.COMPLETE: 4, RunState.FAIL: 2}
    assert trials_of(store, study, "sgdm") == {RunState.COMPLETE: 4}
    assert coordinator.completion_reason() is None


def test_a_trial_that_raises_or_diverges_uses_up_the_budget() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    failures = lose(1, kind=FailureKind.ERROR)
    Cluster(
        coordinator_for(store, study),
        lambda a, epoch: None if (a.label, a.trial_number) == ("adamw", 2) else by_learning_rate(a, epoch),
        failures=failures,
    ).run()
    assert trials_of(store, study, "adamw") == {RunState.COMPLETE: 2, RunState.FAIL: 2}


def test_at_most_as_many_trials_again_take_the_place_of_lost_ones() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    Cluster(coordinator_for(store, study), failures=lose(*range(100))).run()
    assert trials_of(store, study, "adamw") == {RunState.FAIL: 8}


def test_settings_that_kill_their_worker_are_replaced_once() -> None:
    store = MemoryStore()
    space = {"lr": {"type": "categorical", "choices": [0.01, 0.02, 0.03, 0.04]}}
    optimizers = [{"name": "adamw", "space": space}]
    study = store.add_study(define(optimizers=optimizers, sampler={"name": "grid"}))
    assert study.definition.n_trials_of(study.definition.optimizers[0]) == 4
    Cluster(coordinator_for(store, study), failures=lose(1, 4) | lose(0, kind=FailureKind.ERROR)).run()
    assert trials_of(store, study, "adamw") == {RunState.COMPLETE: 2, RunState.FAIL: 3}
    tried = {run.trial_number: run.params for run in store.runs(study.id) if run.stage is Stage.SEARCH}
    assert tried[4] == tried[1] != tried[0]


def test_a_kill_at_any_round_changes_nothing_in_what_is_replaced() -> None:
    for kill_every in (1, 2, 5):
        store = MemoryStore()
        study = store.add_study(define())
        failures = lose(0, 1, 5)
        for life in range(200):
            cluster = Cluster(coordinator_for(store, study, owner=f"driver {life}"), failures=failures)
            if not [*zip(range(kill_every * 3), cluster.rounds(), strict=False)]:
                break
        assert trials_of(store, study, "adamw") == {RunState.COMPLETE: 4, RunState.FAIL: 3}


def packing_of_one_card(store: MemoryStore, now_s: list[float], *, most: int = 4) -> Packing:
    """One card, on the store's facts and a clock that the test sets."""
    kinds = [CardKind(name="L4", n_cards=1, most=most)]
    return Packing(kinds, known=store.card_facts("shape"), release="1", clock=lambda: now_s[0])


def shows(total: float, n: int) -> Pace:
    """An epoch of one second beside as many runs, which train so many samples a second together."""
    return Pace(card="a", samples_per_s=total / n, train_s=1.0, eval_s=0.0, memory_bytes=1, card_bytes=100)


def test_cards_get_more_runs_by_what_the_studys_own_runs_show() -> None:
    """The reason, the facts in the store, the runs' shares; the next study begins with what was found."""
    store, now_s = MemoryStore(), [0.0]
    study = store.add_study(define(budget={"trials_per_optimizer": 20}))
    coordinator = coordinator_for(store, study, slots=16, packing=packing_of_one_card(store, now_s))

    def start(*tickets: str) -> list[Assignment]:
        given = [coordinator.next(ticket) for ticket in tickets]
        for ticket, one in zip(tickets, given, strict=True):
            if not isinstance(one, Idle):
                coordinator.begin(ticket)
        return [one for one in given if isinstance(one, Assignment)]

    def report_all(total: float, *tickets: str) -> None:
        now_s[0] += 1.0
        for ticket in tickets:
            point = Point(epoch=int(now_s[0]), step=1, value=0.5, metrics={"val_score": 0.5})
            coordinator.report(ticket, Report(points=[point], pace=shows(total, len(tickets))))

    first = start("a", "b", "c")
    assert [one.gpus for one in first] == [0.25, 0.25]
    assert [one.share for one in first] == [0.5, 0.5]
    coordinator.tell_why_waiting()
    assert "2 trials a card, growing" in (store.get_study(study.id).reason or "")
    report_all(1000.0, "a", "b")
    assert not store.card_facts("shape")  # nothing is found yet: there is nothing to compare with
    assert [one.share for one in start("d", "e", "f")] == [0.25, 0.25]
    for _ in range(3):
        report_all(1010.0, "a", "b", "d", "e")
    coordinator.tell_why_waiting()
    assert store.get_study(study.id).reason == "2 trials a card: 4 gained 1%"
    assert start("g") == []  # all four go on, and no other starts beside them

    second = store.add_study(define(name="second"))
    again = coordinator_for(store, second, slots=16, packing=packing_of_one_card(store, now_s))
    again.tell_why_waiting()
    reason = "starts its first workers; 2 trials a card, as an earlier study found: 4 gained 1%"
    assert store.get_study(second.id).reason == reason


def test_what_is_found_beside_another_study_is_not_kept() -> None:
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    failures = {("adamw", 0, Stage.SEARCH, 100): [(FailureKind.OUT_OF_MEMORY, "out of memory on cuda")]}
    packing = packing_of_one_card(store, [0.0])
    cluster = Cluster(coordinator_for(store, study, slots=16, packing=packing, crowded=True), failures=failures)
    cluster.run()
    assert packing.words == "1 trial a card: 2 ran out of memory"
    assert not store.card_facts("shape")


def test_a_run_that_ran_out_of_memory_while_the_number_grew_has_not_failed() -> None:
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    cluster = Cluster(
        coordinator_for(store, study, slots=16, packing=packing_of_one_card(store, [0.0])),
        failures={("adamw", 0, Stage.SEARCH, 100): [(FailureKind.OUT_OF_MEMORY, "out of memory on cuda")]},
    )
    cluster.run()
    assert {run.state for run in store.runs(study.id)} == {RunState.COMPLETE}
    retried = next(run for run in store.runs(study.id) if run.attempt > 1)
    assert (retried.attempt, retried.n_failures) == (2, 0)
    assert store.card_facts("shape")["L4"].reason == "2 ran out of memory"
    assert [a.gpus for a in cluster.started[3:]] == [1.0] * len(cluster.started[3:])
