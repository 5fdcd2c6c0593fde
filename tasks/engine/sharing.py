"""Several trials on one card at the same time, not in turns: NVIDIA's multi-process service (MPS).

Without it the processes on a card take turns, each alone for a slice of time; a small network's kernels fill a
fraction of the card, so packed trials gain little. Under it they run side by side. It is a program of the driver's
package, started by a user for a folder of pipes; it needs no setting of the card. Processes join it by environment
variables that CUDA reads when it starts, so a worker must call `join` before it touches CUDA.

Each process is held to a part of the card's multiprocessors: twice its share, so that neighbours fill each other's
gaps. Libraries then choose kernels that do the work in the least time on that part, where on the whole idle card they
choose those that spread it thinnest; on a full card the former are the cheaper (docs/benchmarks.md).

A fatal fault, such as an illegal memory access, ends all processes under the service; running out of memory does not.

Source: NVIDIA, "Multi-Process Service", CUDA documentation.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
TIMEOUT_S = 20.0
OVERLAP = 2.0  # a process's part of the multiprocessors over its share of the card
MIN_PERCENT = 25  # of the multiprocessors; 16 processes at 25 % were faster than 8 at 25 %


def pipe_folder() -> Path:
    """Where this user's service listens: one a user and machine."""
    return Path(tempfile.gettempdir()) / f"admeta-mps-{os.getuid()}"


def join(environment: MutableMapping[str, str], *, share: float) -> str:
    """Start the service where it is not running, and point an environment at it.

    Args:
        environment: `os.environ` of a process that has not touched CUDA yet, or that of one to be started.
        share: of the card, in (0, 1], that the process is to have.

    Returns:
        The empty string, or why it cannot.
    """
    if shutil.which(CONTROL) is None:
        return f"{CONTROL} is not installed"
    folder = pipe_folder()
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        return f"{folder} belongs to someone else"
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _answers(variables) and (refusal := _start(variables)):
            return refusal
    environment.update(variables)
    environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(active_percent(share))
    return ""


def active_percent(share: float) -> int:
    """The part of the multiprocessors for a share of the card, in percent."""
    return min(100, max(MIN_PERCENT, round(100 * OVERLAP * share)))


def leave() -> None:
    """Stop this user's service; processes still under it end first."""
    folder = pipe_folder()
    if folder.is_dir() and shutil.which(CONTROL) is not None:
        _ask("quit", {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)})


def _start(variables: dict[str, str]) -> str:
    # It serves the cards it sees, so it must see more than the one that Ray shows to the worker which came first.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        # A session of its own: it must outlive that worker.
        started = subprocess.run(
            [CONTROL, "-d"],
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{CONTROL} did not start ({error})"
    if started.returncode:
        return f"{CONTROL} did not start ({(started.stdout + started.stderr).strip()})"
    return ""


def _answers(variables: dict[str, str]) -> bool:
    done = _ask("get_server_list", variables)
    return done is not None and done.returncode == 0 and "Cannot find" not in done.stdout + done.stderr


def _ask(command: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            [CONTROL],
            input=f"{command}\n",
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
