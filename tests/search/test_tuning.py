"""The shells that Tune calls."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.exceptions import RayTaskError
from ray.tune.execution.tune_controller import TuneController

from search.assignment import Assignment
from search.states import RunState
from search.stopping import StopSwitch
from search.tuning import AttemptCallback, StudyLoop, StudyScheduler, StudySearcher, StudyStopper
from tasks.errors import NanFromAnotherRun, NanInSeveralRuns
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
        StudyStopper(stop),
    )
    for shell in shells:
        assert len(pickle.dumps(shell)) < 100


@pytest.mark.parametrize(
    ("error", "cohort"), [(NanFromAnotherRun("another diverged"), 4), (NanInSeveralRuns("several at once"), 1)]
)
def test_a_run_with_nan_from_another_of_its_cohort_has_not_failed(
    error: NanFromAnotherRun, cohort: int, tmp_path: Path
) -> None:
    """It waits for its next attempt: in the cohort, or by itself where it may be the one that diverged."""
    store = MemoryStore()
    study = store.add_study(define(max_failures=0))
    coordinator, stop = coordinator_for(store, study, slots=1, cohort=4), StopSwitch()
    assert isinstance(coordinator.next("a"), Assignment)
    coordinator.begin("a")
    file = tmp_path / "error.pkl"
    file.write_bytes(cloudpickle.dumps(RayTaskError("step", "…", error)))
    trial: Any = SimpleNamespace(trial_id="a", pickled_error_file=str(file), error_file=None)
    StudyScheduler(coordinator, stop).on_trial_error(None, trial)
    assert stop.error is None
    [run] = store.runs(study.id)
    assert (run.state, run.n_failures) == (RunState.WAITING, 0)
    again = coordinator.next("b")
    assert isinstance(again, Assignment)
    assert (again.run_id, again.attempt, again.cohort) == (run.id, 2, cohort)


def test_the_private_parts_of_tune_that_we_replace_are_there() -> None:
    """An assignment to a name that Tune no longer reads would do nothing, and workers would need Tune again."""
    assert "_get_trainable_kwargs(trial=" in inspect.getsource(TuneController)
    assert "self._class_cache.get(trainable_cls)" in inspect.getsource(TuneController)
    theirs, ours = (inspect.signature(one._schedule_trial_reset) for one in (TuneController, StudyLoop))
    assert list(theirs.parameters) == list(ours.parameters)
