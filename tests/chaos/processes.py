"""Processes of this machine, from /proc: what lives, what it is called, whose child it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not yet waited for does not."""
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """Children, their children, and so on."""
    parents: dict[int, list[int]] = {}
    for child in _pids():
        with suppress(OSError):
            parents.setdefault(int(_stat(child)[1]), []).append(child)
    found: set[int] = set()
    ahead = [pid]
    while ahead:
        children = parents.get(ahead.pop(), [])
        found.update(children)
        ahead.extend(children)
    return found


def marked(variable: str, value: str) -> set[int]:
    """Those that were started with this variable of the environment."""
    found = set()
    for pid in _pids():
        with suppress(OSError):
            if f"{variable}={value}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def title(pid: int) -> str:
    """The command line, which Ray sets to what the process is doing."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def titled(pids: Iterable[int], beginning: str) -> list[int]:
    """Those whose title begins so."""
    return [pid for pid in pids if title(pid).startswith(beginning)]


def send(pid: int, number: signal.Signals) -> None:
    """A signal, where the process still lives."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill(pid: int) -> None:
    """SIGKILL, where the process still lives."""
    send(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/pid/stat after the name: state, parent, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
