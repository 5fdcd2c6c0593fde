"""Adaptive confirmation through the coordinator: seeds until it is decided, the same after any kill."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from search.assignment import Assignment
from search.confirmation import Spread, detectable_in
from search.definition import StudyDefinition
from search.records import Lease, RunOutcome, StudyRecord
from search.sections import Contrasts
from search.states import FailureKind, RunState, Stage, StudyState
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define

UNTIL_DECIDED = {"top_k": 1, "seeds": [0, 1, 2], "until": "decided", "max_seeds": 12, "min_effect": 0.05}
MEANS = {"adamw": 0.90, "sgdm": 0.89, "adam": 0.2}


def three(**confirm: Any) -> StudyDefinition:
    return define(
        optimizers=[{"name": name} for name in MEANS],
        budget={"trials_per_optimizer": 2},
        confirm={**UNTIL_DECIDED, **confirm},
    )


def noisy(std: float) -> Any:
    """A score that depends on the optimizer and the seed alone."""

    def score(assignment: Assignment, epoch: int) -> float:
        digest = hashlib.sha256(f"{assignment.label}{assignment.seed}".encode()).digest()
        noise = sum(digest[:12]) / (12 * 255) - 0.5  # nearly normal, standard deviation 0.084
        return MEANS[assignment.label] + noise * std / 0.084 + 0.001 * epoch

    return score


def seeds_of(store: MemoryStore, study: StudyRecord) -> dict[str, list[int]]:
    labels = {search.id: search.label for search in store.searches(study.id)}
    found: dict[str, list[int]] = {label: [] for label in labels.values()}
    for run in store.runs(study.id):
        if run.stage is Stage.CONFIRM:
            assert run.state is RunState.COMPLETE
            found[labels[run.search_id]].append(run.seed)
    return found


def test_a_clear_question_takes_the_first_look_only() -> None:
    store = MemoryStore()
    study = store.add_study(three(min_effect=0.2))
    Cluster(coordinator_for(store, study), noisy(0.005)).run()
    assert Counter({label: len(seeds) for label, seeds in seeds_of(store, study).items()}) == {
        "adamw": 3, "sgdm": 3, "adam": 3,
    }  # fmt: skip


def test_the_open_question_gets_seeds_and_the_one_behind_none() -> None:
    store = MemoryStore()
    study = store.add_study(three(min_effect=None))
    Cluster(coordinator_for(store, study), noisy(0.03)).run()
    seeds = seeds_of(store, study)
    assert seeds["adam"] == [0, 1, 2]
    assert seeds["adamw"] == seeds["sgdm"] == list(range(12))


def test_with_contrasts_named_nobody_gets_seeds_once_they_are_decided() -> None:
    store = MemoryStore()
    study = store.add_study(three(min_effect=None).model_copy(update={"contrasts": Contrasts(against="adam")}))
    Cluster(coordinator_for(store, study), noisy(0.03)).run()
    assert {len(seeds) for seeds in seeds_of(store, study).values()} == {3}


def test_the_named_one_goes_on_while_one_contrast_is_open() -> None:
    store = MemoryStore()
    study = store.add_study(three(min_effect=None).model_copy(update={"contrasts": Contrasts(against="sgdm")}))
    Cluster(coordinator_for(store, study), noisy(0.03)).run()
    seeds = seeds_of(store, study)
    assert seeds["adam"] == [0, 1, 2]
    assert seeds["adamw"] == seeds["sgdm"] == list(range(12))


def test_a_kill_at_any_round_changes_no_decision() -> None:
    undisturbed = MemoryStore()
    study = undisturbed.add_study(three())
    Cluster(coordinator_for(undisturbed, study), noisy(0.03)).run()
    wanted = seeds_of(undisturbed, study)
    assert max(map(len, wanted.values())) > 3
    for kill_every in (1, 2, 5):
        store = MemoryStore()
        study = store.add_study(three())
        for life in range(200):
            cluster = Cluster(coordinator_for(store, study, owner=f"driver {life}"), noisy(0.03))
            if not [*zip(range(kill_every * 3), cluster.rounds(), strict=False)]:
                break
        assert seeds_of(store, study) == wanted


@pytest.mark.parametrize("kill_at", [None, 12, 20])
def test_another_seed_takes_the_place_of_a_cancelled_run(kill_at: int | None) -> None:
    """Also in the first look, and after a kill: the question is still open, and confirmation goes on."""
    store = MemoryStore()
    study = store.add_study(three(min_effect=None))
    cluster = Cluster(coordinator_for(store, study), noisy(0.03))
    labels = {search.id: search.label for search in store.searches(study.id)}
    for number in cluster.rounds():
        first = [run for run in store.runs(study.id) if run.stage is Stage.CONFIRM and run.seed == 2]
        cancelled = next((run for run in first if labels[run.search_id] == "adamw"), None)
        if cancelled is not None and cancelled.state is not RunState.COMPLETE:
            outcome = RunOutcome(state=RunState.FAIL, failure=FailureKind.CANCELLED, error="by request")
            store.finish_run(Lease(study_id=study.id, owner="first", ttl_s=10), cancelled.id, outcome)
            for ticket in cluster.coordinator.drop_cancelled():
                del cluster.live[ticket]
        if number == kill_at:
            break
    if kill_at is not None:
        Cluster(coordinator_for(store, study, owner="second"), noisy(0.03)).run()
    runs = [run for run in store.runs(study.id) if run.stage is Stage.CONFIRM and run.state is RunState.COMPLETE]
    seeds = {label: sorted(run.seed for run in runs if labels[run.search_id] == label) for label in MEANS}
    assert seeds == {"adamw": [0, 1, *range(3, 12)], "sgdm": [*range(12)], "adam": [0, 1, 2]}


def test_what_it_waits_for_is_the_studys_reason() -> None:
    store = MemoryStore()
    study = store.add_study(three(min_effect=None))
    cluster = Cluster(coordinator_for(store, study), noisy(0.03))
    reasons = {store.get_study(study.id).reason for _ in cluster.rounds()}
    told = [reason for reason in reasons if reason and "look 1" in reason]
    assert told
    assert "adamw, sgdm train up to 4 seeds each" in told[0]
    assert store.get_study(study.id).state is StudyState.RUNNING


def test_a_driver_that_takes_over_tells_what_the_study_waits_for() -> None:
    store = MemoryStore()
    study = store.add_study(three(min_effect=None))
    cluster = Cluster(coordinator_for(store, study), noisy(0.03))
    for _ in cluster.rounds():
        if (told := str(store.get_study(study.id).reason)).startswith("confirmation"):
            break
    second = coordinator_for(store, study, owner="second")
    store.set_study_state(Lease(study_id=study.id, owner="second", ttl_s=10), StudyState.RUNNING)
    next(Cluster(second, noisy(0.03)).rounds())
    assert store.get_study(study.id).reason == told


def test_a_seed_of_the_search_is_never_a_confirm_seed() -> None:
    definition = three(max_seeds=20)
    definition = StudyDefinition.model_validate({**definition.to_json(), "training_seed": 7})
    seeds = definition.confirm.all_seeds(7)
    assert len(seeds) == 20
    assert 7 not in seeds
    assert definition.n_confirm_runs_of(definition.optimizers[0]) == 20


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        ({"top_k": 2}, "top_k", "must be 1 with 'until: decided'"),
        ({"seeds": [0]}, "seeds", "2 seeds for the first look"),
        ({"max_seeds": 2}, "seeds", "not more than max_seeds = 2"),
        ({"min_effect": 0}, "min_effect", "greater than 0"),
        ({"confidence": 1.5}, "confidence", "0.999"),
    ],
)
def test_rules_of_adaptive_confirmation(changes: dict[str, Any], field: str, rule: str) -> None:
    with pytest.raises(ValidationError) as raised:
        three(**changes)
    (error,) = raised.value.errors()
    assert field in str(error["loc"])
    assert rule in error["msg"]


def test_contrasts_name_a_label_of_the_study() -> None:
    assert define(contrasts={"against": "sgdm"}).contrasts is not None
    with pytest.raises(ValidationError, match="sgdm"):
        define(contrasts={"against": "sgd"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "3 optimizers with up to 12 seeds each: a difference of about 1.6 standard deviations between seeds"),
        ({"confirm": {"seeds": [0, 1, 2, 3], "top_k": 2}}, "3 optimizers with 2 seeds each"),
        ({"confirm": {}, "searches": 4}, "no earlier study of this recipe says how large one is between searches"),
        ({"confirm": {"seeds": [0]}}, "One confirm seed of each optimizer shows no spread"),
        ({"confirm": {"top_k": 0}}, "Nothing is confirmed"),
    ],
)
def test_what_a_study_can_show_is_told_before_it_runs(changes: dict[str, Any], said: str) -> None:
    base = {"optimizers": [{"name": name} for name in MEANS], "confirm": UNTIL_DECIDED}
    found = detectable_in(define(**{**base, **changes}), None)
    assert found is not None
    assert said in found.sentence


def test_what_a_study_can_show_in_the_metrics_unit() -> None:
    in_std = detectable_in(define(), None)
    found = detectable_in(define(), Spread(std=0.01, n_studies=2))
    assert in_std is not None
    assert in_std.difference is not None
    assert found is not None
    assert found.difference == pytest.approx(0.01 * in_std.difference)
    assert "in val_score" in found.sentence
    assert "was 0.01 in 2 earlier studies of this recipe" in found.sentence
    assert detectable_in(define(optimizers=[{"name": "adamw"}]), None) is None
