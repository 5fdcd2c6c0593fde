"""Runs one study to its end over Ray Tune, from wherever SQL says it stands.

Owns the driver's life: the lease and its renewal, the Tune experiment, the study's final state. Ray must be
initialised. The driver may die at any moment; the next one goes on from SQL alone.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import optuna
from ray import tune

from search import placement
from search.assignment import Assignment
from search.coordinator import Coordinator, Workplace, run_folder
from search.errors import LeaseLostError
from search.records import Lease, StudyRecord
from search.retention import Retention
from search.states import RunState, Stage, StudyState
from search.store import Store
from search.trainable import TrialWorker
from search.tuning import AttemptCallback, StopSwitch, StudyScheduler, StudySearcher
from tasks.config import TrialRef
from tasks.engine.folders import inside
from tasks.errors import ConfigError, TaskError

logger = logging.getLogger(__name__)
T = TypeVar("T")

TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # curves are in SQL; no csv, json and tensorboard files a trial
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a missing metric fails its run, not the whole experiment
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # Tune's own snapshots are never restored from
    "TUNE_MAX_PENDING_TRIALS_PG": "10000",  # the coordinator counts what fits; Tune's 1 would start workers in turn
    "TUNE_WARN_THRESHOLD_S": "10",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # recorded with the attempt
    "TUNE_FORCE_TRIAL_CLEANUP_S": "10",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}


SCRATCH_PREFIX = "admeta-tune-"
"""Of a driver's folder for Tune; its process id follows."""


@dataclass(frozen=True, kw_only=True)
class DriverOptions:
    """Where a driver works.

    Attributes:
        owner: unique to this driver's life.
        storage: folder or URI for checkpoints, as workers see it.
        data_dir: data folder, as workers see it.
        lease_ttl_s: how long a dead driver keeps others from taking over.
    """

    owner: str
    storage: str
    data_dir: str | None = None
    lease_ttl_s: float = 15.0


def drive(study_id: str, *, store: Store, options: DriverOptions) -> StudyState | None:
    """Drive the study until it is terminal or paused; its state then, or None where another driver holds it.

    What no run could train is FAILED before its first run; where there are runs, a data folder is away, say, and the
    study is PAUSED, so that none of them is lost.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    lease = store.acquire_lease(study_id, owner=options.owner, ttl_s=options.lease_ttl_s)
    if lease is None:
        return None
    study = store.get_study(study_id)
    stop = StopSwitch()
    with _Renewal(store, lease, stop) as renewal:
        try:
            store.set_study_state(lease, StudyState.RUNNING)
            study = store.get_study(study_id)
            try:
                origins = _origins(study, store, storage=options.storage)
                placement.check(
                    study.definition,
                    data_dir=options.data_dir,
                    origins=origins,
                    is_stopping=lambda: stop.is_stopping,
                )
            except TaskError as error:
                state = _put_off(store, lease, error)
            else:
                coordinator = Coordinator(
                    store=store,
                    lease=lease,
                    study=study,
                    workplace=_workplace(study, store, options, stop, origins),
                    elapsed_s=_clock_since(study.started_at),
                )
                with Retention(store, study.id, storage=options.storage) as retention:
                    if renewal.state is StudyState.RUNNING:
                        _run_experiment(study, coordinator, stop)
                    state = _conclude(store, lease, coordinator, retention, stop, renewal.state)
        except TaskError as error:
            state = store.set_study_state(lease, StudyState.FAILED, reason=str(error))
        except LeaseLostError:
            logger.warning("study %s: another driver has taken over; this one stops", study_id)
            return None
    store.release_lease(lease)
    return state


def _put_off(store: Store, lease: Lease, error: TaskError) -> StudyState:
    """Pause a study that cannot go on as things are; raises the error where it has no run to lose."""
    if not (runs := store.runs(lease.study_id)):
        raise error
    for run in runs:
        if run.state is RunState.RUNNING:  # its driver died, and nobody trains it until the study is resumed
            store.interrupt_attempt(lease, run.id, reason=str(error))
    return store.set_study_state(lease, StudyState.PAUSED, reason=f"{error}; mend that, then resume the study")


def _conclude(
    store: Store, lease: Lease, coordinator: Coordinator, retention: Retention, stop: StopSwitch, wanted: StudyState
) -> StudyState:
    if stop.error is not None:
        raise stop.error
    if wanted is StudyState.CANCELLED:
        coordinator.cancel()
        retention.conclude()
    elif wanted is StudyState.RUNNING and not stop.is_stopping:
        retention.conclude()
        return store.set_study_state(lease, StudyState.COMPLETED, reason=coordinator.completion_reason())
    return wanted  # PAUSED; or RUNNING again, where it was resumed while its runs came to a halt: the next driver's


def _run_experiment(study: StudyRecord, coordinator: Coordinator, stop: StopSwitch) -> None:
    os.environ.update(TUNE_ENVIRONMENT)
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)  # looks for files we don't write
    worker = tune.with_resources(TrialWorker, _held)
    worker.__qualname__ = TrialWorker.__qualname__  # Ray calls processes by it: ray::TrialWorker.train
    with scratch_folder() as folder:
        tune.Tuner(
            worker,
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
                stop=stop,
                callbacks=[AttemptCallback(coordinator, stop)],
                failure_config=tune.FailureConfig(max_failures=0),  # retries are ours, counted in SQL
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for Tune, which insists on one; nothing in it is ever read back. Those of killed drivers are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*"):
        pid = left.name.removeprefix(SCRATCH_PREFIX).partition("-")[0]
        if pid.isdecimal() and not _lives(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _held(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """What the assignment's worker holds, as Tune asks for it."""
    assignment = Assignment.from_config(config)
    return tune.PlacementGroupFactory([{"CPU": assignment.cpus, "GPU": assignment.gpus}])


def _workplace(
    study: StudyRecord,
    store: Store,
    options: DriverOptions,
    stop: StopSwitch,
    origins: tuple[str, ...],
) -> Workplace:
    definition = study.definition
    placed = placement.place(definition, data_dir=options.data_dir, is_stopping=lambda: stop.is_stopping)
    logger.info("study %s: %s", study.id, placed.reason)

    def slots() -> int:
        cluster, competitors = placement.cluster_capacity(), store.competing_studies(study.id)
        return placement.slots_for(placed.each, priority=definition.priority, cluster=cluster, competitors=competitors)

    return Workplace(
        storage=options.storage,
        data_dir=options.data_dir,
        each=placed.each,
        placement=placed.reason,
        slots=_remembered(slots, for_s=2.0),
        why_none_fits=_remembered(lambda: placement.why_none_fits(placed.each), for_s=2.0),
        init_from=origins,
    )


def _origins(study: StudyRecord, store: Store, *, storage: str) -> tuple[str, ...]:
    """Checkpoint folders of the trial a study starts from, if it does: its confirm runs first, which always leave one.

    Raises:
        ConfigError: there is no such trial.
    """
    origin = study.definition.task.init_from
    if not isinstance(origin, TrialRef):
        return ()
    found = store.find_runs(origin.study, label=origin.optimizer, trial_number=origin.trial)
    if found is None:
        raise ConfigError(
            f"init_from: there is no trial {origin.trial} of optimizer '{origin.optimizer}' in study '{origin.study}'; "
            "GET /v1/studies/{id}/trials lists a study's trials"
        )
    study_id, runs = found
    ordered = sorted(runs, key=lambda run: (run.stage is not Stage.CONFIRM, run.seed))
    return tuple(inside(storage, run_folder(study_id, origin.optimizer, run)) for run in ordered)


def _clock_since(began: datetime | None) -> Callable[[], float]:
    """Seconds since then; a step of the machine's clock from now on does not change them."""
    before_s = 0.0 if began is None else max(0.0, (datetime.now(UTC) - began).total_seconds())
    origin = time.monotonic()
    return lambda: before_s + time.monotonic() - origin


def _remembered(call: Callable[[], T], *, for_s: float) -> Callable[[], T]:
    """The call's answer, asked for anew only after a while: the searcher asks ten times a second."""
    known: tuple[float, T] | None = None

    def answer() -> T:
        nonlocal known
        if known is None or time.monotonic() - known[0] > for_s:
            known = (time.monotonic(), call())
        return known[1]

    return answer


class _Renewal:
    """Renews the lease in its own thread, and stops the runs when the study is no longer to be run.

    Attributes:
        state: the study's, as of the last renewal.
    """

    def __init__(self, store: Store, lease: Lease, stop: StopSwitch) -> None:
        self.state = StudyState.RUNNING
        self._store = store
        self._lease = lease
        self._stop = stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease-{lease.study_id}", daemon=True)

    def __enter__(self) -> _Renewal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _renew(self) -> None:
        # Often enough that a cancelled study stops at once, and three renewals may fail before the lease expires.
        while not self._ended.wait(min(1.0, self._lease.ttl_s / 4)):
            with self._stop.on_error():
                self.state = self._store.renew_lease(self._lease)
            if self.state is StudyState.PAUSED:
                self._stop.drain()
            elif self.state is not StudyState.RUNNING:
                self._stop.throw()
            if self._stop.error is not None:
                return
