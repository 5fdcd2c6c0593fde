"""The driver as a detached Ray actor: it outlives the service that started it.

The database's address travels as an argument of `run` alone: never in the actor's creation, which Ray keeps, nor
in a file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ray

from search.driver import DriverOptions, drive
from search.states import StudyState
from search.store import Store

NAMESPACE = "admeta"
LINGER_S = 2.0
"""Time for the answer to reach the service, if that still lives; then the actor ends itself."""


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
        """Drive the study; see `search.driver.drive`."""
        set_up_log(study_id)
        try:
            return drive(study_id, store=open_store(database_url), options=options)
        finally:
            timer = threading.Timer(LINGER_S, ray.kill, (ray.get_runtime_context().current_actor,))
            timer.daemon = True
            timer.start()


def actor_name(study_id: str) -> str:
    """The driver's name in Ray's namespace `admeta`."""
    return f"driver-{study_id}"


def find(study_id: str) -> Any | None:
    """The study's driver where one lives."""
    try:
        return ray.get_actor(actor_name(study_id), namespace=NAMESPACE)
    except ValueError:
        return None


def launch(study_id: str) -> Any:
    """A new driver actor without work.

    Raises:
        ValueError: one of that name lives already.
    """
    return (
        ray.remote(DriverActor)
        .options(
            name=actor_name(study_id),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            resources={"node:__internal_head__": 0.001},  # not on a worker, which may leave, and sees no database
            max_restarts=0,  # the supervisor starts a new one when the lease has expired
        )
        .remote()
    )
