"""A machine leaves its cluster: it takes no new run, and those that are here are saved and given back within 30 s.

Owns the order of things; a run saves itself when its worker is told to stop (`search.notice`). Spot capacity is taken
away with as little notice as that.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from service import leftovers
from service.leftovers import Process

log = logging.getLogger(__name__)

PATIENCE_S = 28.0
_DRAIN_PATIENCE_S = 8.0
_WORKER = "ray::TrialWorker"


def give_back(address: str, node: int, *, patience_s: float = PATIENCE_S) -> bool:
    """Have the runs of a node given back.

    Args:
        address: the cluster's head.
        node: pid of the node's `ray start`.

    Returns:
        Whether all were within the patience; the others end with the node, and go on from older checkpoints.
    """
    deadline = time.monotonic() + patience_s
    workers = _workers(node)
    if not workers:
        return True
    log.info("told to stop: %d runs here are saved and given back", len(workers))
    _drain(address)  # first, or what is given back would come back here
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)
    while left := [worker for worker in workers if leftovers.lives(worker)]:
        if time.monotonic() > deadline:
            log.warning("%d runs were not given back in time; they go on from their last checkpoints", len(left))
            break
        time.sleep(0.1)
    return not left


def _drain(address: str) -> None:
    """Tell Ray to place nothing more on this machine's node. Where the head does not hear it, runs may be lost once."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={address}"]
    reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=this machine was told to stop"]
    try:
        done = subprocess.run(
            [*command, *reason, "--deadline-remaining-seconds=30"],
            timeout=_DRAIN_PATIENCE_S,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            log.warning("Ray was not told that this machine leaves: %s", done.stderr.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        log.warning("Ray was not told in time that this machine leaves")


def _workers(node: int) -> list[Process]:
    """The processes under a node that train, by the title that Ray gives them."""
    return [process for process in leftovers.descendants(node) if _title(process.pid).startswith(_WORKER)]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
