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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError, RuntimeEnvSetupError
from sqlalchemy.exc import SQLAlchemyError

from admeta.client.models import NodeView
from search.definition import StudyDefinition
from search.driver import DriverOptions, find_driver, has_started, launch_driver
from search.errors import SearchError
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
from service.ray.node import ClockWatch, JoinError
from service.ray.node_checks import CHECK_AGAIN_S, PREPARE_TIMEOUT_S, Nodes
from service.settings import Settings, SettingsError

logger = logging.getLogger(__name__)

TICK_S = 0.5
RAY_CHECK_S = 5.0
LONGEST_PAUSE_S = 30.0
"""Between attempts to start or join Ray, after several that failed."""
FILE_CHECK_S = 5.0
MAX_CRASHES = 5
"""Drivers of one study that may fail one after another, without progress, before the study is FAILED."""
REFILL_EVERY_S = 20.0
"""While studies run on a machine with cards: how often the processes are made that the next one will miss."""
FIRST_REFILL_S = 60.0
"""After the first study's driver started: its own processes come first."""
OUTAGE_RETRY_S = 5.0
"""Until the next driver, after one that failed because of an outage."""
SILENCE_S = 120.0
"""How long a driver may run without a lease, as in an outage of the database. Then it is killed, and the next one of
the study may take twice as long: this machine may be slow."""
START_S = PREPARE_TIMEOUT_S
"""How long its process may take to start, on a slow disk, a busy machine, or while Ray prepares its environment. It
doubles likewise."""
MOST_DOUBLINGS = 5

RAY_STARTS = "waits for Ray, which starts"
DRIVER_STARTS = "its driver starts"
DRIVER_PREPARES = "its driver starts; Ray prepares the runtime environment first, which may take minutes"


@dataclass(frozen=True)
class Driver:
    """A driver that this service started.

    Attributes:
        actor: its Ray actor.
        ready: a reference that is ready when its process has started.
        answer: a reference to its result; where the connection to it broke, one that is ready when it ends.
        lease: its lease.
        was_cut_off: whether the connection to it broke.
    """

    actor: Any
    ready: Any
    answer: Any
    lease: Lease
    was_cut_off: bool = False


@dataclass(frozen=True)
class Silence:
    """Since when one driver of a study starts, or has run without a lease. The next one's time begins anew.

    Attributes:
        n_killed: drivers of the study that were killed before for their silence, since one last had the lease.
        is_killed: whether this one was.
    """

    driver: Any
    has_started: bool
    since: float
    n_killed: int = 0
    is_killed: bool = False


@dataclass(frozen=True)
class Crashes:
    """How often a study's drivers failed since the study last made progress, and when the next may start.

    Attributes:
        waits: what the study's reason says until then.
    """

    n: int
    progress: int
    retry_at: float
    waits: str = "waits a few seconds after its driver failed; the service's log says why"


class Supervisor:
    """One thread that polls the database twice a second. `service.app` starts and stops it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine = make_engine(settings.database_url, pool_size=2)
        self._store = SqlStore(self._engine, policy=REQUEST)
        self._drivers: dict[str, Driver] = {}
        self._crashes: dict[str, Crashes] = {}
        self._silences: dict[str, Silence] = {}
        self._told_waiting: dict[str, str] = {}
        self._refill_at = float("inf")
        self._spare: list[Any] = []
        self._libraries: tuple[str, ...] = ()
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
        if ray.is_initialized():
            if not self._needs_new_process:  # Ray's core ends a process that leaves a dead node
                cluster.leave(self._settings)
            elif self._settings.ray_address is None:
                cluster.end_embedded()

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
        if self._drivers and time.monotonic() >= self._refill_at and cluster.has_cards():
            self._refill()
        for study_id in unclosed_studies(self._engine):
            if study_id not in self._drivers and close_unfinished(self._store, study_id):
                self._clear_up(study_id)
        runnable = runnable_studies(self._engine)
        problems = self._nodes.problems() if runnable and self._settings.ray_address is not None else []
        self._ray_status = "studies wait: " + "; ".join(problems) if problems else "ok"
        self._told_waiting = {study: told for study, told in self._told_waiting.items() if study in runnable}
        self._silences = {study: silence for study, silence in self._silences.items() if study in runnable}
        for study_id in runnable:
            with about(study=study_id):
                if study_id in self._drivers:
                    driver = self._drivers[study_id]
                    is_ready = bool(ray.wait([driver.ready], timeout=0)[0])
                    self._check_silent(study_id, driver.actor, has_started=is_ready)
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
            return crashes.waits
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
        except ActorUnavailableError as error:  # it may well work on, or wait for memory; it has ended if Ray says so
            if not driver.was_cut_off:
                logger.warning("study %s: the connection to its driver broke: %s", study_id, error)
            end = driver.actor.__ray_ready__.remote()  # its only thread answers after its run
            self._drivers[study_id] = replace(driver, answer=end, was_cut_off=True)
            return
        except RayError as error:
            _kill(driver.actor)
            self._note_failure(study_id, driver, error)
        else:
            _kill(driver.actor)  # else the study's next driver would wait until it ends itself
            told = "" if driver.was_cut_off else f", study is {state}"
            logger.info("study %s: driver ended%s", study_id, told)
            self._crashes.pop(study_id, None)
            if not self._drivers:
                self._refill()

    def _refill(self) -> None:
        """Where those of the last time have not all started, more of them would only delay one another."""
        self._refill_at = time.monotonic() + REFILL_EVERY_S
        if not self._spare or not ray.wait(self._spare, num_returns=len(self._spare), timeout=0)[1]:
            self._spare = cluster.refill_spare(self._settings, libraries=self._libraries)

    def _note_failure(self, study_id: str, driver: Driver, error: RayError) -> None:
        """Count a driver's failure. The next driver continues, unless too many have failed without progress."""
        cause = getattr(error, "cause", None) or error
        logger.warning("study %s: its driver failed: %s", study_id, error)
        before = self._crashes.get(study_id) or Crashes(0, -1, 0.0)
        if isinstance(cause, RuntimeEnvSetupError):  # a package index may be away or slow
            retry_at = time.monotonic() + CHECK_AGAIN_S
            waits = f"waits, because Ray cannot prepare the runtime environment: {str(cause).strip()[-500:]}"
            self._crashes[study_id] = Crashes(before.n, before.progress, retry_at, waits)
            return
        silence = self._silences.get(study_id)
        was_silent = silence is not None and silence.is_killed and silence.driver == driver.actor
        if was_silent or isinstance(cause, DatabaseUnavailableError) or is_transient(cause) or lacks_descriptors(cause):
            self._crashes[study_id] = Crashes(before.n, before.progress, time.monotonic() + OUTAGE_RETRY_S)
            return
        progress = study_progress(self._engine, study_id)
        n = before.n + 1 if before.progress == progress else 1
        # In all 40 s, in which a machine may have memory or processes again.
        self._crashes[study_id] = Crashes(n, progress, time.monotonic() + (0.0 if n == 1 else 3.0 ** (n - 1)))
        if n >= MAX_CRASHES:
            text = f"{type(cause).__name__}: {in_short(cause)}"[:500]
            self._give_up(
                study_id,
                driver.lease,
                reason=f"its driver failed {n} times without progress, the last time with {text}; "
                "the service's log has the trace",
            )
        else:
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
            self._check_silent(study_id, old, has_started=has_started(old))
            return
        settings = self._settings
        definition = self._definition_of(study_id)
        self._libraries = () if definition is None else definition.task.libraries()
        try:
            code = self._code_for(definition)
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
        ready = driver.__ray_ready__.remote()
        answer = driver.run.remote(
            study_id,
            open_store=open_store,
            database_url=settings.database_url,
            options=options,
            set_up_log=partial(configure_driver, home=settings.home, format=settings.log_format),
        )
        lease = Lease(study_id=study_id, owner=options.owner, ttl_s=options.lease_ttl_s)
        self._drivers[study_id] = Driver(driver, ready, answer, lease)
        if len(self._drivers) == 1:
            self._refill_at = time.monotonic() + FIRST_REFILL_S
        logger.info("study %s: driver started", study_id)

    def _definition_of(self, study_id: str) -> StudyDefinition | None:
        """None where it cannot be read: the study's driver tells why, and fails."""
        try:
            return self._store.get_study(study_id).definition
        except SearchError:
            return None

    def _code_for(self, definition: StudyDefinition | None) -> dict[str, Any] | None:
        """The runtime environment with the operator's own modules, for a study that names objects of modules."""
        if self._settings.code is None or definition is None or not definition.imports():
            return None
        return cluster.send_code(self._settings)

    def _check_silent(self, study_id: str, driver: Any, *, has_started: bool) -> None:
        """Kill a driver that takes too long to start, or that has run without a lease; called at every tick."""
        silence = self._silences.get(study_id)
        if silence is None or (silence.driver, silence.has_started) != (driver, has_started):
            n_killed = 0 if silence is None else silence.n_killed + silence.is_killed
            silence = Silence(driver, has_started, time.monotonic(), n_killed)
        patience_s = (SILENCE_S if has_started else START_S) * 2 ** min(silence.n_killed, MOST_DOUBLINGS)
        if time.monotonic() - silence.since > patience_s:
            what = "has run without a lease for" if has_started else "has not started in"
            logger.warning("study %s: its driver %s %.0f s; killing it", study_id, what, patience_s)
            _kill(driver)
            silence = replace(silence, is_killed=True)
        self._silences[study_id] = silence


def _kill(actor: Any) -> None:
    with suppress(RayError):
        ray.kill(actor)


def open_store(database_url: str) -> SqlStore:
    """The store as a driver opens it, in its own process."""
    return SqlStore(make_driver_engine(database_url))


def _new_owner() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
