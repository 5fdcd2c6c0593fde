"""Extending a study that has ended: what its definition becomes, and how a driver goes on. No Ray, no SQL, no clock."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from admeta.client.models import ExtendRequest
from search.assignment import Assignment
from search.definition import StudyDefinition
from search.extension import alpha_after, changes_in_words, extended, looks_in_words, unequal_budgets
from search.records import RunRecord, StudyRecord
from search.states import RunState, Stage
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, by_learning_rate, coordinator_for, define

SAMPLERS = ["tpe", "cmaes", "qmc", "random"]


def grown(definition: StudyDefinition, **asked: Any) -> StudyDefinition:
    return StudyDefinition.model_validate(extended(definition, ExtendRequest(**asked)))


def trials_of(definition: StudyDefinition) -> dict[str, int]:
    return {one.label: definition.n_trials_of(one) for one in definition.optimizers}


def ended(definition: StudyDefinition, score: Any = by_learning_rate) -> tuple[MemoryStore, StudyRecord]:
    store = MemoryStore()
    study = store.add_study(definition)
    Cluster(coordinator_for(store, study, slots=1), score).run()
    return store, study


def runs_of(store: MemoryStore, study: StudyRecord, label: str, stage: Stage) -> list[RunRecord]:
    ids = {search.id for search in store.searches(study.id) if search.label == label}
    return [run for run in store.runs(study.id) if run.search_id in ids and run.stage is stage]


# The definition ---------------------------------------------------------------------------------------------------


def test_totals_and_what_changes_in_words() -> None:
    old = define(
        confirm={"top_k": 1, "seeds": [0, 1]}, training_seed=3, budget={"trials_per_optimizer": 4, "target": 9.0}
    )
    asked = {"trials": 8, "seeds": 4, "optimizers": ["adam"], "limits": {"target": None, "max_hours": 2}}
    new = grown(old, **asked)
    assert new.confirm.seeds == [0, 1, 2, 4]  # 3 trains the search stage
    assert trials_of(new) == {"adamw": 8, "sgdm": 8, "adam": 8}
    assert (new.budget.target, new.budget.max_hours) == (None, 2)
    assert changes_in_words(old, new) == [
        "8 trials of each optimizer, before 4",
        "4 confirm seeds, before 2",
        "budget.max_hours 2, before none",
        "budget.target none, before 9",
        "adam added",
    ]
    assert unequal_budgets(trials_of(new)) is None
    again = grown(new, **{**asked, "optimizers": []})
    assert again == new


def test_one_optimizers_trials_are_told_as_unequal() -> None:
    new = grown(define(), trials_of={"sgdm": 10})
    assert trials_of(new) == {"adamw": 4, "sgdm": 10}
    assert changes_in_words(define(), new) == ["10 trials of sgdm, before 4"]
    common, own = "12 trials of each optimizer, before 4", "12 trials of sgdm, before 10"
    assert changes_in_words(new, grown(new, trials=12)) == [common, own]
    few = define(optimizers=[{"name": "sgdm", "n_trials": 2}])
    assert changes_in_words(few, grown(few, trials=4)) == ["4 trials of sgdm, before 2"]
    assert str(unequal_budgets(trials_of(new))).startswith("The budgets are unequal (10 trials: sgdm; 4 trials: adamw)")
    equal = grown(new, trials=10)
    assert [one.n_trials for one in equal.optimizers] == [None, None]
    assert unequal_budgets(trials_of(equal)) is None


def test_until_decided_the_most_seeds_are_extended() -> None:
    old = define(confirm={"top_k": 1, "seeds": [0, 1], "until": "decided", "max_seeds": 6})
    new = grown(old, seeds=9)
    assert (new.confirm.seeds, new.confirm.max_seeds) == ([0, 1], 9)
    assert new.confirm.all_seeds(100)[:6] == old.confirm.all_seeds(100)
    assert changes_in_words(old, new) == ["at most 9 confirm seeds, before 6"]


def test_an_added_optimizer_searches_the_recipe_that_all_search() -> None:
    recipe = {
        "batch_size": {"type": "categorical", "choices": [32, 64]},
        "label_smoothing": {"type": "float", "low": 0.0, "high": 0.1, "when": {"batch_size": 32}},
    }
    old = define(task={"name": "digits", "epochs": 3}, recipe=recipe)
    own = {"name": "radam", "fixed": {"recipe.label_smoothing": 0.1}}
    new = grown(old, optimizers=["adam", {"name": "sgd", "recipe": {"batch_size": recipe["batch_size"]}}, own])
    spaces = {
        one.label: {name: part for name, part in one.space.items() if name.startswith("recipe.")}
        for one in new.optimizers
    }
    assert len(spaces["adamw"]) == 2
    assert spaces["adam"] == spaces["adamw"]
    assert list(spaces["sgd"]) == list(spaces["radam"]) == ["recipe.batch_size"]


@pytest.mark.parametrize(
    ("confirm", "asked", "field", "rule"),
    [
        ({}, {"trials": 3}, "trials", "must be at least 4"),
        ({}, {"trials_of": {"sgdm": 3}}, "trials_of", "must be at least 4, the present number of trials of sgdm"),
        ({}, {"trials_of": {"sgd": 9}}, "trials_of", "did you mean 'sgdm'"),
        ({}, {"seeds": 1}, "seeds", "must be at least 2"),
        ({"top_k": 0}, {"seeds": 5}, "seeds", "confirms nothing"),
        ({}, {"limits": {"hours": 5}}, "limits", "did you mean 'max_hours'"),
    ],
)
def test_what_cannot_be_extended(confirm: dict[str, Any], asked: dict[str, Any], field: str, rule: str) -> None:
    definition = define(confirm={"top_k": 1, "seeds": [0, 1], **confirm})
    with pytest.raises(ValidationError) as refused:
        extended(definition, ExtendRequest(**asked))
    (error,) = refused.value.errors()
    assert error["loc"][0] == field
    assert rule in error["msg"]


def test_each_extension_after_verdicts_has_half_the_alpha() -> None:
    assert [alpha_after(0.95, n) for n in range(3)] == pytest.approx([0.05, 0.025, 0.0125])
    assert looks_in_words(0.95, 0) is None
    assert "97.5 %, together with the earlier ones of 92.5 %" in str(looks_in_words(0.95, 1))
    assert "98.75 %, together with the earlier ones of 91.25 %" in str(looks_in_words(0.95, 2))
    assert "0.0049 %, is smaller than the simulation of verdicts can show, 1 of 20,000" in str(looks_in_words(0.95, 10))


def test_a_budget_of_epochs_is_extended_by_its_limit() -> None:
    old = define(budget={"epochs_per_optimizer": 6})
    with pytest.raises(ValidationError, match="does not fit a budget of epochs or GPU hours"):
        extended(old, ExtendRequest(trials=9))
    new = grown(old, limits={"epochs_per_optimizer": 12})
    assert changes_in_words(old, new) == ["budget.epochs_per_optimizer 12, before 6"]
    store, study = ended(old)
    Cluster(coordinator_for(store, store.extend(study.id, new), slots=1)).run()
    assert [len(runs_of(store, study, label, Stage.SEARCH)) for label in ("adamw", "sgdm")] == [4, 4]


# The driver -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_more_trials_are_those_of_a_study_that_had_them_from_the_beginning(sampler: str) -> None:
    def study(n: int) -> StudyDefinition:
        return define(sampler={"name": sampler}, budget={"trials_per_optimizer": n}, confirm={"top_k": 0})

    store, first = ended(study(4))
    before = store.runs(first.id)
    cluster = Cluster(coordinator_for(store, store.extend(first.id, study(9)), slots=1))
    cluster.run()
    whole_store, whole = ended(study(9))
    for label in ("adamw", "sgdm"):
        there, wanted = (
            [(run.trial_number, run.params) for run in runs_of(of, one, label, Stage.SEARCH)]
            for of, one in ((store, first), (whole_store, whole))
        )
        assert there == wanted
    assert {run.id: run for run in store.runs(first.id)}.items() >= {run.id: run for run in before}.items()
    assert len(cluster.started) == 10


def test_the_rest_of_the_first_settings_is_tried() -> None:
    first = [{"lr": lr} for lr in (0.02, 0.03, 0.04)]
    optimizers = [{"name": "sgdm", "first": first}]
    store, study = ended(define(optimizers=optimizers, budget={"trials_per_optimizer": 2}, confirm={"top_k": 0}))
    Cluster(coordinator_for(store, store.extend(study.id, grown(study.definition, trials=4)))).run()
    tried = [run.params["lr"] for run in runs_of(store, study, "sgdm", Stage.SEARCH)]
    assert len(tried) == 4
    assert tried[:3] == pytest.approx([0.02, 0.03, 0.04])


def test_confirm_runs_of_a_trial_that_stays_chosen_are_kept_and_others_stay_as_records() -> None:
    """adamw's later trials are worse, sgdm's are better."""

    def score(assignment: Assignment, epoch: int) -> float:
        sign = -1 if assignment.label == "adamw" else 1
        return sign * float(assignment.trial_number) + 0.001 * epoch + 0.0001 * assignment.seed

    store, study = ended(define(), score)
    before = {label: runs_of(store, study, label, Stage.CONFIRM) for label in ("adamw", "sgdm")}
    Cluster(coordinator_for(store, store.extend(study.id, grown(study.definition, trials=6, seeds=3))), score).run()
    after = {label: runs_of(store, study, label, Stage.CONFIRM) for label in before}
    assert Counter((run.trial_number, run.seed) for run in after["adamw"]) == {(0, 0): 1, (0, 1): 1, (0, 2): 1}
    assert [(run.trial_number, run.seed) for run in after["sgdm"]] == [(3, 0), (3, 1), (5, 0), (5, 1), (5, 2)]
    for label, runs in before.items():
        assert after[label][: len(runs)] == runs


@pytest.mark.parametrize("cancel_after", [1, 4, 7, 13])
def test_a_cancelled_study_gets_all_its_trials_and_seeds_after_all(cancel_after: int) -> None:
    store = MemoryStore()
    study = store.add_study(define(confirm={"top_k": 1, "seeds": [0, 1, 2]}))
    cluster = Cluster(coordinator_for(store, study))
    for number in cluster.rounds():
        if number == cancel_after:
            break
    cluster.coordinator.cancel()
    finished = {run.id for run in store.runs(study.id) if run.state is RunState.COMPLETE}
    second = Cluster(coordinator_for(store, store.extend(study.id, study.definition, n_seen=0), owner="second"))
    second.run()
    assert not finished & {assignment.run_id for assignment in second.started}
    for label in ("adamw", "sgdm"):
        for stage, n in ((Stage.SEARCH, 4), (Stage.CONFIRM, 3)):
            own = runs_of(store, study, label, stage)
            assert sum(run.state is RunState.COMPLETE for run in own) == n
            assert all(run.state.is_finished for run in own)


def test_trials_that_are_cancelled_again_and_again_are_all_replaced() -> None:
    """A baseline, too, which has no other settings to take the place."""
    store = MemoryStore()
    study = store.add_study(define(optimizers=["sgdm"], baseline=["sgdm"]))
    for i in range(4):
        cluster = Cluster(coordinator_for(store, study, owner=f"driver {i}", slots=4))
        next(iter(cluster.rounds()))
        cluster.coordinator.cancel()
        study = store.extend(study.id, study.definition, n_seen=0)
    Cluster(coordinator_for(store, study, owner="last")).run()
    for label, n in (("sgdm", 4), ("sgdm.defaults", 1)):
        ends = Counter(run.state for run in runs_of(store, study, label, Stage.SEARCH))
        assert ends[RunState.COMPLETE] == n
        assert ends[RunState.FAIL] >= 4


@pytest.mark.parametrize("kill_after", range(1, 12, 2))
def test_a_new_driver_finishes_what_the_dead_one_left_of_an_extension(kill_after: int) -> None:
    store, study = ended(define())
    study = store.extend(study.id, grown(study.definition, trials=6, seeds=3, optimizers=["adam"]))
    first = Cluster(coordinator_for(store, study))
    for number in first.rounds():
        if number == kill_after:
            break
    finished = {run.id for run in store.runs(study.id) if run.state.is_finished}
    second = Cluster(coordinator_for(store, study, owner="second"))
    second.run()
    assert not finished & {assignment.run_id for assignment in second.started}
    assert all(run.state is RunState.COMPLETE for run in store.runs(study.id))
    for label in ("adamw", "sgdm", "adam"):
        assert [run.trial_number for run in runs_of(store, study, label, Stage.SEARCH)] == list(range(6))


def test_until_decided_only_the_trial_that_is_chosen_now_counts() -> None:
    """Before, sgdm's best trial was far behind; with more trials it is as good as adamw's."""

    def score(assignment: Assignment, epoch: int) -> float:
        is_new = assignment.label == "adamw" or assignment.trial_number >= 2
        return float(is_new) + 0.01 * assignment.trial_number + 0.001 * ((assignment.seed * 7) % 5) + 0.0001 * epoch

    confirm = {"top_k": 1, "seeds": [0, 1, 2], "until": "decided", "max_seeds": 5}
    store, study = ended(define(budget={"trials_per_optimizer": 2}, confirm=confirm), score)
    assert len(runs_of(store, study, "sgdm", Stage.CONFIRM)) == 3
    study = store.extend(study.id, grown(study.definition, trials_of={"sgdm": 4}))
    coordinator = coordinator_for(store, study)
    coordinator.tell_why_waiting()
    assert store.get_study(study.id).reason == "starts its first workers"  # and not the look that was taken before
    Cluster(coordinator, score).run()
    confirmed = Counter(run.trial_number for run in runs_of(store, study, "sgdm", Stage.CONFIRM))
    assert confirmed[1] == 3
    assert confirmed[3] >= 3
