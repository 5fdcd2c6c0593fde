"""This machine as a node of a Ray cluster: the node through which the service reaches it, and `admeta worker`.

Ray's own command starts the node. Owns when it is needed, its arguments, and its end: no new run is placed on it, and
those that are there are saved and given back within 30 s, which is the notice that spot capacity gives. A run saves
a checkpoint when its worker is told to stop (`search.trainable`).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from admeta.client.errors import ServiceError
from service.settings import head_address
from tasks.engine.folders import make_private_folder

log = logging.getLogger(__name__)

CLOCK_STEP_S = 5.0
"""Smaller steps back of the machine's clock are ignored: they delay Ray's timers by as much."""
CLOCK_CHECK_S = 5.0
START_TIMEOUT_S = 300.0
"""For the start of a node, which takes seconds on an idle machine; one that fails ends before."""
CONNECT_TIMEOUT_S = 5.0
GIVE_BACK_TIMEOUT_S = 28.0
MAX_FAILURES = 5
"""Nodes that may end within _LASTING_S, one after another, before `work` gives up."""
_LASTING_S = 60.0
_MAX_PARENT_LENGTH = 16
_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 30.0
_END_TIMEOUT_S = 30.0
_SIGTERM_TIMEOUT_S = 5.0
_DRAIN_TIMEOUT_S = 8.0
PRIORITY = ("RAY_worker_niceness", "0")
"""Gives drivers and trials the priority of the process that starts their node, unless the user sets Ray's variable.

Ray's own 15 leaves them a thirtieth of a CPU that another program uses: a driver may then lose its lease.
"""
RAY_FOLDER = "ADMETA_RAY_FOLDER"
"""A variable by which an embedded Ray's processes are known; its value is the Ray's folder."""
_RAY = (sys.executable, "-m", "ray.scripts.scripts")
_WORKER = "ray::TrialWorker"


class JoinError(ServiceError):
    """This machine could not join the cluster."""


class SilentError(JoinError):
    """Nothing answers at the cluster's address."""


def check_answers(address: str) -> None:
    """Raise a SilentError if nothing listens at HOST:PORT. Ray itself would try for minutes and then not say why."""
    host, _, port = address.rpartition(":")
    if address != "auto" and not answers(host, int(port)):
        raise SilentError(
            f"nothing answers at {address}.",
            hint="Give the address of the cluster's head, by default HOST:6379 (--ray-address or --address, "
            "ADMETA_RAY_ADDRESS), start the head, and let this machine reach it. It is tried again.",
        )


def answers(host: str, port: int) -> bool:
    """Whether something listens at the port."""
    return _connection_error(host, port) is None


def refuses(host: str, port: int) -> bool:
    """Whether nothing listens at a port of this machine. What is only busy, or cannot be asked, does not refuse."""
    return isinstance(_connection_error(host, port), ConnectionRefusedError)


def _connection_error(host: str, port: int) -> OSError | None:
    """Why no connection can be made. It may be a timeout, or that this process has no file descriptor left."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error
    return None


def check_token(address: str) -> None:
    """Raise a JoinError if the cluster refuses this machine's token; Ray itself would print tracebacks."""
    asked = subprocess.run(
        [*_RAY, "health-check", f"--address={address}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if asked.returncode and b"InvalidAuthToken" in asked.stderr:
        mode, path = os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN_PATH")
        raise JoinError(
            f"the cluster at {address} refuses this machine's token (RAY_AUTH_MODE is {mode}, "
            f"RAY_AUTH_TOKEN_PATH {path}).",
            hint="Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a copy of the cluster's token file "
            "(secrets/ray_token of a compose installation) with RAY_AUTH_TOKEN unset.",
        )


def has_node() -> bool:
    """Whether a Ray node runs on this machine or, in a container, in the same container."""
    return any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))


def join_without_capacity(address: str) -> subprocess.Popen[bytes]:
    """Start a node without CPUs and cards on this machine: Ray accepts only processes on a machine with a node.

    Raises:
        JoinError: it did not start.
    """
    node = _start(address, ["--num-cpus=0", "--num-gpus=0", "--object-store-memory=100000000"])
    deadline = time.monotonic() + START_TIMEOUT_S
    while not has_node():
        if node.poll() is not None or time.monotonic() > deadline:
            node.kill()
            raise JoinError(
                f"no Ray node could be started here to join the cluster at {address}: `ray start` ended with code "
                f"{node.poll()}.",
                hint="Its messages are above. Check the address, RAY_AUTH_MODE, the token, and that Ray's version is "
                "the cluster's.",
            )
        time.sleep(0.2)
    return node


def make_ray_folder() -> Path:
    """The path for Ray's sockets, logs and runtime environments, within a folder that no other user can open.

    Ray itself makes its folder, and makes it writable for all users. The path is short, because that of a socket below
    it has at most 107 bytes.
    """
    parent = tempfile.gettempdir()
    return make_private_folder("admeta-ray-", parent=parent if len(parent) <= _MAX_PARENT_LENGTH else "/tmp") / "r"


def end_node(node: subprocess.Popen[bytes]) -> None:
    """End a node that this process started, and wait for its end."""
    node.terminate()
    try:
        node.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        node.kill()


class ClockWatch:
    """Detects that the machine's clock was set back.

    The timers of Ray's daemons use that clock: after a step back of an hour they stop for an hour, in which no worker
    starts. Daemons that start after the step are not affected.

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
        """Take the clock's present time as correct."""
        self._offset_s = self._wall() - self._monotonic()

    def set_back_s(self) -> float:
        """By how much the clock was set back since the reset; 0 if by no more than CLOCK_STEP_S."""
        # In this order a pause of this thread between the two readings makes a step look smaller, never larger.
        step_s = self._offset_s + self._monotonic() - self._wall()
        if step_s < 0:  # set forward: Ray's timers only fire early
            self.reset()
        return step_s if step_s > CLOCK_STEP_S else 0.0


def work(address: str, *, cpus: int | None, gpus: int | None) -> int:
    """Make this machine a worker of the cluster until SIGTERM or Ctrl-C, and then give its runs back (`give_back`).

    A node that was cut off for about a minute is dead to its cluster and ends; this machine then joins as a new one. If
    nothing answers at the address, it is tried again until something does.

    Args:
        cpus, gpus: resources of this machine for trials; None: all of them.

    Returns:
        0 after a signal; the exit code of `ray start` after MAX_FAILURES nodes that ended soon.

    Raises:
        JoinError: the address is not HOST:PORT, RAY_AUTH_MODE is not set, or the cluster refuses this machine's token.
    """
    try:
        head_address(address)
    except ValueError as error:
        hint = "Set it with --address or ADMETA_RAY_ADDRESS."
        raise JoinError(f"address = '{address}' {error}.", hint=hint) from None
    _check_auth()
    limits = [f"--num-cpus={cpus}" for _ in range(cpus is not None)]
    limits += [f"--num-gpus={gpus}" for _ in range(gpus is not None)]
    with Stop(address) as stop:
        failures = tries = 0
        while not stop.told:
            try:
                check_answers(address)
            except SilentError as error:
                tries += 1
                log.warning("%s", error)
                stop.pause(min(_LONGEST_PAUSE_S, _PAUSE_S * tries))
                continue
            tries = 0
            check_token(address)
            began = time.monotonic()
            code = stop.wait(_start(address, limits))
            failures = failures + 1 if time.monotonic() - began < _LASTING_S else 1
            if stop.told:
                break
            if failures >= MAX_FAILURES:
                return code or 1
            log.warning("the node ended with %s; joining %s again in %d s", code, address, _PAUSE_S * failures)
            stop.pause(_PAUSE_S * failures)
    return 0


class Stop:
    """Handles SIGTERM and Ctrl-C: the first gives the node's runs back and ends it, a second ends it at once."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._told = threading.Event()
        self._node: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._end) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def told(self) -> bool:
        return self._told.is_set()

    def wait(self, node: subprocess.Popen[bytes]) -> int:
        """Wait for the node's end, which a signal or a step of the clock causes; returns its exit code."""
        self._node = node
        if self.told:
            node.terminate()
        clock = ClockWatch()
        while True:
            try:
                return node.wait(CLOCK_CHECK_S)
            except subprocess.TimeoutExpired:
                if step_s := clock.set_back_s():
                    clock.reset()
                    log.warning("this machine's clock was set back by %.0f s; its node is replaced", step_s)
                    started = descendants(node.pid)
                    self._leave(node)
                    end_processes(started)  # workers would notice the node's end as late as the clock was set back

    def pause(self, seconds: float) -> None:
        self._told.wait(seconds)

    def _end(self, number: int, frame: object) -> None:
        again = self._told.is_set()
        self._told.set()
        if self._node is None:
            return
        if again:
            self._node.terminate()
        else:
            threading.Thread(target=self._leave, args=(self._node,), name="leaving", daemon=True).start()

    def _leave(self, node: subprocess.Popen[bytes]) -> None:
        give_back(self._address, node.pid)
        node.terminate()


def _check_auth() -> None:
    if os.environ.get("RAY_AUTH_MODE") is None:
        raise JoinError(
            "RAY_AUTH_MODE is not set, so a cluster that asks for a token would refuse this machine.",
            hint="Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the cluster's token file, or "
            "RAY_AUTH_MODE=disabled if the cluster runs without tokens in a network of its own.",
        )


def _start(address: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [*_RAY, "start", f"--address={address}", "--block"]
    environment = dict([PRIORITY], **os.environ)
    environment.pop("ADMETA_DATABASE_URL", None)
    # A session of its own: Ctrl-C at a terminal must not end it before its runs are given back.
    return subprocess.Popen(
        [*command, "--disable-usage-stats", f"--temp-dir={make_ray_folder()}", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def give_back(address: str, node: int, *, timeout_s: float = GIVE_BACK_TIMEOUT_S) -> bool:
    """Have the runs of a node saved and given back.

    Args:
        address: the cluster's head.
        node: process id of the node's `ray start`.

    Returns:
        Whether all were within the timeout. The others end with the node and continue from older checkpoints.
    """
    deadline = time.monotonic() + timeout_s
    workers = [process for process in descendants(node) if process_title(process).startswith(_WORKER)]
    if not workers:
        return True
    log.info("told to stop: %d runs here are saved and given back", len(workers))
    _drain(address)  # first, or what is given back would be placed here again
    tell_to_stop(workers)
    left = wait_for(workers, timeout_s=max(0.0, deadline - time.monotonic()))
    if left:
        log.warning("%d runs were not given back in time; they continue from their last checkpoints", len(left))
    return not left


def _drain(address: str) -> None:
    """Tell Ray to place nothing more on this machine's node. Where the head does not answer, runs may be lost once."""
    command = [*_RAY, "drain-node", f"--address={address}", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
    try:
        done = subprocess.run(
            [*command, "--reason-message=this machine was told to stop", "--deadline-remaining-seconds=30"],
            timeout=_DRAIN_TIMEOUT_S,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            log.warning(
                "Ray could not be told that this machine will stop: %s", done.stderr.strip().rpartition("\n")[2]
            )
    except subprocess.TimeoutExpired:
        log.warning("Ray could not be told within %.0f s that this machine will stop", _DRAIN_TIMEOUT_S)


def descendants(pid: int) -> set[psutil.Process]:
    """Everything that a process started, and what that started in turn."""
    with suppress(psutil.Error):
        return set(psutil.Process(pid).children(recursive=True))
    return set()


def embedded_ray() -> set[psutil.Process]:
    """This process's raylets and everything that they started."""
    found: set[psutil.Process] = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.name() == "raylet" and child.status() != psutil.STATUS_ZOMBIE:
                found |= {child, *child.children(recursive=True)}
    return found


def orphans(folder: Path) -> set[psutil.Process]:
    """The workers and drivers of the Ray in this folder, and everything that they started, even if their raylet died.

    Then they end as soon as they notice it; where the clock was set back by an hour, that is an hour later.
    """
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process_title(process).startswith("ray::") and process.environ().get(RAY_FOLDER) == str(folder):
                found |= {process, *process.children(recursive=True)}
    return found


def process_title(process: psutil.Process) -> str:
    """The command line, or the title that Ray gave the process; empty where it has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def tell_to_stop(processes: Iterable[psutil.Process]) -> None:
    """Send SIGTERM."""
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()


def wait_for(processes: Iterable[psutil.Process], *, timeout_s: float) -> list[psutil.Process]:
    """Wait until these have ended; returns those that have not after the timeout."""
    return psutil.wait_procs(list(processes), timeout=timeout_s)[1]


def end_processes(processes: Iterable[psutil.Process], *, timeout_s: float = _SIGTERM_TIMEOUT_S) -> None:
    """Send SIGTERM to those that still run, and SIGKILL to those that still run after the timeout."""
    running = [process for process in processes if process.is_running()]
    if running:
        log.info("ending %d processes that Ray left behind", len(running))
    tell_to_stop(running)
    for process in wait_for(running, timeout_s=timeout_s):
        with suppress(psutil.Error):
            process.kill()
