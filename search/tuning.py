"""Ray Tune's side of a study: thin shells that let Tune ask the coordinator and tell it.

Owns the translation alone: Tune's searcher, scheduler and stopper each forward to one coordinator. Tune pickles them
into its experiment folder, so they carry nothing when pickled: no store, no address, no password.
"""

from __future__ import annotations

import threading
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from search.assignment import Report
from search.coordinator import Coordinator, Idle
from search.records import FailureKind


class StudySearcher(Searcher):  # type: ignore[misc]
    """Hands Tune the coordinator's next run."""

    def __init__(self, coordinator: Coordinator, stop: StopSwitch) -> None:
        super().__init__(metric=None, mode=None)
        self._coordinator = coordinator
        self._stop = stop

    def suggest(self, trial_id: str) -> Any:
        """A run's config; None: nothing to start now; FINISHED: the study is over."""
        if self._stop.stop_all():  # where no run is live, Tune looks nowhere else for up to ten minutes
            return Searcher.FINISHED
        assignment = self._coordinator.next(trial_id)
        if assignment is Idle.DONE:
            return Searcher.FINISHED
        return None if isinstance(assignment, Idle) else assignment.to_config()

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:  # noqa: FBT001, FBT002 - Tune's signature
        """Nothing: the scheduler has recorded it, with what Tune does not tell here (pruned, why it failed)."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: SQL is the truth."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


class StudyScheduler(FIFOScheduler):  # type: ignore[misc]
    """Tells the coordinator what happened, and stops the runs that ended.

    Workers never set Tune's `done`: Tune would then end the trial without asking here.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__()
        self._coordinator = coordinator

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        report: Report = result["report"]
        stop = self._coordinator.report(trial.trial_id, report)
        decision: str = TrialScheduler.STOP if stop else TrialScheduler.CONTINUE
        return decision

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        error = trial.get_pickled_error()
        kind = FailureKind.LOST if isinstance(error, RayActorError) else FailureKind.ERROR
        cause = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
        text = f"{type(cause).__name__}: {cause}" if kind is FailureKind.ERROR else f"the worker died: {error}"
        self._coordinator.fail(trial.trial_id, kind=kind, error=text)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


class AttemptCallback(Callback):  # type: ignore[misc]
    """Tells the coordinator that a run's worker starts."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._coordinator.begin(trial.trial_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


class StopSwitch(Stopper):  # type: ignore[misc]
    """Ends the whole experiment once thrown; the control thread throws it."""

    def __init__(self) -> None:
        self._thrown = threading.Event()

    def throw(self) -> None:
        self._thrown.set()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._thrown.is_set()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


def _nothing() -> None:
    """What the shells become in Tune's pickles."""
