"""Trials that were lost with their machine are replaced, and no others."""

from __future__ import annotations

from collections import Counter

import pytest

from search.records import StudyRecord
from search.states import FailureKind, RunState, Stage
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, by_learning_rate, coordinator_for, define


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
