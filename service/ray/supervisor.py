"""Starts a driver for every study that should run, replaces drivers that fail, and closes what ended studies left open.

Several services may work on one database: a study's lease lets only one driver run it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from sqlalchemy.exc import SQLAlchemyError

from admeta.client.models import NodeView
from search.driver import DriverOptions, find_driver, launch_driver
from search.records import Lease
from search.retention import clear_up
from search.states import StudyState
from service.database.engine import check_integrity, make_driver_engine, make_engine
from service.database.errors import DatabaseFileError, DatabaseUnavailableError
from service.database.lease import close_unfinished, unclosed_studies
from service.database.retry import REQUEST, in_short, is_transient, lacks_descriptors
from service.database.store import SqlStore
from service.database.studies import runnable_studies, set_waiting_reason, study_progress
from service.logs import about, configure_driver
from service.ray import cluster
from service.ray.cluster import Nodes
from service.ray.node import ClockWatch, JoinError
from service.settings import Settings, SettingsError

logger = logging.getLogger(__name__)

TICK_S = 0.5
RAY_CHECK_S = 5.0
LONGEST_PAUSE_S = 30.0
"""Between attempts to start or join Ray, after several that failed."""
FILE_CHECK_S = 5.0
MAX_CRASHES = 5
"""Drivers of one study that may fail one after another, without progress, before the study is FAILED."""
OUTAGE_RETRY_S = 5.0
"""Until the next driver, after one that failed because of an outage."""
SILENCE_S = 120.0
"""How long a driver may run without a lease, as it starts or in an outage of the database. Then it is killed."""

RAY_STARTS = "waits for Ray, which starts"
DRIVER_STARTS = "its driver starts"
DRIVER_PREPARES = "its driver starts; Ray prepares the runtime environment first, which may take minutes"


@dataclass(frozen=True)
class Driver:
    """A driver that this service started: its actor, its future result, and its lease."""

    actor: Any
    answer: Any
    lease: Lease


@dataclass(frozen=True)
class Crashes:
    """How often a study's drivers failed since the study last made progress, and when the next may start."""

    n: int
    progress: int
    retry_at: float


class Supervisor:
    """One thread that polls the database twice a second. `service.app` starts and stops it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine = make_engine(settings.database_url, pool_size=2)
        self._store = SqlStore(self._engine, policy=REQUEST)
        self._drivers: dict[str, Driver] = {}
        self._crashes: dict[str, Crashes] = {}
        self._silent_since: dict[str, float] = {}
        self._told_waiting: dict[str, str] = {}
        self._nodes = Nodes(prepares=settings.runtime_env is not None)
        self._clock = ClockWatch()
        self._ray_status = "starting"
        self._ray_checked_at = 0.0
        self._needs_new_process = False
        self._fault: DatabaseFileError | None = None
        self._check_file_at = 0.0
        self._ended = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start the thread, which starts Ray in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. With an embedded Ray the drivers and workers end too; their studies can be resumed."""
        self._ended.set()
        self._woken.set()
        self._thread.join()
        self._engine.dispose()

    def notice(self, study_id: str) -> None:
        """Look at a study at once that was just submitted; while Ray is not there, tell that it waits for it."""
        if not ray.is_initialized():
            with suppress(DatabaseUnavailableError):
                set_waiting_reason(self._engine, study_id, self._why_no_ray())
        self._woken.set()

    def ray_status(self) -> str:
        """`ok`, `starting`, or what is wrong."""
        return self._ray_status

    def needs_new_process(self) -> bool:
        """Whether Ray was lost in a way from which only a new process recovers."""
        return self._needs_new_process

    def fault(self) -> DatabaseFileError | None:
        """Why the service must stop; None if it need not."""
        return self._fault

    def nodes(self) -> list[NodeView]:
        """The machines of the Ray that studies run on."""
        return cluster.read_nodes()

    def _run(self) -> None:
        n_faults = 0  # of Ray's start, one after another
        while not self._ended.is_set():
            try:
                self._check_file()
                if self._has_ray():
                    self._tick()
                n_faults = 0
            except DatabaseFileError as error:
                logger.error("%s The service stops.", error.detail)
                self._fault = error
                self._ended.set()
            except Exception as error:  # the loop continues after every error, which it logs
                known = isinstance(error, JoinError)
                what = str(error) if known else type(error).__name__
                if not ray.is_initialized() or isinstance(error, RayError):
                    self._ray_status = f"unavailable: {what}"
                    self._tell_all(self._why_no_ray())
                logger.error("supervisor: %s; trying again", what, exc_info=not known)
                n_faults = 0 if ray.is_initialized() else n_faults + 1
                self._ended.wait(
                    min(LONGEST_PAUSE_S, 2.0 ** max(1, n_faults))
                )  # a failed start leaves processes behind
            self._woken.wait(TICK_S)
            self._woken.clear()
        if ray.is_initialized() and not self._needs_new_process:  # Ray's core ends a process that leaves a dead node
            cluster.leave(self._settings)

    def _check_file(self) -> None:
        """Check an SQLite file now and then, at a cost of at most 1 % of the time.

        Raises:
            DatabaseFileError: it was deleted, replaced or damaged.
        """
        begin = time.monotonic()
        if begin >= self._check_file_at:
            check_integrity(self._engine)
            end = time.monotonic()
            self._check_file_at = end + max(FILE_CHECK_S, 100 * (end - begin))

    def _has_ray(self) -> bool:
        """Whether Ray works. One that was lost is left, and started or joined again at the next call."""
        if not ray.is_initialized():
            self._tell_all(self._why_no_ray())
            cluster.join(self._settings)
            self._clock.reset()
        elif time.monotonic() - self._ray_checked_at > RAY_CHECK_S:
            self._ray_checked_at = time.monotonic()
            if step_s := self._clock.set_back_s():
                self._abandon_ray(f"this machine's clock was set back by {step_s:.0f} s, and Ray's timers stopped")
                return False
            fault = cluster.control_is_lost()
            if fault is not None:
                logger.error("%s; connecting again; studies continue from the database", fault)
                self._ray_status = f"unavailable: {fault}"
                cluster.leave(self._settings)
                self._drivers.clear()
                return False
            if cluster.node_is_lost(self._settings):
                self._abandon_ray("the embedded Ray's node has died")
                return False
        return True

    def _abandon_ray(self, fault: str) -> None:
        """Stop, and let a new process start or join Ray: this one cannot disconnect from it."""
        logger.error("%s; the service restarts, and studies continue from the database", fault)
        self._ray_status = f"unavailable: {fault}"
        self._needs_new_process = True
        self._ended.set()
        cluster.end_own_node()
        if self._settings.ray_address is None:
            with suppress(DatabaseUnavailableError):  # then their leases run out
                for driver in self._drivers.values():  # they end with the embedded Ray
                    self._store.release_lease(driver.lease)

    def _tick(self) -> None:
        for study_id in list(self._drivers):
            with about(study=study_id):
                self._look_after(study_id)
        for study_id in unclosed_studies(self._engine):
            if study_id not in self._drivers:
                state = self._store.get_study(study_id).state
                if close_unfinished(self._store, study_id, error=f"the study is {state}"):
                    self._clear_up(study_id)
        runnable = runnable_studies(self._engine)
        problems = self._nodes.problems() if runnable and self._settings.ray_address is not None else []
        self._ray_status = "studies wait: " + "; ".join(problems) if problems else "ok"
        self._told_waiting = {study: told for study, told in self._told_waiting.items() if study in runnable}
        self._silent_since = {study: since for study, since in self._silent_since.items() if study in runnable}
        for study_id in runnable:
            with about(study=study_id):
                if study_id in self._drivers:
                    self._check_silent(study_id, self._drivers[study_id].actor)
                elif reason := "; ".join(problems) or self._why_waiting(study_id):
                    self._tell_waiting(study_id, reason)
                else:
                    self._launch(study_id)

    def _clear_up(self, study_id: str) -> None:
        """Remove checkpoints that are not needed, in a thread because a storage may be slow."""
        task = partial(clear_up, self._store, study_id, storage=self._settings.storage)
        threading.Thread(target=task, name=f"retention-{study_id}", daemon=True).start()

    def _why_waiting(self, study_id: str) -> str | None:
        """Why this study gets no driver now; None if it gets one."""
        max_running = self._settings.quotas.max_running
        if len(self._drivers) >= max_running:
            return f"waits for another study to end: the service runs {max_running} at a time (--max-running)"
        crashes = self._crashes.get(study_id)
        if crashes is not None and time.monotonic() < crashes.retry_at:
            return "waits a few seconds after its driver failed; the service's log says why"
        return None

    def _why_no_ray(self) -> str:
        return RAY_STARTS if self._ray_status == "starting" else f"waits for Ray, which is {self._ray_status}"

    def _tell_all(self, reason: str) -> None:
        with suppress(DatabaseUnavailableError, SQLAlchemyError):  # without a database no study runs anyway
            for study_id in runnable_studies(self._engine):
                self._tell_waiting(study_id, reason)

    def _tell_waiting(self, study_id: str, reason: str) -> None:
        if self._told_waiting.get(study_id) != reason:
            set_waiting_reason(self._engine, study_id, reason)
            self._told_waiting[study_id] = reason

    def _look_after(self, study_id: str) -> None:
        """Remove a driver that has ended, and note why. The next tick starts another if the study needs one."""
        driver = self._drivers[study_id]
        ready, _ = ray.wait([driver.answer], timeout=0)
        if not ready:
            return
        del self._drivers[study_id]  # first: where the database cannot be used, its end is counted once all the same
        try:
            state = ray.get(driver.answer)
        except RayError as error:
            with suppress(RayError):
                ray.kill(driver.actor)
            self._note_failure(study_id, driver, error)
        else:
            logger.info("study %s: driver ended, study is %s", study_id, state)
            self._crashes.pop(study_id, None)
            if not self._drivers:
                cluster.refill_spare(self._settings)

    def _note_failure(self, study_id: str, driver: Driver, error: RayError) -> None:
        """Count a driver's failure. The next driver continues, unless too many have failed without progress."""
        cause = getattr(error, "cause", None) or error
        logger.warning("study %s: its driver failed: %s", study_id, error)
        before = self._crashes.get(study_id)
        if isinstance(cause, DatabaseUnavailableError) or is_transient(cause) or lacks_descriptors(cause):
            n, progress = (0, -1) if before is None else (before.n, before.progress)
            self._crashes[study_id] = Crashes(n, progress, time.monotonic() + OUTAGE_RETRY_S)
            return
        progress = study_progress(self._engine, study_id)
        n = before.n + 1 if before is not None and before.progress == progress else 1
        self._crashes[study_id] = Crashes(n, progress, time.monotonic() + (0.0 if n == 1 else 2.0 ** (n - 2)))
        if n >= MAX_CRASHES:
            text = f"{type(cause).__name__}: {in_short(cause)}"[:500]
            self._give_up(
                study_id,
                driver.lease,
                reason=f"its driver failed {n} times without progress, the last time with {text}; "
                "the service's log has the trace",
            )
        elif not isinstance(error, ActorUnavailableError):
            self._store.release_lease(driver.lease)  # its process has ended: the next need not wait for its end

    def _give_up(self, study_id: str, lease: Lease, *, reason: str) -> None:
        own = self._store.acquire_lease(study_id, owner=lease.owner, ttl_s=lease.ttl_s)
        if own is not None:
            self._store.set_study_state(own, StudyState.FAILED, reason=reason)
            self._store.release_lease(own)
        self._crashes.pop(study_id, None)

    def _launch(self, study_id: str) -> None:
        old = find_driver(study_id)
        if old is not None:  # another service's; or it waits for the database, or it hangs
            self._check_silent(study_id, old)
            return
        settings = self._settings
        try:
            code = self._code_of(study_id)
        except SettingsError as error:
            self._tell_waiting(study_id, str(error))
            return
        options = DriverOptions(
            owner=_new_owner(),
            storage=settings.storage,
            data_dir=str(settings.data),
            allow_imports=settings.quotas.allow_imports,
        )
        prepares = settings.runtime_env is not None or code is not None
        self._tell_waiting(study_id, DRIVER_PREPARES if prepares else DRIVER_STARTS)
        driver = launch_driver(study_id, runtime_env=code)
        answer = driver.run.remote(
            study_id,
            open_store=open_store,
            database_url=settings.database_url,
            options=options,
            set_up_log=partial(configure_driver, home=settings.home, format=settings.log_format),
        )
        lease = Lease(study_id=study_id, owner=options.owner, ttl_s=options.lease_ttl_s)
        self._drivers[study_id] = Driver(driver, answer, lease)
        logger.info("study %s: driver started", study_id)

    def _code_of(self, study_id: str) -> dict[str, Any] | None:
        """The runtime environment with the operator's own modules, for a study that names objects of modules."""
        if self._settings.code is None or not self._store.get_study(study_id).definition.imports():
            return None
        return cluster.send_code(self._settings)

    def _check_silent(self, study_id: str, driver: Any) -> None:
        """Kill a driver that has run without a lease for SILENCE_S; called at every tick."""
        since = self._silent_since.setdefault(study_id, time.monotonic())
        if time.monotonic() - since > SILENCE_S:
            logger.warning("study %s: its driver runs without a lease; killing it", study_id)
            with suppress(RayError):
                ray.kill(driver)


def open_store(database_url: str) -> SqlStore:
    """The store as a driver opens it, in its own process."""
    return SqlStore(make_driver_engine(database_url))


def _new_owner() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
