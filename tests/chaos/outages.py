"""Short outages that are no crash: a full disk, a database that is read-only, no descriptors left, a clock that steps.

They need root, and Linux. Each lasts as long as its context.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg

WITHOUT_OVERRIDE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Starts a command as a root that file permissions bind."""
FEW_DESCRIPTORS = ["prlimit", "--nofile=256:256"]
_FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"


def can_mount() -> bool:
    """Whether a small disk can be had."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextmanager
def small_disk(folder: Path, *, mib: int) -> Iterator[Path]:
    """A disk of so many MiB at the folder, in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """No byte can be written to the disk."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def not_writable(database: Path) -> Iterator[None]:
    """Whoever opens the database file from now on may only read it."""
    files = [path for path in database.parent.glob(f"{database.name}*") if path.is_file()]
    for path in files:
        path.chmod(0o444)
    try:
        yield
    finally:
        for path in files:
            with suppress(FileNotFoundError):
                path.chmod(0o644)


@contextmanager
def read_only_server(url: str) -> Iterator[None]:
    """PostgreSQL lets nobody write, unless a session asks for it."""
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")


@contextmanager
def no_descriptors(pids: Iterable[int]) -> Iterator[None]:
    """The processes cannot open another file, socket or pipe; those that they have stay open."""
    before = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
            before[pid] = soft, hard
    try:
        yield
    finally:
        for pid, limits in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@contextmanager
def idle_connections(port: int, *, n: int) -> Iterator[None]:
    """So many connections to the service that never send a byte."""
    with ExitStack() as stack:
        for _ in range(n):
            with suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
        yield


class Clock:
    """The time of day as the processes started with `environment` read it; it can be set. They need libfaketime."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process whose clock this is."""
        library = clock_library()
        assert library is not None, "libfaketime is not installed"
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def set(self, offset_s: int) -> None:
        """So many seconds ahead of the machine's clock."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+d}\n")
        new.rename(self._file)


def clock_library() -> Path | None:
    """libfaketime, where it is installed."""
    return next(iter(sorted(Path("/").glob(_FAKETIME.lstrip("/")))), None)
