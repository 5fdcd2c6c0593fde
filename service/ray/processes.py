"""Processes that this one started, by `psutil`, which tells a process from a later one of the same number."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

import psutil

log = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0


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
            if child.name() == "raylet":
                found |= {child, *child.children(recursive=True)}
    return found


def title(process: psutil.Process) -> str:
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


def end(processes: Iterable[psutil.Process], *, timeout_s: float = END_TIMEOUT_S) -> None:
    """Send SIGTERM to those that still run, and SIGKILL to those that still run after the timeout."""
    running = [process for process in processes if process.is_running()]
    if running:
        log.info("ending %d processes that Ray left behind", len(running))
    tell_to_stop(running)
    for process in wait_for(running, timeout_s=timeout_s):
        with suppress(psutil.Error):
            process.kill()
