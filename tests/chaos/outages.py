"""Short outages that are no crash: a full disk, a database that is read-only, no descriptors left, a clock that steps.

They need Linux, most of them root, and the clock a C compiler. Each lasts as long as its context.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg

WITHOUT_OVERRIDE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Starts a command as a root that file permissions bind."""
FEW_DESCRIPTORS = ["prlimit", "--nofile=256:256"]


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
    modes = {path: path.stat().st_mode for path in database.parent.glob(f"{database.name}*") if path.is_file()}
    for path in modes:
        path.chmod(0o444)
    try:
        yield
    finally:
        for path, mode in modes.items():
            with suppress(FileNotFoundError):
                path.chmod(mode)


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
    """The time of day as the processes started with `environment` read it; it can step. Waits are not affected."""

    def __init__(self, folder: Path) -> None:
        self._file, self._library = folder / "clock", folder / "clock.so"
        self._is_back = False
        self._set(0)
        command = ["cc", "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", str(self._library)]
        subprocess.run(command, input=_CLOCK, text=True, check=True)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process whose clock this is."""
        return {"LD_PRELOAD": str(self._library), "ADMETA_TEST_CLOCK": str(self._file)}

    def step(self) -> None:
        """An hour back; the next time, forward again."""
        self._is_back = not self._is_back
        self._set(-3600 if self._is_back else 0)

    def _set(self, offset_s: int) -> None:
        with self._file.open("r+b" if self._file.exists() else "wb") as file:  # in place: processes have it mapped
            file.write(struct.pack("q", offset_s))


_CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *offset;

static long offset_s(void) {
    static const long zero = 0;
    if (!offset) {
        const char *path = getenv("ADMETA_TEST_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *found = file < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        offset = found == MAP_FAILED ? &zero : found;
    }
    return *offset;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = syscall(SYS_clock_gettime, clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset_s();
    return status;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    int status = clock_gettime(CLOCK_REALTIME, &found);
    if (!status && now) { now->tv_sec = found.tv_sec; now->tv_usec = found.tv_nsec / 1000; }
    return status;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""
"""A library that is loaded before libc, and adds the offset in a file to what the clocks of the day say."""
