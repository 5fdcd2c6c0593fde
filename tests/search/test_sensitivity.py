"""Sensitivity runs through the coordinator: which are made, how often, and what they leave alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from search.assignment import Assignment
from search.definition import StudyDefinition
from search.optimizer_search import OptimizerSearch
from search.records import RunRecord, StudyRecord
from search.sensitivity import Sensitivity, values_around
from search.states import RunState, Stage
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define

LR = {"type": "float", "low": 1e-4, "high": 1.0, "log": True}


def asked(**changes: Any) -> StudyDefinition:
    return define(**{"sensitivity": {"points": 5, "span": 100}, "optimizers": ["adamw"], **changes})


def runs_of(store: MemoryStore, study: StudyRecord, stage: Stage = Stage.SENSITIVITY) -> list[RunRecord]:
    return [run for run in store.runs(study.id) if run.stage is stage]


def best_of(store: MemoryStore, study: StudyRecord) -> RunRecord:
    return max(runs_of(store, study, Stage.SEARCH), key=lambda run: run.value or -math.inf)


def test_runs_lie_around_the_chosen_value_and_leave_the_search_alone() -> None:
    store = MemoryStore()
    study = store.add_study(asked(optimizers=["adamw", "sgdm"]))
    Cluster(coordinator_for(store, study)).run()
    for search in store.searches(study.id):
        own = [run for run in store.runs(study.id) if run.search_id == search.id]
        trials = [run for run in own if run.stage is Stage.SEARCH]
        best = max(trials, key=lambda run: run.value or -math.inf)
        around = [run for run in own if run.stage is Stage.SENSITIVITY]
        factors = sorted(run.params["lr"] / best.params["lr"] for run in around)
        assert factors == pytest.approx([0.01, 0.1, 10, 100], rel=1e-3)
        for run in around:
            assert {**run.params, "lr": None} == {**best.params, "lr": None}
            assert (run.seed, run.state, run.test_metrics) == (0, RunState.COMPLETE, {})
        assert sorted(run.trial_number for run in around) == [0, 1, 2, 3]
        assert len(trials) == 4
        import optuna

        optuna_study = optuna.load_study(study_name=search.optuna_name, storage=store.optuna_storage())
        assert len(optuna_study.trials) == 4


def test_the_definition_counts_them() -> None:
    definition = asked(optimizers=["adamw", "sgdm"], sensitivity={"points": 5, "seeds": 2}, baseline="defaults")
    without = definition.model_copy(update={"sensitivity": None})
    assert definition.n_runs - without.n_runs == 2 * 4 * 2
    unconfirmed = asked(confirm={"top_k": 0})
    assert unconfirmed.n_runs == 4 + 5


@pytest.mark.parametrize("top_k", [0, 1, 2])
def test_a_kill_at_any_round_loses_no_run_and_makes_none_twice(top_k: int) -> None:
    definition = asked(confirm={"top_k": top_k, "seeds": [0, 1]}, sensitivity={"points": 5, "seeds": 2})
    undisturbed = MemoryStore()
    study = undisturbed.add_study(definition)
    Cluster(coordinator_for(undisturbed, study)).run()
    wanted = Counter((run.trial_number, run.seed, run.params["lr"]) for run in runs_of(undisturbed, study))
    assert sum(wanted.values()) == (10 if top_k == 0 else 8)
    for kill_every in (1, 2, 4):
        store = MemoryStore()
        study = store.add_study(definition)
        for life in range(200):
            cluster = Cluster(coordinator_for(store, study, owner=f"driver {life}"))
            if not [*zip(range(kill_every * 3), cluster.rounds(), strict=False)]:
                break
        assert Counter((run.trial_number, run.seed, run.params["lr"]) for run in runs_of(store, study)) == wanted
        assert {run.state for run in store.runs(study.id)} == {RunState.COMPLETE}


def test_trials_that_lie_there_are_not_trained_again() -> None:
    grid = {"type": "categorical", "choices": [0.001, 0.01, 0.1]}
    store = MemoryStore()
    study = store.add_study(
        asked(optimizers=[{"name": "sgdm", "space": {"lr": grid}}], sampler={"name": "grid"}, sensitivity={"points": 7})
    )
    Cluster(coordinator_for(store, study)).run()
    assert runs_of(store, study) == []
    study = store.add_study(
        asked(
            name="two-seeds",
            optimizers=[{"name": "sgdm", "space": {"lr": grid}}],
            sampler={"name": "grid"},
            sensitivity={"points": 7, "seeds": 2},
        )
    )
    Cluster(coordinator_for(store, study)).run()
    assert sorted((run.params["lr"], run.seed) for run in runs_of(store, study)) == [(0.001, 0), (0.1, 0)]


def test_an_extended_study_varies_what_it_then_chooses() -> None:
    store = MemoryStore()
    lr = {"type": "categorical", "choices": [0.1, 0.03, 0.01]}
    sgdm = {
        "name": "sgdm",
        "space": {"lr": lr, "momentum": {**LR, "high": 0.9}},
        "first": [{"lr": 0.1}, {"lr": 0.03}, {"lr": 0.01}],
    }
    varied = {"parameter": "momentum", "points": 3, "span": 1.5}

    def with_trials(n: int) -> StudyDefinition:
        return asked(optimizers=[sgdm], budget={"trials_per_optimizer": n}, sensitivity=varied)

    study = store.add_study(with_trials(2))
    Cluster(coordinator_for(store, study)).run()
    before = runs_of(store, study)
    assert {run.params["lr"] for run in before} == {0.03}
    Cluster(coordinator_for(store, store.extend(study.id, with_trials(3)))).run()
    after = runs_of(store, study)
    assert after[: len(before)] == before
    assert {run.params["lr"] for run in after[len(before) :]} == {0.01}
    assert [run.trial_number for run in after] == [*range(len(after))]


def test_confirm_runs_choose_around_which_trial() -> None:
    """The search likes 0.001 best, the confirm runs 0.01."""
    space = {"lr": {"type": "categorical", "choices": [0.001, 0.01]}, "weight_decay": LR}

    def score(assignment: Assignment, epoch: int) -> float:
        liked = 0.001 if assignment.stage is Stage.SEARCH else 0.01
        return epoch - abs(math.log10(assignment.settings["lr"] / liked))

    store = MemoryStore()
    study = store.add_study(
        asked(
            optimizers=[{"name": "adamw", "space": space}],
            budget={"trials_per_optimizer": 12},
            confirm={"top_k": 12, "seeds": [0, 1]},
            sensitivity={"parameter": "weight_decay", "points": 3},
        )
    )
    Cluster(coordinator_for(store, study), score).run()
    assert {run.params["lr"] for run in runs_of(store, study)} == {0.01}


def test_one_confirm_seed_chooses_too() -> None:
    space = {"lr": {"type": "categorical", "choices": [0.001, 0.01]}}

    def score(assignment: Assignment, epoch: int) -> float:
        liked = 0.001 if assignment.stage is Stage.SEARCH else 0.01
        return epoch - abs(math.log10(assignment.settings["lr"] / liked))

    store = MemoryStore()
    study = store.add_study(
        asked(
            optimizers=[{"name": "adamw", "space": space, "fixed": {"weight_decay": 0.01}}],
            sampler={"name": "grid"},
            confirm={"top_k": 2, "seeds": [0]},
            sensitivity={"parameter": "weight_decay", "points": 3},
        )
    )
    Cluster(coordinator_for(store, study), score).run()
    assert {run.params["lr"] for run in runs_of(store, study)} == {0.01}


def test_the_recipe_can_be_varied() -> None:
    space = {"lr": LR, "recipe.batch_size": {"type": "int", "low": 16, "high": 64, "log": True}}
    search = OptimizerSearch.model_validate({"name": "sgdm", "space": space})
    params = {"lr": 0.1, "recipe.batch_size": 32}
    found = values_around(search, params, Sensitivity(parameter="recipe.batch_size", points=5, span=4))
    assert found == [16, 32, 64]  # 8 and 128 are outside what is searched, and may break the task's rules


def test_the_runs_wait_for_the_searches_of_the_others() -> None:
    """One slot; the search of one optimizer has ended long before the other's."""
    store = MemoryStore()
    optimizers = [{"name": "sgdm", "n_trials": 2}, "adamw"]
    study = store.add_study(asked(optimizers=optimizers, budget={"trials_per_optimizer": 8}))
    cluster = Cluster(coordinator_for(store, study, slots=1))
    cluster.run()
    stages = [one.stage for one in cluster.started]
    first = stages.index(Stage.SENSITIVITY)
    assert stages[:first].count(Stage.SEARCH) == 10
    assert Stage.SEARCH not in stages[first:]


def test_a_search_without_a_complete_trial_has_none() -> None:
    store = MemoryStore()
    study = store.add_study(asked())
    Cluster(coordinator_for(store, study), lambda assignment, epoch: None).run()
    assert runs_of(store, study) == []


def test_cancelling_the_study_ends_them() -> None:
    store = MemoryStore()
    study = store.add_study(asked())
    cluster = Cluster(coordinator_for(store, study))
    for _ in cluster.rounds():
        if runs_of(store, study):
            break
    cluster.coordinator.cancel()
    assert {run.state for run in runs_of(store, study)} == {RunState.FAIL}
    assert all(run.state.is_finished for run in store.runs(study.id))


@pytest.mark.parametrize(
    ("space", "fixed", "params", "parameter", "values"),
    [
        ({"lr": LR}, {}, {"lr": 0.01}, "lr", [0.0001, 0.001, 0.01, 0.1, 1.0]),
        ({"lr": LR}, {"weight_decay": 0.01}, {"lr": 0.1}, "weight_decay", [0.0001, 0.001, 0.01, 0.1, 1.0]),
        ({"lr": LR}, {"weight_decay": 0}, {"lr": 0.1}, "weight_decay", []),
        ({"lr": LR}, {}, {"lr": 0.1}, "lambd", [0.001, 0.01, 0.1]),  # around its default, and below 1
        (
            {"beta": {"type": "float", "low": 0.0, "high": 0.8}}, {}, {"beta": 0.25}, "beta",
            [0.0, 0.25, 0.4, 0.6, 0.8],
        ),
        (
            {"lambd": {"type": "categorical", "choices": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]}}, {}, {"lambd": 0.2},
            "lambd", [0.1, 0.2, 0.3, 0.4],
        ),
        # 1 is how somebody wrote 1.0; the others are not rounded as it is
        ({"lr": {"type": "categorical", "choices": [0.3, 1, 3]}}, {}, {"lr": 1}, "lr", [0.3, 1, 3]),
        ({"lr": LR}, {"weight_decay": 1}, {"lr": 0.1}, "weight_decay", [0.01, 0.1, 1, 10, 100]),
        ({"betas": {"type": "categorical", "choices": [[0.9, 0.99]]}}, {}, {"betas": [0.9, 0.99]}, "betas", []),
    ],
)  # fmt: skip
def test_values_around(
    space: dict[str, Any], fixed: dict[str, Any], params: dict[str, Any], parameter: str, values: list[float]
) -> None:
    search = OptimizerSearch.model_validate(
        {"name": "admetas" if "beta" in space else "admetar", "space": space, "fixed": fixed}
    )
    found = values_around(search, params, Sensitivity(parameter=parameter, points=5, span=100))
    assert found == pytest.approx(values)


@pytest.mark.parametrize(
    ("sensitivity", "told"),
    [
        ({"parameter": "learning_rate"}, "is no parameter with numbers of any optimizer here"),
        ({"parameter": "epsilon"}, "did you mean 'eps'"),  # which is at its default
        ({"points": 4}, "must be odd"),
        ({"seeds": 3}, "must be at most the number of confirm seeds, 2"),
        ({"span": 1}, "greater than 1"),
    ],
)
def test_what_cannot_be_asked_for(sensitivity: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        asked(sensitivity=sensitivity)
