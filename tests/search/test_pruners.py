"""Every pruner through the real loop: it stops the poor trials early, never the best, in either direction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import optuna
import pytest
from pydantic import TypeAdapter, ValidationError

from search import pruners
from search.assignment import Assignment
from search.records import RunRecord
from search.states import Direction, RunState, Stage
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define

EPOCHS = 27
ACTIVE = [
    {"name": "asha", "min_epochs": 1, "reduction_factor": 3},
    {"name": "hyperband", "min_epochs": 1, "reduction_factor": 3},
    {"name": "median", "min_epochs": 2, "n_startup_trials": 4},
]
IDS = ["asha", "hyperband", "median"]


def quality(lr: float) -> float:
    """1 at lr = 0.01, lower by distance in decades."""
    return 1.0 - abs(math.log10(lr) + 2) / 4


def rising(assignment: Assignment, epoch: int) -> float:
    return quality(assignment.settings["lr"]) * (1 - 0.5**epoch)


def falling(assignment: Assignment, epoch: int) -> float:
    """The same as a loss."""
    return 1.0 - rising(assignment, epoch)


def play(pruner: dict[str, Any], *, direction: str = "maximize", seed: int = 0, n_trials: int = 30) -> list[RunRecord]:
    store = MemoryStore()
    study = store.add_study(
        define(
            task={"name": "synthetic", "model": "idle", "epochs": EPOCHS},
            optimizers=[{"name": "sgd", "space": {"lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True}}}],
            objective={"metric": "val_score", "direction": direction},
            sampler={"name": "random", "seed": seed},
            pruner=pruner,
            budget={"trials_per_optimizer": n_trials},
            confirm={"top_k": 0},
        )
    )
    Cluster(coordinator_for(store, study, slots=2), rising if direction == "maximize" else falling).run()
    return [run for run in store.runs(study.id) if run.stage is Stage.SEARCH]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("pruner", ACTIVE, ids=IDS)
def test_poor_trials_stop_early_and_the_best_never(pruner: dict[str, Any], direction: str) -> None:
    runs = play(pruner, direction=direction)
    spent = sum(run.epoch for run in runs)
    assert spent < 0.75 * len(runs) * EPOCHS
    best = max(runs, key=lambda run: quality(run.params["lr"]))
    assert best.state is RunState.COMPLETE
    pruned = [run for run in runs if run.state is RunState.PRUNED]
    complete = [run for run in runs if run.state is RunState.COMPLETE]
    assert len(pruned) + len(complete) == len(runs)
    assert all(run.epoch < EPOCHS for run in pruned)
    assert all(run.epoch == EPOCHS for run in complete)
    mean = [sum(quality(run.params["lr"]) for run in group) / len(group) for group in (complete, pruned)]
    assert mean[0] > mean[1]


@pytest.mark.parametrize("pruner", ACTIVE, ids=IDS)
def test_both_directions_prune_the_same_trials(pruner: dict[str, Any]) -> None:
    up, down = (play(pruner, direction=direction) for direction in ("maximize", "minimize"))
    assert [(run.params, run.state, run.epoch) for run in up] == [(run.params, run.state, run.epoch) for run in down]


def test_asha_stops_at_its_rungs_only() -> None:
    runs = play({"name": "asha", "min_epochs": 2, "reduction_factor": 3})
    assert {run.epoch for run in runs if run.state is RunState.PRUNED} <= {2, 6, 18}


@pytest.mark.parametrize(("epochs", "first"), [(1, 1), (2, 1), (8, 2), (27, 9), (160, 53)])
def test_asha_waits_a_third_of_the_training_unless_told(epochs: int, first: int) -> None:
    assert pruners.first_epoch(pruners.AshaPruner(), max_epochs=epochs) == first
    assert pruners.first_epoch(pruners.AshaPruner(min_epochs=5), max_epochs=epochs) == 5


@pytest.mark.parametrize(
    ("budget", "first"),
    [
        ({}, 9),
        ({"trials_per_optimizer": 30, "epochs_per_optimizer": 200}, 9),
        ({"epochs_per_optimizer": 200}, 3),
        ({"gpu_hours_per_optimizer": 2.0}, 3),
        ({"gpu_hours": 2.0}, 9),
    ],
)
def test_asha_waits_a_ninth_where_the_budget_does_not_count_trials(budget: dict[str, Any], first: int) -> None:
    study = define(task={"name": "synthetic", "model": "idle", "epochs": EPOCHS}, budget=budget, pruner="asha")
    assert pruners.first_epoch(study.pruner_of_budget, max_epochs=EPOCHS) == first
    told = study.model_copy(update={"pruner": pruners.AshaPruner(min_epochs=5)})
    assert pruners.first_epoch(told.pruner_of_budget, max_epochs=EPOCHS) == 5


def test_asha_s_default_rungs() -> None:
    assert {run.epoch for run in play({"name": "asha"}) if run.state is RunState.PRUNED} == {9}


def test_hyperband_has_several_first_rungs() -> None:
    runs = play({"name": "hyperband", "min_epochs": 1, "reduction_factor": 3}, n_trials=60)
    assert {run.epoch for run in runs if run.state is RunState.PRUNED} == {1, 3, 9}


@pytest.mark.parametrize("min_epochs", [1, 4])
def test_median_waits_for_its_epochs_and_trials(min_epochs: int) -> None:
    runs = play({"name": "median", "min_epochs": min_epochs, "n_startup_trials": 4})
    assert all(run.state is RunState.COMPLETE for run in runs[:4])
    assert min(run.epoch for run in runs if run.state is RunState.PRUNED) == min_epochs


@pytest.mark.parametrize("pruner", ACTIVE, ids=IDS)
def test_min_epochs_beyond_the_training_stops_nothing(pruner: dict[str, Any]) -> None:
    runs = play({**pruner, "min_epochs": 3 * EPOCHS}, n_trials=8)
    assert {run.state for run in runs} == {RunState.COMPLETE}


def test_none_stops_nothing() -> None:
    assert {(run.state, run.epoch) for run in play({"name": "none"}, n_trials=5)} == {(RunState.COMPLETE, EPOCHS)}


@pytest.mark.parametrize("pruner", ACTIVE, ids=IDS)
def test_one_epoch_leaves_nothing_to_prune(pruner: dict[str, Any]) -> None:
    chosen = TypeAdapter(pruners.Pruner).validate_python({**pruner, "min_epochs": 1})
    if isinstance(chosen, pruners.AshaPruner):
        assert pruners.rungs(1, reduction_factor=3, max_epochs=1) == []
    if isinstance(chosen, pruners.HyperbandPruner):
        assert pruners.bracket(7, chosen, max_epochs=1) == 0


@pytest.mark.parametrize(
    ("first", "epochs", "expected"),
    [
        (53, 160, [53]),  # and not 159 too
        (6, 20, [6]),  # and not 18 too
        (1, 27, [1, 3, 9]),
        (10, 160, [10, 30]),
        (1, 2, [1]),
        (1, 6, [1, 3]),
        (18, 20, [18]),  # where it was asked for
        (20, 20, []),
    ],
)
def test_no_rung_follows_beyond_half_of_the_training(first: int, epochs: int, expected: list[int]) -> None:
    assert pruners.rungs(first, reduction_factor=3, max_epochs=epochs) == expected


def _full_trainings(pruner: pruners.Pruner, *, epochs: int, n_trials: int, seed: int) -> tuple[int, int]:
    """Trials that reach the last epoch, and epochs trained, of noisy curves that end where they are at any epoch."""
    rng = np.random.default_rng(seed)
    done: list[pruners.OtherTrial] = []
    full = spent = 0
    for number in range(n_trials):
        level, curve = rng.normal(), {}
        for epoch in range(1, epochs + 1):
            curve[epoch] = level + 0.1 * rng.normal()
            spent += 1
            if epoch < epochs and pruners.stops(
                pruner,
                trial_number=number,
                curve=curve,
                others=lambda: done,
                direction=Direction.MAXIMIZE,
                max_epochs=epochs,
            ):
                break
        full += max(curve) == epochs
        done.append(pruners.OtherTrial(curve=dict(curve), is_complete=max(curve) == epochs))
    return full, spent


def test_the_rung_at_the_end_stopped_survivors_for_nothing() -> None:
    """20 trials of 160 epochs, 50 seeds: 6.8 survive the rung at 53; one at 159 left 4.1 to save 0.4 %."""
    plays = [_full_trainings(pruners.AshaPruner(), epochs=160, n_trials=20, seed=seed) for seed in range(20)]
    n_full, spent = np.mean([full for full, _ in plays]), np.mean([spent for _, spent in plays])
    assert 6 < n_full < 9
    assert spent < 0.6 * 20 * 160


def test_hyperband_treats_every_optimizer_alike() -> None:
    """Identical curves under nine labels; by a hash of the search's name they got 7 to 11 full trainings."""
    store = MemoryStore()
    labels = [f"sgd-{i}" for i in range(9)]
    study = store.add_study(
        define(
            task={"name": "synthetic", "model": "idle", "epochs": EPOCHS},
            optimizers=[{"name": "sgd", "label": label} for label in labels],
            objective={"metric": "val_score"},
            sampler={"name": "random"},
            pruner={"name": "hyperband"},
            budget={"trials_per_optimizer": 30},
            confirm={"top_k": 0},
        )
    )
    levels = np.random.default_rng(0).permutation(30)

    def same(assignment: Assignment, epoch: int) -> float:
        return float(levels[assignment.trial_number]) * (1 - 0.5**epoch)

    Cluster(coordinator_for(store, study, slots=9), same).run()
    ended = {
        search.label: [(run.state, run.epoch) for run in store.runs(study.id) if run.search_id == search.id]
        for search in store.searches(study.id)
    }
    assert all(ends == ended[labels[0]] for ends in ended.values())
    assert sum(state is RunState.COMPLETE for state, _ in ended[labels[0]]) == 8


def test_hyperband_fills_its_brackets_evenly_from_the_start() -> None:
    """After any number of trials each bracket has its share to within one or two, weighted 27 : 12 : 6 : 4."""
    hyperband = pruners.HyperbandPruner(name="hyperband")
    counts = [0] * 4
    for number in range(98):
        counts[pruners.bracket(number, hyperband, max_epochs=27)] += 1
        shares = [(number + 1) * weight / 49 for weight in (27, 12, 6, 4)]
        assert max(abs(count - share) for count, share in zip(counts, shares, strict=True)) < 1.5
    assert counts == [54, 24, 12, 8]


@pytest.mark.parametrize("direction", Direction)
def test_the_median_pruner_goes_by_the_value_now(direction: Direction) -> None:
    """0.9, then 0.1, 0.1 is below the others' 0.5 now, however good it once was; 0.1, then 0.9 goes on."""
    others = [pruners.OtherTrial(curve=dict.fromkeys((1, 2, 3), 0.5), is_complete=True)] * 4
    median = pruners.MedianPruner(name="median")
    good, poor = (0.9, 0.1) if direction.is_maximize else (0.1, 0.9)

    def stopped(*values: float) -> bool:
        return pruners.stops(
            median,
            trial_number=4,
            curve=dict(enumerate(values, 1)),
            others=lambda: others,
            direction=direction,
            max_epochs=10,
        )

    assert stopped(good, poor)
    assert stopped(good, poor, poor)
    assert not stopped(poor, good)
    assert not stopped(0.5)


def test_pruned_and_running_trials_count_at_a_rung() -> None:
    others = [pruners.OtherTrial(curve={1: value}, is_complete=False) for value in (0.5, 0.6)]
    asha = pruners.AshaPruner(min_epochs=1)

    def stopped(value: float) -> bool:
        return pruners.stops(
            asha, trial_number=2, curve={1: value}, others=lambda: others, direction=Direction.MAXIMIZE, max_epochs=9
        )

    assert stopped(0.4)
    assert stopped(0.55)
    assert not stopped(0.7)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": "asha", "min_epochs": 0}, "min_epochs"),
        ({"name": "asha", "reduction_factor": 1}, "reduction_factor"),
        ({"name": "hyperband", "min_epochs": 2.5}, "min_epochs"),
        ({"name": "median", "n_startup_trials": 0}, "n_startup_trials"),
        ({"name": "none", "min_epochs": 1}, "min_epochs"),
        ({"name": "asha", "grace": 1}, "grace"),
    ],
)
def test_what_a_pruner_refuses(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        define(pruner=wrong)
    assert field in [part for error in caught.value.errors() for part in error["loc"]]
