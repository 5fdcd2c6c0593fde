"""Sees to it that every study that should run has a driver, and that ended ones leave nothing open.

Owns Ray's start, and the drivers' launch, watch and replacement. What a study does is its driver's business. Any
number of services may work on one database: a study's lease lets one driver have it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from search import actor
from search.driver import DriverOptions
from search.records import StudyState
from service.database.closing import close_unfinished, unclosed_studies
from service.database.engine import make_engine
from service.database.store import SqlStore
from service.database.studies import runnable_studies
from service.settings import Settings
from service.signals import handlers_kept

logger = logging.getLogger(__name__)

TICK_S = 0.5
MAX_DRIVERS = 4
MAX_CRASHES = 5
"""Drivers of one study that may end with an exception of their own, one after another, before it is FAILED."""


@dataclass
class Driver:
    """A driver that this service started: its actor, and the answer it will give."""

    actor: Any
    answer: Any


class Supervisor:
    """One thread that looks at the database twice a second; `service.app` starts and stops it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine = make_engine(settings.database_url, pool_size=2)
        self._store = SqlStore(self._engine)
        self._drivers: dict[str, Driver] = {}
        self._crashes: dict[str, int] = {}
        self._ray_status = "starting"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Begin; Ray comes up in the background."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; with an embedded Ray its drivers and workers end too. Studies can be resumed."""
        self._ended.set()
        self._thread.join()
        if self._settings.ray_address is None:
            ray.shutdown()
        self._engine.dispose()

    def ray_status(self) -> str:
        """ok, starting, or what is wrong."""
        return self._ray_status

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                if not ray.is_initialized():
                    start_ray(self._settings)
                self._ray_status = "ok"
                self._tick()
            except Exception as error:  # the loop must outlive every fault; it tells and tries again
                self._ray_status = f"unavailable: {type(error).__name__}" if isinstance(error, RayError) else "ok"
                logger.exception("supervisor: %s; trying again", type(error).__name__)
                self._ended.wait(2.0)
            self._ended.wait(TICK_S)

    def _tick(self) -> None:
        for study_id in list(self._drivers):
            self._look_after(study_id)
        for study_id in unclosed_studies(self._engine):
            if study_id not in self._drivers:
                close_unfinished(self._store, study_id)
        for study_id in runnable_studies(self._engine):
            if len(self._drivers) >= MAX_DRIVERS:
                break
            if study_id not in self._drivers:
                self._launch(study_id)

    def _look_after(self, study_id: str) -> None:
        """Bury the driver that has given its answer; a crash is counted, and the next tick starts another."""
        driver = self._drivers[study_id]
        ready, _ = ray.wait([driver.answer], timeout=0)
        if not ready:
            return
        del self._drivers[study_id]
        try:
            state = ray.get(driver.answer)
        except RayActorError:
            logger.warning("study %s: its driver died; the next one goes on from the database", study_id)
        except RayError as error:
            self._count_crash(study_id, error)
        else:
            logger.info("study %s: driver ended, study is %s", study_id, state)
            self._crashes.pop(study_id, None)
        with suppress(RayError):
            ray.kill(driver.actor)

    def _count_crash(self, study_id: str, error: RayError) -> None:
        self._crashes[study_id] = self._crashes.get(study_id, 0) + 1
        logger.error("study %s: its driver failed (%d of %d)", study_id, self._crashes[study_id], MAX_CRASHES)
        logger.error("%s", error)
        if self._crashes[study_id] < MAX_CRASHES:
            return
        lease = self._store.acquire_lease(study_id, owner=_new_owner(), ttl_s=30.0)
        if lease is not None:
            cause = str(getattr(error, "cause", None) or error)
            reason = f"its driver failed {MAX_CRASHES} times, the last time with {cause[:500]}; the log has the trace"
            self._store.set_study_state(lease, StudyState.FAILED, reason=reason)
            self._store.release_lease(lease)

    def _launch(self, study_id: str) -> None:
        old = actor.find(study_id)
        if old is not None:  # alive without a lease: it hangs, or another service is burying it
            with suppress(RayError):
                ray.kill(old)
            return
        options = DriverOptions(owner=_new_owner(), storage=self._settings.storage, data_dir=str(self._settings.data))
        driver = actor.launch(study_id)
        answer = driver.run.remote(
            study_id, open_store=open_store, database_url=self._settings.database_url, options=options
        )
        self._drivers[study_id] = Driver(driver, answer)
        logger.info("study %s: driver started", study_id)


def open_store(database_url: str) -> SqlStore:
    """The store as a driver opens it, in its own process."""
    return SqlStore(make_engine(database_url, pool_size=4))


def start_ray(settings: Settings) -> None:
    """Start an embedded Ray, or join the cluster at `settings.ray_address`.

    The database's address is kept out of the environment that Ray's processes inherit.
    """
    address = settings.ray_address
    database_url = os.environ.pop("ADMETA_DATABASE_URL", None)
    if address is None:
        os.environ["RAY_AUTH_MODE"] = "disabled"  # on loopback, for this service alone; clusters keep Ray's tokens
    try:
        with handlers_kept(signal.SIGTERM, signal.SIGINT):
            ray.init(
                address=address or "local",
                namespace=actor.NAMESPACE,
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    finally:
        if database_url is not None:
            os.environ["ADMETA_DATABASE_URL"] = database_url


def _new_owner() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
