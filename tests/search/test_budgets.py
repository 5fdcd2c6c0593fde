"""What ends a search: targets, epochs, GPU hours, wall hours, and a space without further points."""

from __future__ import annotations

from collections import Counter

import pytest

from search.assignment import Assignment, Report
from search.records import Point, RunOutcome
from search.states import FailureKind, RunState, Stage
from tasks.engine.protocol import Cost
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define


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
    """Each diverges at once, whatever its settings."""
    store = MemoryStore()
    study = store.add_study(
        define(optimizers=["adamw"], budget={"gpu_hours_per_optimizer": 1.0}, max_failures=0, confirm={"top_k": 0})
    )
    cluster = Cluster(coordinator_for(store, study, gpus=1.0))
    cluster.failures = {
        ("adamw", number, Stage.SEARCH, 100): [(FailureKind.DIVERGED, "loss is nan")] for number in range(1000)
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
