"""Ray Tune's side of a study: thin shells that let Tune ask the coordinator and tell it.

Owns the translation alone: Tune's searcher, scheduler and stopper each forward to one coordinator. Tune pickles them
into its experiment folder, so they carry nothing when pickled: no store, no address, no password.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import ray
from ray import cloudpickle
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError
from ray.tune import Callback, Stopper, TuneError
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from search.assignment import Assignment, Report
from search.coordinator import Coordinator, Idle
from search.preemption import PreemptedError
from search.states import FailureKind
from tasks.errors import OutOfMemory

CANCEL_POLL_S = 1.0
_NODE_DIED = "its node has died"
"""In the message of Ray's ActorDiedError; it carries the reason in no other way."""


class StudySearcher(Searcher):  # type: ignore[misc]
    """Hands Tune the coordinator's next run."""

    def __init__(self, coordinator: Coordinator, stop: StopSwitch) -> None:
        super().__init__(metric=None, mode=None)
        self._coordinator = coordinator
        self._stop = stop

    def suggest(self, trial_id: str) -> Any:
        """A run's config; None: nothing to start now; FINISHED: the study is over."""
        assignment: Assignment | Idle = Idle.DONE
        # Where no run is live, Tune looks nowhere but here for up to ten minutes.
        if not self._stop.is_stopping:
            with self._stop.on_error():
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

    def __init__(self, coordinator: Coordinator, stop: StopSwitch) -> None:
        super().__init__()
        self._coordinator = coordinator
        self._stop = stop
        self._looked_at = 0.0

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        """None: new runs take the workers that are free. Called at every turn of Tune's loop: cancelled runs end here.

        FIFO would choose the run that waits longest, and that one waits for a worker which is starting: Tune gives it
        a free one instead and kills the one that starts. While runs end sooner than workers start, none ever would.
        """
        if self._stop.error is None and time.monotonic() - self._looked_at >= CANCEL_POLL_S:
            self._looked_at = time.monotonic()
            with self._stop.on_error():
                for ticket in self._coordinator.drop_cancelled():
                    _end_worker(tune_controller.get_trial(ticket))
                self._coordinator.tell_why_waiting()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        report: Report = result["report"]
        over = True
        if self._stop.error is None:
            with self._stop.on_error():
                over = self._coordinator.report(trial.trial_id, report)
                if not over and self._stop.is_draining:
                    self._coordinator.interrupt(trial.trial_id, reason="the study was paused")
                    over = True
        decision: str = TrialScheduler.STOP if over else TrialScheduler.CONTINUE
        return decision

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        error = _error_of(trial)
        if self._stop.error is None:
            with self._stop.on_error():
                if isinstance(_cause(error), PreemptedError):
                    self._coordinator.interrupt(trial.trial_id, reason=str(_cause(error)))
                else:
                    kind, text = describe(error)
                    self._coordinator.fail(trial.trial_id, kind=kind, error=text)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


class AttemptCallback(Callback):  # type: ignore[misc]
    """Tells the coordinator that a run's worker starts."""

    def __init__(self, coordinator: Coordinator, stop: StopSwitch) -> None:
        self._coordinator = coordinator
        self._stop = stop

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        if self._stop.error is None:
            with self._stop.on_error():
                self._coordinator.begin(trial.trial_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


class StopSwitch(Stopper):  # type: ignore[misc]
    """Ends the experiment: at once when thrown, or run by run, each at its next evaluation, when drained.

    Attributes:
        error: what the coordinator raised, if it did; the driver raises it again once Tune has ended.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._draining = threading.Event()
        self._thrown = threading.Event()

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    @property
    def is_stopping(self) -> bool:
        """Whether no further run may start."""
        return self._draining.is_set() or self._thrown.is_set()

    def drain(self) -> None:
        self._draining.set()

    def throw(self, error: BaseException | None = None) -> None:
        if self.error is None:
            self.error = error
        self._thrown.set()

    @contextmanager
    def on_error(self) -> Iterator[None]:
        """Keep what is raised inside for the driver: Tune would log it, wrap it, or hold it against a run."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - none is lost: the driver raises it
            self.throw(error)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._thrown.is_set()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


def describe(error: BaseException) -> tuple[FailureKind, str]:
    """What Tune's error says of an attempt: its kind, and words for it."""
    if isinstance(error, RayActorError):
        if error.actor_init_failed:
            return FailureKind.ERROR, f"the worker could not start: {error}"
        if error.preempted or _NODE_DIED in str(error):
            return FailureKind.PREEMPTED, f"the worker's node went away: {error}"
        if isinstance(error, ActorUnavailableError):  # the network broke for less than Ray takes a node for dead
            return FailureKind.PREEMPTED, f"the worker was cut off: {error}"
        return FailureKind.LOST, f"the worker died: {error}"
    cause = _cause(error)
    if isinstance(cause, OutOfMemory):
        return FailureKind.OUT_OF_MEMORY, str(cause)
    return FailureKind.ERROR, f"{type(cause).__name__}: {cause}"


def _cause(error: BaseException) -> BaseException:
    """What the worker raised, where Ray wraps it."""
    cause: BaseException | None = error.cause if isinstance(error, RayTaskError) else None
    return error if cause is None else cause


def _end_worker(trial: Trial | None) -> None:
    """Kill the trial's worker, which may be in the middle of a long step; a trial without one ends when it reports."""
    worker = None if trial is None else trial.temporary_state.ray_actor
    if worker is not None:
        ray.kill(worker)


def _error_of(trial: Trial) -> BaseException:
    """What ended the trial. `Trial.get_pickled_error` would look in the storage, where Tune puts it only later."""
    with suppress(OSError, TypeError, AttributeError, ImportError, pickle.UnpicklingError):
        return cast(BaseException, cloudpickle.loads(Path(trial.pickled_error_file).read_bytes()))
    words = Path(trial.error_file).read_text() if trial.error_file is not None else "no reason was given"
    error: BaseException = TuneError(words)
    return error


def _nothing() -> None:
    """What the shells become in Tune's pickles."""
