"""Ends what an embedded Ray leaves behind: its node's agents outlive `ray.shutdown()` by more than a minute.

Knows processes by (pid, start time) from /proc, so that a number that was given to another process since is not taken
for ours. Where there is no /proc, nothing is found and Ray's agents end by themselves.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

PATIENCE_S = 5.0
_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process, told apart from later ones with the same pid."""

    pid: int
    start_ticks: int


def embedded_ray() -> frozenset[Process]:
    """This process's raylets and all that they started."""
    children = _children()
    return _family(children, [process for process, name in children[os.getpid()] if name == "raylet"])


def descendants(pid: int) -> frozenset[Process]:
    """All that a process started, and what those started."""
    children = _children()
    return _family(children, [process for process, _ in children[pid]])


def _children() -> dict[int, list[tuple[Process, str]]]:
    """All processes, with their names, by their parent's pid."""
    children: dict[int, list[tuple[Process, str]]] = defaultdict(list)
    for folder in _PROC.glob("[0-9]*"):
        found = _read(folder)
        if found is not None:
            process, parent, name = found
            children[parent].append((process, name))
    return children


def _family(children: Mapping[int, list[tuple[Process, str]]], roots: Iterable[Process]) -> frozenset[Process]:
    family: set[Process] = set()
    left = list(roots)
    while left:
        process = left.pop()
        if process not in family:
            family.add(process)
            left += [child for child, _ in children.get(process.pid, [])]
    return frozenset(family)


def end(processes: Iterable[Process], *, patience_s: float = PATIENCE_S) -> None:
    """SIGTERM to those that still live, and SIGKILL to those that ignore it for `patience_s`."""
    living = [process for process in processes if lives(process)]
    if living:
        log.info("ending %d processes that Ray left behind", len(living))
    _signal(living, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while left := [process for process in processes if lives(process)]:
        if time.monotonic() > deadline:
            _signal(left, signal.SIGKILL)
            return
        time.sleep(0.05)


def _signal(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        if lives(process):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


def lives(process: Process) -> bool:
    """Whether this very process still runs."""
    found = _read(_PROC / str(process.pid))
    return found is not None and found[0] == process


def _read(folder: Path) -> tuple[Process, int, str] | None:
    """The process, its parent's pid and its name; None when it has ended (or waits to be buried)."""
    try:
        stat = (folder / "stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    fields = stat[stat.rindex(")") + 2 :].split()  # from the third on: state, ppid, …; the start time is the 22nd
    if fields[0] in ("Z", "X"):
        return None
    return Process(int(folder.name), int(fields[19])), int(fields[1]), name
