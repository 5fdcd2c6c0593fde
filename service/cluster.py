"""The Ray that studies run on: one of our own on this machine, or a cluster to join.

Owns its start, its end, who may use it, and telling that it was lost: a process that stays connected to a dead Ray is
ended by Ray's own core a minute later.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants

from search import actor
from service import joining, leftovers
from service.settings import Settings
from service.signals import handlers_kept
from tasks.engine import sharing

log = logging.getLogger(__name__)

CLOCK_STEP_S = 5.0
"""Steps back of the machine's clock that are smaller only delay Ray's timers by as much."""

_own_node: subprocess.Popen[bytes] | None = None
"""The node that was started for this process to reach a cluster through."""


def join(settings: Settings) -> None:
    """Start an embedded Ray, or join the cluster at `settings.ray_address`.

    Ray lets in only who has a node beside them: where this machine has none, one without CPUs and cards is started.

    An embedded one listens on loopback only and asks for a token that this process and its children alone know. It
    lives no longer than the calling thread: the kernel kills its daemons with the thread that started them.

    The database's address is kept out of the environment that Ray's processes inherit. The runtime environment is the
    connection's, so that all that is started through it has it, and what those start in turn.

    Raises:
        JoinError: the cluster does not answer, or not to this token.
    """
    global _own_node
    address = settings.ray_address
    if address is not None:
        joining.check_answers(address)
        if not joining.has_node():
            joining.check_token(address)
            _own_node = joining.join_without_capacity(address)
    database_url = os.environ.pop("ADMETA_DATABASE_URL", None)
    options = {
        "namespace": actor.NAMESPACE,
        "log_to_driver": False,
        "runtime_env": None if settings.runtime_env is None else dict(settings.runtime_env),
        "logging_level": logging.ERROR,
    }
    try:
        with handlers_kept(signal.SIGTERM, signal.SIGINT):
            if address is None:
                start_embedded(**options)
            else:
                ray.init(address=address, **options)
    except ConnectionError as error:
        raise joining.JoinError(
            f"Ray lets this service not into the cluster at {address}: {error}.",
            hint="Check the address, RAY_AUTH_MODE and the token (RAY_AUTH_TOKEN_PATH), and that the Ray node on this "
            "machine is that cluster's.",
        ) from error
    finally:
        if database_url is not None:
            os.environ["ADMETA_DATABASE_URL"] = database_url


def start_embedded(**options: Any) -> None:
    """Start a Ray that only this process and its children may use; they inherit its token by their environment.

    Other users read neither the environment nor the memory of these processes. An operator's own RAY_AUTH_MODE,
    RAY_AUTH_TOKEN and RAY_AUTH_TOKEN_PATH are kept.

    Args:
        options: of `ray.init`.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "").strip().lower()
    if not mode:
        os.environ.pop("RAY_AUTH_MODE", None)  # Ray then asks for tokens; it reads the variable at its import only
    if mode == "disabled":
        log.warning(
            "RAY_AUTH_MODE is disabled: every user of this machine can run code as the user of this service. "
            "Unset RAY_AUTH_MODE to have Ray ask for a token."
        )
    elif mode in ("", "token") and not any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    with _bound_to_loopback():
        ray.init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False, **options)


@contextmanager
def _bound_to_loopback() -> Iterator[None]:
    """Let Ray take 127.0.0.1 as its node's address: on Linux it replaces it by one that others reach."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


class ClockWatch:
    """Notices that the machine's clock was set back.

    The timers of Ray's daemons go by that clock: after a step back of an hour they stand still for an hour, in which no
    new worker starts. Daemons that start after the step are not affected.

    Args:
        wall, monotonic: the clocks, in seconds.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self.reset()

    def reset(self) -> None:
        """From now on the clock is right."""
        self._offset_s = self._wall() - self._monotonic()

    def set_back_s(self) -> float:
        """By how much the clock was set back since the reset; 0 where it was not, or by less than Ray's timers mind."""
        step_s = self._offset_s - (self._wall() - self._monotonic())
        if step_s < 0:  # set forward: Ray's timers fire early, and a step back from there counts
            self.reset()
        return step_s if step_s > CLOCK_STEP_S else 0.0


def control_is_lost() -> str | None:
    """Why Ray must be left and joined anew; None where its control service answers."""
    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    return None if joining.answers(host, int(port)) else f"Ray's control service at {address} does not answer"


def node_is_lost(settings: Settings) -> bool:
    """Whether the embedded Ray's node has died. Ray's core then ends this process as soon as it disconnects."""
    return settings.ray_address is None and not any(
        node["Alive"] and joining.answers(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in ray.nodes()
    )


def leave(settings: Settings) -> None:
    """Disconnect; an embedded Ray ends, with all that it started."""
    global _own_node
    if settings.ray_address is not None:
        ray.shutdown()
        if _own_node is not None:
            joining.end_node(_own_node)
            _own_node = None
        return
    started = leftovers.embedded_ray()
    ray.shutdown()
    leftovers.end(started)
    sharing.leave()  # its workers started the card's multi-process service, and nobody is left to use it
