"""A study's experiment in Ray Tune, and what Tune calls: a searcher, a scheduler, a callback and a stopper.

They forward to one coordinator. Tune pickles them into its experiment folder, so they are pickled without content: no
store, no address, no password. Workers are no classes of Tune's, so that their processes need not import it.
"""

from __future__ import annotations

import errno
import logging
import os
import pickle
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import ray
from ray import cloudpickle, tune
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError, RuntimeEnvSetupError
from ray.train.constants import RAY_CHDIR_TO_TRIAL_DIR
from ray.tune import Callback, Stopper, TuneError
from ray.tune import tune as tune_module
from ray.tune.execution import class_cache, tune_controller
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from admeta.imports import in_words
from search.assignment import CARD_KIND, Assignment, Report
from search.coordinator import Coordinator, Idle
from search.states import FailureKind
from search.stopping import StopSwitch
from search.trainable import WORKER_ENVIRONMENT, PreemptedError, TrialWorker
from tasks.engine.folders import private_folder
from tasks.errors import CannotStackError, NanFromAnotherRun, NanInSeveralRuns, OutOfMemory

TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # curves are in SQL; no csv, json and tensorboard files a trial
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a missing metric fails its run, not the whole experiment
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # Tune's own snapshots are never restored from
    "TUNE_MAX_PENDING_TRIALS_PG": "10000",  # the coordinator counts what fits; Tune's 1 would start workers in turn
    "TUNE_WARN_THRESHOLD_S": "10",
    # While no run is live nothing is wrong: the study says what it waits for. Tune's warning fails where none ever was.
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "inf",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S_AUTOSCALER": "inf",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # recorded with the attempt
    "TUNE_FORCE_TRIAL_CLEANUP_S": "10",
    "RAY_AIR_NEW_OUTPUT": "0",
}

CANCEL_POLL_S = 1.0
IDLE_POLL_S = 0.2
LINGER_S = 1.0
"""For which a worker without a run is kept, though other studies have use for its place."""
SCRATCH_PREFIX = "admeta-tune-"
"""Of the name of a driver's folder for Tune."""
_NODE_DIED = "its node has died"
"""In the message of Ray's ActorDiedError, which gives the reason nowhere else."""


def run_experiment(coordinator: Coordinator, stop: StopSwitch) -> None:
    """Run the coordinator's runs in workers until there are none, or the switch stops them."""
    os.environ.update(TUNE_ENVIRONMENT)
    _give_workers_no_environment()
    tune_module.TuneController = StudyLoop
    tune_controller._get_trainable_kwargs = _arguments_of
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)  # looks for files we don't write
    with private_folder(SCRATCH_PREFIX) as folder:  # Tune needs one; nothing in it is read back
        tune.Tuner(
            StudyWorker,
            tune_config=tune.TuneConfig(
                search_alg=StudySearcher(coordinator, stop),
                scheduler=StudyScheduler(coordinator, stop),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="study",
                storage_path=str(folder),
                stop=StudyStopper(stop),
                callbacks=[AttemptCallback(coordinator, stop)],
                failure_config=tune.FailureConfig(max_failures=0),  # retries are ours, counted in SQL
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()


def _give_workers_no_environment() -> None:
    """Let workers start in processes that wait: Ray starts a new process where a worker is given environment variables.

    Tune always gives two: one that a worker sets itself (`search.trainable`), one that only Tune's own workers read.
    Where credentials of AWS are set, Tune gives these too, and workers start in new processes.
    """
    class_cache.DEFAULT_ENV_VARS.clear()
    class_cache.ENV_VARS_TO_PROPAGATE -= {*WORKER_ENVIRONMENT, RAY_CHDIR_TO_TRIAL_DIR}


def _arguments_of(trial: Trial) -> dict[str, Any]:
    """What a trial's worker is created with: Tune's function of that name adds objects of its own classes."""
    trial.init_local_path()  # where Tune writes why the trial failed
    return {"config": trial.config}


class StudyWorker(tune.Trainable):  # type: ignore[misc]
    """What Tune knows of a worker: what it holds. Its process runs a `TrialWorker`."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """The resources of the assignment's worker."""
        assignment = Assignment.from_config(config)
        resources = {"CPU": assignment.cpus, "GPU": assignment.gpus}
        if assignment.slot is not None and assignment.slot.kind:
            resources[f"{CARD_KIND}{assignment.slot.kind}"] = 0.001  # Ray's own resource, of every node with such cards
        return tune.PlacementGroupFactory([resources])


class _WorkerClasses(class_cache._ActorClassCache):  # type: ignore[misc]
    """Tune's store of the actor classes of workers, in which there is one."""

    def get(self, trainable_cls: type) -> Any:
        return super().get(TrialWorker)


class _PickledEmpty:
    """Objects that are pickled as None."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


class StudySearcher(_PickledEmpty, Searcher):  # type: ignore[misc]
    """Gives Tune the coordinator's next run."""

    def __init__(self, coordinator: Coordinator, stop: StopSwitch) -> None:
        super().__init__(metric=None, mode=None)
        self._coordinator = coordinator
        self._stop = stop

    def suggest(self, trial_id: str) -> Any:
        """A run's config; None if none starts now; FINISHED if the study is over or stops."""
        assignment: Assignment | Idle = Idle.DONE
        if not self._stop.is_stopping:
            assignment = self._stop.guard(lambda: self._coordinator.next(trial_id), default=assignment)
        if assignment is Idle.DONE:
            return Searcher.FINISHED
        return None if isinstance(assignment, Idle) else assignment.to_config()

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:  # noqa: FBT001, FBT002 - Tune's signature
        """Nothing: the scheduler recorded the end, with what Tune does not pass here (pruned, why it failed)."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: all state is in SQL."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: all state is in SQL."""


class StudyScheduler(_PickledEmpty, FIFOScheduler):  # type: ignore[misc]
    """Passes results and errors to the coordinator, and stops the runs that are over.

    Workers never set Tune's `done`: Tune would then end the trial without calling the scheduler.
    """

    def __init__(self, coordinator: Coordinator, stop: StopSwitch) -> None:
        super().__init__()
        self._coordinator = coordinator
        self._stop = stop
        self._polled_at = 0.0

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        """None: new runs take free workers. Tune calls it in every turn of its loop, so cancelled runs end here.

        FIFO would choose the run that has waited longest, whose worker is starting: Tune would give it a free worker
        and kill the one that starts. While runs end sooner than workers start, no worker would ever start.
        """
        if time.monotonic() - self._polled_at >= CANCEL_POLL_S:
            self._polled_at = time.monotonic()
            self._stop.guard(lambda: self._poll(tune_controller), default=None)

    def _poll(self, tune_controller: Any) -> None:
        for ticket in self._coordinator.drop_cancelled():
            _end_worker(tune_controller.get_trial(ticket))
        self._coordinator.tell_why_waiting()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        over = self._stop.guard(lambda: self._report(trial.trial_id, result["report"]), default=True)
        decision: str = TrialScheduler.STOP if over else TrialScheduler.CONTINUE
        return decision

    def _report(self, ticket: str, report: Report) -> bool:
        if self._coordinator.report(ticket, report):
            return True
        if self._stop.is_draining:
            self._coordinator.interrupt(ticket, reason="the study was paused")
        return self._stop.is_draining

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._stop.guard(lambda: self._fail(trial.trial_id, _error_of(trial)), default=None)

    def _fail(self, ticket: str, error: BaseException) -> None:
        cause = _cause(error)
        if isinstance(cause, NanInSeveralRuns):
            self._coordinator.leave_cohort(ticket, reason=str(cause))
        elif isinstance(cause, PreemptedError | NanFromAnotherRun):
            self._coordinator.interrupt(ticket, reason=str(cause))
        elif isinstance(cause, CannotStackError):
            self._coordinator.give_up_cohort(ticket, reason=str(cause))
        else:
            kind, text = describe(error)
            self._coordinator.fail(ticket, kind=kind, error=text)

    def others_wait(self) -> bool:
        """Whether other studies may have use for a place."""
        return self._stop.guard(self._coordinator.others_wait, default=False)

    def end_s(self) -> float:
        """Seconds that workers have to end."""
        return self._stop.end_s()


class StudyLoop(TuneController):  # type: ignore[misc]
    """Tune's loop, where a worker without a run does not keep its place from other studies, and a paused one may save.

    Tune keeps one worker for the next run, whenever that comes. And while no run is live it waits for the next one for
    up to ten minutes, in which it gives the places of the last ones to nobody.
    """

    _idle_since: float | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._class_cache = _WorkerClasses()

    def _schedule_trial_reset(self, trial: Trial, new_config: dict[str, Any], new_experiment_tag: str) -> None:
        """Give a worker the next run. Tune's own method adds objects of its classes to the config."""
        trial.set_experiment_tag(new_experiment_tag)
        trial.set_config(new_config)
        self._resetting_trials.add(trial)
        self._schedule_trial_task(
            trial=trial,
            method_name="reset",
            args=(new_config,),
            on_result=self._on_trial_reset,
            on_error=self._trial_task_failure,
        )

    def _update_trial_queue(self, blocking: bool = False, timeout: int = 600) -> bool:  # noqa: FBT001, FBT002 - Tune's signature
        found: bool = super()._update_trial_queue(blocking=False, timeout=timeout)
        if blocking and not found:
            time.sleep(IDLE_POLL_S)
        return found

    def _maybe_add_actors(self) -> None:
        super()._maybe_add_actors()
        if not self._actor_cache.num_cached_objects:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since > LINGER_S and self._scheduler_alg.others_wait():
            self._cleanup_cached_actors(force_all=True)

    def _cleanup_stopping_actors(self, force_all: bool = False) -> None:  # noqa: FBT001, FBT002 - Tune's signature
        self._actor_force_cleanup_timeout = self._scheduler_alg.end_s()  # 10 s, for which Tune has no setting
        super()._cleanup_stopping_actors(force_all=force_all)


class AttemptCallback(_PickledEmpty, Callback):  # type: ignore[misc]
    """Tells the coordinator that a run's worker starts."""

    def __init__(self, coordinator: Coordinator, stop: StopSwitch) -> None:
        self._coordinator = coordinator
        self._stop = stop

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._stop.guard(lambda: self._coordinator.begin(trial.trial_id), default=None)


class StudyStopper(_PickledEmpty, Stopper):  # type: ignore[misc]
    """Tells Tune when its experiment ends at once."""

    def __init__(self, stop: StopSwitch) -> None:
        self._stop = stop

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._stop.is_thrown


def describe(error: BaseException) -> tuple[FailureKind, str]:
    """The kind and the text of an attempt's failure, from Tune's error."""
    if isinstance(error, RuntimeEnvSetupError):
        return FailureKind.LOST, f"Ray could not prepare the worker's environment: {error}"
    if isinstance(error, RayActorError) and not isinstance(error, RayTaskError):
        if error.actor_init_failed:
            return FailureKind.ERROR, f"the worker could not start: {error}"
        if error.preempted or _NODE_DIED in str(error):
            return FailureKind.PREEMPTED, f"the worker's node went away: {error}"
        if isinstance(error, ActorUnavailableError):  # the network broke for less than Ray takes a node for dead
            return FailureKind.PREEMPTED, f"the worker was cut off: {error}"
        return FailureKind.LOST, f"the worker died: {error}"
    cause = _cause(error)
    if isinstance(cause, RayActorError):
        return FailureKind.LOST, f"the process that trains the run's cohort died: {cause}"
    if isinstance(cause, OutOfMemory):
        return FailureKind.OUT_OF_MEMORY, str(cause)
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return FailureKind.LOST, f"the worker's disk is full: {cause}"
    return FailureKind.ERROR, in_words(cause)


def _cause(error: BaseException) -> BaseException:
    """What the worker raised, without Ray's wrapper."""
    cause: BaseException | None = error.cause if isinstance(error, RayTaskError) else None
    return error if cause is None else cause


def _end_worker(trial: Trial | None) -> None:
    """Kill the trial's worker, which may be in a long step. A trial that has no worker yet ends at its first report."""
    worker = None if trial is None else trial.temporary_state.ray_actor
    if worker is not None:
        ray.kill(worker)


def _error_of(trial: Trial) -> BaseException:
    """What ended the trial. `Trial.get_pickled_error` reads the storage, to which Tune copies the error only later."""
    with suppress(OSError, TypeError, AttributeError, ImportError, pickle.UnpicklingError):
        return cast(BaseException, cloudpickle.loads(Path(trial.pickled_error_file).read_bytes()))
    words = Path(trial.error_file).read_text() if trial.error_file is not None else "no reason was given"
    error: BaseException = TuneError(words)
    return error


def _nothing() -> None:
    """What these objects are unpickled as."""
