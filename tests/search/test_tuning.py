"""The shells that Tune calls."""

from __future__ import annotations

import pickle

from search.tuning import AttemptCallback, StopSwitch, StudyScheduler, StudySearcher
from tests.search.memory_store import MemoryStore
from tests.search.workers import coordinator_for, define


def test_what_tune_pickles_carries_nothing() -> None:
    store = MemoryStore()
    coordinator = coordinator_for(store, store.add_study(define()))
    stop = StopSwitch()
    shells = (
        StudySearcher(coordinator, stop),
        StudyScheduler(coordinator, stop),
        AttemptCallback(coordinator, stop),
        stop,
    )
    for shell in shells:
        assert len(pickle.dumps(shell)) < 100
