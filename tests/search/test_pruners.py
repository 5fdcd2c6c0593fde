"""Every pruner through the real loop: it stops the poor trials early, never the best, in either direction."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest
from pydantic import TypeAdapter, ValidationError

from search import pruners
from search.assignment import Assignment
from search.records import RunRecord
from search.states import RunState, Stage
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
    built = pruners.build(TypeAdapter(pruners.Pruner).validate_python(pruner), max_epochs=1)
    study = optuna.create_study(direction="maximize", pruner=built)
    for value in (1.0, 0.5, 0.2, 0.1, 0.05):
        trial = study.ask()
        trial.report(value, step=1)
        trial.should_prune()  # must not raise; the loop does not ask at the last epoch
        study.tell(trial, value)


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
