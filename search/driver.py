"""Runs one study to its end over Ray Tune, resuming from the state in SQL, in a detached Ray actor.

Owns the lease and its renewal, and the study's final state. A driver may die at any moment; the next one resumes from
SQL alone. Its actor outlives the service that started it. The database's address is passed to `run` alone, neither to
the actor's creation, which Ray keeps, nor to a file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

import optuna
import ray
from ray._private.state import actors  # of another service's driver: a call of its methods would wait for its run

from admeta.errors import ImportPathError
from admeta.imports import DEFAULT_IMPORTS, check_allowed
from search import placement
from search.assignment import NAMESPACE
from search.coordinator import Coordinator
from search.errors import LeaseLostError
from search.places import Workplace
from search.records import Capacity, CompetingStudy, Lease, StudyRecord, run_folder
from search.retention import Retention
from search.sections import NO_CARD
from search.states import RunState, Stage, StudyState
from search.stopping import StopSwitch
from search.store import Store
from tasks.config import TrialRef
from tasks.engine.folders import inside
from tasks.errors import ConfigError, TaskError

logger = logging.getLogger(__name__)
T = TypeVar("T")

LINGER_S = 20.0
"""Until a driver's actor ends itself, so that its result can still be sent and read on a busy machine. The service ends
it once it has read the result."""


@dataclass(frozen=True, kw_only=True)
class DriverOptions:
    """Where a driver works.

    Attributes:
        owner: a name that no other driver has.
        storage: folder or URI for checkpoints, as workers see it.
        data_dir: data folder, as workers see it.
        lease_ttl_s: after a driver's death, how long no other can take over.
        allow_imports: modules of which a definition may name objects by import path.
    """

    owner: str
    storage: str
    data_dir: str | None = None
    lease_ttl_s: float = 15.0
    allow_imports: tuple[str, ...] = DEFAULT_IMPORTS


def drive(study_id: str, *, store: Store, options: DriverOptions) -> StudyState | None:
    """Run the study until it is terminal or paused.

    A study that no run could train is FAILED. If it has runs already, and its data folder is missing now, say, it is
    PAUSED, so that none of them is lost.

    Returns:
        The study's state then; None if another driver holds the study.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    lease = store.acquire_lease(study_id, owner=options.owner, ttl_s=options.lease_ttl_s)
    if lease is None:
        return None
    study = store.get_study(study_id)
    stop = StopSwitch()
    with _Renewal(store, lease, stop) as renewal:

        def tell(phase: str) -> None:
            store.set_study_state(lease, StudyState.RUNNING, reason=phase)

        try:
            tell("reads the study, its runs and its origin")
            study = store.get_study(study_id)
            try:
                _check_imports(study, options.allow_imports)
                origins = _origin_folders(study, store, storage=options.storage)
                fingerprint = placement.check(
                    study.definition,
                    data_dir=options.data_dir,
                    origins=origins,
                    is_stopping=lambda: stop.is_stopping,
                    tell=tell,
                    meanwhile=_import_tune,
                )
            except TaskError as error:
                state = _pause_or_raise(store, lease, error)
            else:
                study = _with_fingerprint(study, store, lease, fingerprint)
                coordinator = Coordinator(
                    store=store,
                    lease=lease,
                    study=study,
                    workplace=_workplace(study, store, lease, options, origins),
                    elapsed_s=_clock_since(study.started_at, without_s=study.ended_s),
                )
                with Retention(store, study.id, storage=options.storage) as retention:
                    if renewal.state is StudyState.RUNNING:
                        _import_tune().run_experiment(coordinator, stop)
                    state = _conclude(store, lease, coordinator, retention, stop, renewal.state)
        except TaskError as error:
            state = store.set_study_state(lease, StudyState.FAILED, reason=str(error))
        except LeaseLostError:
            logger.warning("study %s: another driver has taken over; this one stops", study_id)
            return None
    store.release_lease(lease)
    return state


def _import_tune() -> ModuleType:
    """What runs the study, and brings Ray Tune, a second's work: neither the service nor a worker has use for it."""
    return import_module("search.tuning")


def _check_imports(study: StudyRecord, allowed: Sequence[str]) -> None:
    """Checked as the study was submitted, but perhaps to a service that allowed more; raises ConfigError."""
    for field, path in study.definition.imports().items():
        try:
            check_allowed(path, allowed)
        except ImportPathError as error:
            raise ConfigError(f"{field}: {error}") from None


def _with_fingerprint(study: StudyRecord, store: Store, lease: Lease, fingerprint: str | None) -> StudyRecord:
    """The study with the fingerprint of its data. The first one that was found stays, so that its recipe does."""
    known = study.data_fingerprint
    if fingerprint is None or known == fingerprint:
        return study
    if known is not None:
        logger.warning("study %s: its data or code have changed since its first run; clone it for these", study.id)
        return study
    store.set_data_fingerprint(lease, fingerprint)
    return replace(study, data_fingerprint=fingerprint)


def _pause_or_raise(store: Store, lease: Lease, error: TaskError) -> StudyState:
    """Pause a study that cannot continue now; raise the error if it has no runs yet."""
    if not (runs := store.runs(lease.study_id)):
        raise error
    for run in runs:
        if run.state is RunState.RUNNING:  # its driver died
            store.interrupt_attempt(lease, run.id, reason=str(error))
    return store.set_study_state(lease, StudyState.PAUSED, reason=f"{error}; correct that, then resume the study")


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
    return wanted  # PAUSED; or RUNNING, if it was resumed while its runs were stopping: the next driver runs it


def _workplace(
    study: StudyRecord,
    store: Store,
    lease: Lease,
    options: DriverOptions,
    origins: tuple[str, ...],
) -> Workplace:
    definition = study.definition
    shape = placement.task_shape(definition)
    placed = placement.place(definition, known=store.card_facts(shape))
    packing = placed.packing
    logger.info("study %s: %s", study.id, placed.reason if packing is None else packing.words)
    if definition.budget.only_gpu_hours and not placed.each.gpus:
        raise ConfigError(f"budget.gpu_hours_per_optimizer {NO_CARD} ({placed.reason}). Clone the study with that")

    told: Capacity | None = None

    def each_now() -> Capacity:
        return placed.each if packing is None else replace(placed.each, gpus=packing.share)

    def look() -> tuple[Capacity, list[CompetingStudy]]:
        nonlocal told
        if packing is not None:
            packing.update(placement.card_kinds(definition))
        if told != (each := each_now()):
            store.set_run_size(lease, each)
            told = each
        return placement.cluster_capacity(), store.competing_studies(study.id)

    around = _cached(look, for_s=2.0)

    def slots() -> int:
        cluster, competitors = around()
        return placement.slots_for(each_now(), priority=definition.priority, cluster=cluster, competitors=competitors)

    return Workplace(
        storage=options.storage,
        data_dir=options.data_dir,
        each=placed.each,
        placement=placed.reason,
        cohort=placed.cohort,
        without_cohort=None
        if placed.cohort == 1
        else lambda: _workplace(_without_cohort(study), store, lease, options, origins),
        packing=packing,
        task_shape=shape,
        slots=slots,
        is_crowded=lambda: any(other.gpus and other.n_runs for other in around()[1]),
        is_shared=lambda: any(other.n_runs for other in around()[1]),
        why_none_fits=_cached(lambda: placement.why_none_fits(placed.each), for_s=2.0),
        init_from=origins,
    )


def _without_cohort(study: StudyRecord) -> StudyRecord:
    resources = study.definition.resources.model_copy(update={"cohort": 1})
    return replace(study, definition=study.definition.model_copy(update={"resources": resources}))


def _origin_folders(study: StudyRecord, store: Store, *, storage: str) -> tuple[str, ...]:
    """Checkpoint folders of the trial that the study starts from, if any; confirm runs, which always have one, first.

    Raises:
        ConfigError: there is no such trial.
    """
    origin = study.definition.task.init_from
    if not isinstance(origin, TrialRef):
        return ()
    found = store.find_runs(origin.study, label=origin.optimizer, trial_number=origin.trial)
    if found is None:
        raise ConfigError(
            f"init_from: there is no trial {origin.trial} of optimizer '{origin.optimizer}' in study '{origin.study}', "
            "or the study was deleted; GET /v1/studies/{id}/trials lists a study's trials"
        )
    study_id, runs = found
    ordered = sorted(runs, key=lambda run: (run.stage is not Stage.CONFIRM, run.seed))
    return tuple(inside(storage, run_folder(study_id, origin.optimizer, run)) for run in ordered)


def _clock_since(began: datetime | None, *, without_s: float) -> Callable[[], float]:
    """A clock of the seconds since then, less some, which later steps of the machine's clock do not change."""
    before_s = 0.0 if began is None else max(0.0, (datetime.now(UTC) - began).total_seconds() - without_s)
    origin = time.monotonic()
    return lambda: before_s + time.monotonic() - origin


def _cached(call: Callable[[], T], *, for_s: float) -> Callable[[], T]:
    """The call with its result kept for a while: the searcher calls ten times a second."""
    known: tuple[float, T] | None = None

    def answer() -> T:
        nonlocal known
        if known is None or time.monotonic() - known[0] > for_s:
            known = (time.monotonic(), call())
        return known[1]

    return answer


class _Renewal:
    """Renews the lease in a thread, and stops the runs when the study is paused or ended.

    Attributes:
        state: the study's state at the last renewal.
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
            self.state = self._stop.guard(lambda: self._store.renew_lease(self._lease), default=self.state)
            if self.state is StudyState.PAUSED:
                self._stop.drain()
            elif self.state is not StudyState.RUNNING:
                self._stop.throw()
            if self._stop.error is not None:
                return


class DriverActor:
    """Holds one driver. Its name is unique to the study, so that Ray itself refuses a second one."""

    def run(
        self,
        study_id: str,
        *,
        open_store: Callable[[str], Store],
        database_url: str,
        options: DriverOptions,
        set_up_log: Callable[[str], None],
    ) -> StudyState | None:
        """Run the study; see `drive`."""
        set_up_log(study_id)
        try:
            return drive(study_id, store=open_store(database_url), options=options)
        finally:
            timer = threading.Timer(LINGER_S, ray.kill, (ray.get_runtime_context().current_actor,))
            timer.daemon = True
            timer.start()


def find_driver(study_id: str) -> Any | None:
    """The study's driver actor; None if it has none."""
    try:
        return ray.get_actor(f"driver-{study_id}", namespace=NAMESPACE)
    except ValueError:
        return None


def has_started(driver: Any) -> bool:
    """Whether the process of a driver that was found has started."""
    return bool(actors(driver._actor_id.hex()).get("State") == "ALIVE")


def launch_driver(study_id: str, *, runtime_env: Mapping[str, Any] | None = None) -> Any:
    """Start a driver actor for the study, which then waits for its `run` to be called.

    Args:
        runtime_env: what Ray prepares for the driver and its workers, besides what the connection has; None: nothing.

    Raises:
        ValueError: the study has one already.
    """
    return (
        ray.remote(DriverActor)
        .options(
            name=f"driver-{study_id}",
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            resources={"node:__internal_head__": 0.001},  # not on a worker: it may leave, and sees no database
            runtime_env=None if runtime_env is None else dict(runtime_env),
            max_restarts=0,  # the supervisor starts a new one when the lease has expired
        )
        .remote()
    )
