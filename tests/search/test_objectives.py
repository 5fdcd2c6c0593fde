"""Studies with several objectives: what a definition may name, what Optuna is told, which trials are on the front."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from pydantic import ValidationError

from search.advice import warnings_for
from search.assignment import Assignment
from search.definition import StudyDefinition
from search.importance import importance
from search.objectives import corners, hypervolume, on_front, value_of
from search.records import Point, RunOutcome, RunRecord, StudyRecord
from search.states import Direction, FailureKind, RunState, Stage
from search.trials import Trials
from tasks.engine.protocol import Cost
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define

UP, DOWN = Direction.MAXIMIZE, Direction.MINIMIZE
SPACE = {
    "lr": {"type": "float", "low": 0.001, "high": 1.0, "log": True},
    "momentum": {"type": "float", "low": 0.1, "high": 0.9},
}
FINITE = {"lr": {"type": "categorical", "choices": [0.1, 0.2, 0.3, 0.4]}}


def parse(**changes: Any) -> StudyDefinition:
    return StudyDefinition.model_validate({"name": "a", "task": "digits", "optimizers": ["admetar"], **changes})


def test_names_bring_their_directions_and_the_pruner_is_off() -> None:
    definition = parse(objectives=["train_s", {"metric": "val_loss"}])
    assert [(one.metric, one.direction) for one in definition.all_objectives] == [
        ("val_accuracy", UP), ("train_s", DOWN), ("val_loss", DOWN),
    ]  # fmt: skip
    assert definition.pruner.name == "none"
    assert StudyDefinition.model_validate(definition.to_json()) == definition
    assert parse().pruner.name == "asha"
    assert parse().objectives == []


def test_own_code_states_the_direction_of_its_metrics() -> None:
    task = {"name": "python", "run": "own.code:train"}
    stated = {"metric": "latency_s", "direction": "minimize"}
    assert parse(task=task, objectives=[stated]).objectives[0].direction is DOWN
    with pytest.raises(ValidationError) as caught:
        parse(task=task, objectives=["latency_s"])
    assert [error["loc"] for error in caught.value.errors()] == [("objectives", 0, "direction")]


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        ({"objectives": ["train_seconds"]}, "objectives.0.metric", "did you mean 'train_s'? known: data_s, eval_s"),
        ({"objectives": ["val_los"]}, "objectives.0.metric", "did you mean 'val_loss'?"),
        ({"objectives": ["test_accuracy"]}, "objectives.0.metric", "neither a metric of task 'digits' nor a cost"),
        ({"objectives": ["train_s", "train_s"]}, "objectives.1.metric", "'train_s' is an objective already"),
        ({"objectives": ["val_accuracy"]}, "objectives.0.metric", "'val_accuracy' is an objective already"),
        ({"objectives": [{"metric": "gpu_s", "direction": "maximize"}]}, "objectives.0.direction", "must be minimize"),
        ({"objectives": ["train_s", "gpu_s", "eval_s"]}, "objectives", "at most 2"),
        ({"objectives": "train_s"}, "objectives", "list"),
        ({"objectives": [3]}, "objectives.0", "dictionary"),
        ({"objectives": [{"metric": 3}]}, "objectives.0.metric", "string"),
        ({"objectives": ["train_s"], "pruner": "asha"}, "pruner.name", "'asha' stops trials by val_accuracy alone"),
        ({"objectives": ["train_s"], "sampler": "cmaes"}, "sampler.name", "one objective only"),
        ({"objectives": ["train_s"], "task": "digitz"}, "task.name", "Did you mean 'digits'?"),
    ],
)
def test_a_broken_rule_names_the_field(changes: dict[str, Any], field: str, rule: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse(**changes)
    errors = caught.value.errors()
    assert field in [".".join(map(str, error["loc"])) for error in errors]
    assert any(rule in error["msg"] for error in errors)


def test_memory_on_a_cpu_is_warned_of() -> None:
    on_cpu = parse(objectives=["peak_memory_bytes"], resources={"gpus": 0})
    assert any("whatever it ran before" in warning for warning in warnings_for(on_cpu))
    shared = parse(objectives=["train_s"], resources={"gpus": "auto"})
    assert any("share" in warning for warning in warnings_for(shared))
    for well in (parse(objectives=["train_s"], resources={"gpus": 1}), parse(resources={"gpus": 0})):
        assert not any("objectives" in warning for warning in warnings_for(well))


# Dominance -----------------------------------------------------------------------------------------------------------


def dominates(a: Sequence[float], b: Sequence[float], directions: Sequence[Direction]) -> bool:
    """By the definition, value by value."""
    pairs = list(zip(a, b, directions, strict=True))
    return all(not of.is_better(y, x) for x, y, of in pairs) and any(of.is_better(x, y) for x, y, of in pairs)


@pytest.mark.parametrize("directions", [(UP, DOWN), (DOWN, DOWN), (UP, DOWN, DOWN), (UP, UP, DOWN)])
def test_the_front_is_that_of_brute_force(directions: tuple[Direction, ...]) -> None:
    source = random.Random(0)
    for n in range(1, 40):
        values = [[float(source.randint(0, 9)) for _ in directions] for _ in range(n)]  # many are equal
        expected = [not any(dominates(other, one, directions) for other in values) for one in values]
        assert on_front(values, directions) == expected
    assert on_front([], directions) == []


@pytest.mark.parametrize("directions", [(UP, DOWN), (UP, DOWN, DOWN)])
def test_the_hypervolume_is_the_share_of_the_box_that_is_dominated(directions: tuple[Direction, ...]) -> None:
    """On whole numbers, by counting the cells of the box."""
    source = random.Random(1)
    for _ in range(20):
        values = [[float(source.randint(0, 6)) for _ in directions] for _ in range(5)]
        ideal, reference = ([6.0 if (of is UP) is best else 0.0 for of in directions] for best in (True, False))
        cells = list(itertools.product(range(6), repeat=len(directions)))
        centres = [[i + 0.5 for i in cell] for cell in cells]
        share = sum(any(dominates(one, centre, directions) for one in values) for centre in centres) / len(cells)
        assert hypervolume(values, directions, ideal=ideal, reference=reference) == pytest.approx(share)


def test_corners_and_flat_boxes() -> None:
    values = [[0.9, 3.0], [0.8, 1.0]]
    assert corners(values, (UP, DOWN)) == ([0.9, 1.0], [0.8, 3.0])
    assert corners([], (UP, DOWN)) == ([], [])
    assert hypervolume(values, (UP, DOWN), ideal=[0.9, 1.0], reference=[0.8, 3.0]) == 0.0  # each at one worst value
    assert hypervolume(values[:1], (UP, DOWN), ideal=[0.9, 3.0], reference=[0.9, 3.0]) is None
    assert hypervolume([], (UP, DOWN), ideal=[], reference=[]) is None
    huge = [[1e308, 1.0], [-1e308, 0.0], [0.0, 0.5]]  # of runs that nearly diverged
    assert hypervolume(huge, (UP, DOWN), ideal=[1e308, 0.0], reference=[-1e308, 1.0]) == pytest.approx(0.25)


def test_seconds_are_of_the_median_epoch_and_memory_is_the_most() -> None:
    costs = [Cost(train_s=30.0, peak_memory_bytes=5), *[Cost(train_s=2.0, peak_memory_bytes=7)] * 3]
    points = [
        Point(epoch=i, step=i, value=0.1 * i, metrics={"val_loss": 1 / i}, cost=of) for i, of in enumerate(costs, 1)
    ]
    assert value_of("train_s", points) == 8.0  # the first epoch's 28 s of compilation do not count
    assert value_of("peak_memory_bytes", points) == 7
    assert value_of("val_loss", points) == 0.25
    assert value_of("val_f1", points) is None
    assert value_of("train_s", []) is None


# Searches ------------------------------------------------------------------------------------------------------------


@dataclass
class Priced(Cluster):
    """Workers whose training costs more the smaller the learning rate is, which is also what makes it better."""

    def _train(self, assignment: Assignment, epoch: int) -> tuple[Point, RunOutcome | None]:
        point, end = super()._train(assignment, epoch)
        spent = price(assignment.settings)
        return replace(point, cost=Cost(train_s=spent, gpu_s=spent)), end


def price(settings: Any) -> float:
    return 1 + 1 / float(settings["lr"]) ** 0.5 + float(settings.get("momentum", 0.0))


def quality(assignment: Assignment, epoch: int) -> float | None:
    lr = float(assignment.settings["lr"])
    return None if lr > 0.8 else 1 - lr + 0.01 * epoch


def begin(sampler: Any = "tpe", space: Any = None, n: int = 12, **changes: Any) -> tuple[MemoryStore, StudyRecord]:
    store = MemoryStore()
    return store, store.add_study(
        define(
            optimizers=[{"name": "sgdm", "label": "a", "space": space or SPACE}],
            sampler=sampler,
            **{"objectives": ["train_s"], "budget": {"trials_per_optimizer": n}, **changes},
        )
    )


def trained(store: MemoryStore, study: StudyRecord) -> tuple[list[RunRecord], list[optuna.trial.FrozenTrial]]:
    """The runs of the search stage, and Optuna's trials, by number."""
    runs = sorted((run for run in store.runs(study.id) if run.stage is Stage.SEARCH), key=lambda run: run.trial_number)
    return runs, optuna.load_study(study_name="small/a", storage=store.optuna_storage()).trials


@pytest.mark.parametrize(
    ("sampler", "n"), [("tpe", 12), ({"name": "gp", "n_startup_trials": 4}, 6), ("qmc", 12), ("random", 12)]
)
def test_every_sampler_searches_for_both(sampler: Any, n: int) -> None:
    store, study = begin(sampler, n=n)
    Priced(coordinator_for(store, study), quality).run()
    runs, trials = trained(store, study)
    assert len(runs) == len(trials) == n
    for run, trial in zip(runs, trials, strict=True):
        if run.state is RunState.COMPLETE:
            assert trial.state is TrialState.COMPLETE
            assert trial.values == pytest.approx([run.value, 3 * price(run.params)])
        else:
            assert (trial.state, run.failure) == (TrialState.FAIL, FailureKind.DIVERGED)
    confirmed = {run.trial_number for run in store.runs(study.id) if run.stage is Stage.CONFIRM}
    complete = [run for run in runs if run.state is RunState.COMPLETE]
    assert confirmed == {max(complete, key=lambda run: (run.value or 0.0, -run.trial_number)).trial_number}


def test_the_optuna_study_is_one_of_several_objectives() -> None:
    store, study = begin(n=3)
    Priced(coordinator_for(store, study), quality).run()
    found = optuna.load_study(study_name="small/a", storage=store.optuna_storage())
    assert [direction.name for direction in found.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert found.metric_names == ["val_score", "train_s"]
    complete = [trial for trial in found.trials if trial.state is TrialState.COMPLETE]
    is_best = on_front([trial.values for trial in complete], (UP, DOWN))
    expected = [trial.number for trial, best in zip(complete, is_best, strict=True) if best]
    assert [trial.number for trial in found.best_trials] == expected


def test_a_grid_is_searched_to_its_end() -> None:
    store, study = begin("grid", FINITE, n=10)
    Priced(coordinator_for(store, study), quality).run()
    runs, trials = trained(store, study)
    assert sorted(run.params["lr"] for run in runs) == [0.1, 0.2, 0.3, 0.4]
    assert all(len(trial.values) == 2 for trial in trials)


def test_a_configuration_that_comes_twice_has_the_values_of_the_first() -> None:
    store, study = begin("random", FINITE, n=12, objectives=["gpu_s"])  # of which the second spends nothing
    Priced(coordinator_for(store, study), quality).run()
    runs, trials = trained(store, study)
    values: dict[float, list[float]] = {}
    for run, trial in zip(runs, trials, strict=True):
        assert values.setdefault(run.params["lr"], trial.values) == trial.values
    assert sum(run.attempt == 0 for run in runs) == 12 - len(values) > 0


@pytest.mark.parametrize("rounds", [1, 4, 9])
def test_a_driver_that_dies_loses_nothing(rounds: int) -> None:
    store, study = begin("tpe", n=8)
    for number in Priced(coordinator_for(store, study), quality).rounds():
        if number == rounds:
            break
    Priced(coordinator_for(store, study, owner="second"), quality).run()
    runs, trials = trained(store, study)
    assert len(runs) == len(trials) == 8
    for run, trial in zip(runs, trials, strict=True):
        expected = [run.value, 3 * price(run.params)] if run.state is RunState.COMPLETE else None
        assert trial.values == (None if expected is None else pytest.approx(expected))


def test_an_end_that_was_not_told_is_told_by_the_next_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    store, study = begin("random", FINITE, n=6)
    with monkeypatch.context() as patched:
        patched.setattr(Trials, "tell", lambda *_: None)  # as if the driver died between our tables and Optuna's
        for _ in Priced(coordinator_for(store, study, slots=6), quality).rounds():
            pass
    assert {trial.state for trial in trained(store, study)[1]} == {TrialState.RUNNING}
    coordinator_for(store, study, owner="second")
    runs, trials = trained(store, study)
    assert any(run.attempt == 0 for run in runs)
    values = [[run.value, 3 * price({**run.params, "momentum": 0.9})] for run in runs]
    assert [trial.values for trial in trials] == [pytest.approx(of) for of in values]


def test_an_extended_study_goes_on_with_both() -> None:
    store, study = begin("tpe", n=4)
    Priced(coordinator_for(store, study), quality).run()
    more = study.definition.to_json()
    more["budget"]["trials_per_optimizer"] = 9
    study = store.extend(study.id, StudyDefinition.model_validate(more))
    Priced(coordinator_for(store, study, owner="second"), quality).run()
    runs, trials = trained(store, study)
    assert len(runs) == 9
    assert all(len(trial.values) == 2 for trial in trials if trial.state is TrialState.COMPLETE)


def test_what_the_end_of_a_budget_broke_off_has_no_values() -> None:
    hours = iter([0.0] * 25)
    store, study = begin("tpe", n=50, budget={"trials_per_optimizer": 50, "max_hours": 1})
    coordinator = coordinator_for(store, study, elapsed_s=lambda: 3600 * next(hours, 2.0))
    Priced(coordinator, quality).run()
    runs, trials = trained(store, study)
    broken_off = [trial for run, trial in zip(runs, trials, strict=False) if run.state is RunState.PRUNED]
    assert broken_off
    assert all(trial.state is TrialState.PRUNED and trial.values is None for trial in broken_off)
    more = study.definition.to_json()
    more["budget"] |= {"trials_per_optimizer": len(runs) + 6, "max_hours": None}
    study = store.extend(study.id, StudyDefinition.model_validate(more))
    Priced(coordinator_for(store, study, owner="second"), quality).run()  # TPE proposes beside the broken-off ones
    assert len(trained(store, study)[0]) == len(runs) + 6


def test_importance_is_for_the_metric() -> None:
    store, study = begin("random", n=16)
    Priced(coordinator_for(store, study), quality).run()
    found = importance(optuna.load_study(study_name="small/a", storage=store.optuna_storage()))
    assert max(found.shares, key=lambda name: found.shares[name]) == "lr"
