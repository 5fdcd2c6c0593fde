"""A PostgreSQL cluster of our own, to stop and start at will."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.processes import is_alive

SERVER_PROGRAMS = "/usr/lib/postgresql"


class Postgres:
    """One cluster in a folder of its own, on a port of its own, reachable from this machine alone."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._run("initdb", "--pgdata", str(folder / "data"), "--auth", "trust", "--username", "postgres", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = f"-p {self._port} -h 127.0.0.1 -c max_connections=50 -c shared_buffers=32MB -c max_wal_size=64MB"
        options += " -c unix_socket_directories=''"
        self._control("start", "--options", options, "--log", str(self._folder / "log"))

    def is_running(self) -> bool:
        """Whether it has not ended, as it does when it cannot write its log."""
        try:
            return is_alive(int((self._folder / "data" / "postmaster.pid").read_text().partition("\n")[0]))
        except (FileNotFoundError, ValueError):
            return False

    def stop(self, mode: str) -> None:
        """Stop: 'fast' ends every session first, 'immediate' is a crash."""
        self._control("stop", "--mode", mode)

    def _control(self, verb: str, *arguments: str) -> None:
        self._run("pg_ctl", verb, "--pgdata", str(self._folder / "data"), "--wait", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        found = programs()
        assert found is not None, "there are no PostgreSQL server programs"
        # The server refuses to run as root.
        command = [
            *(["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []),
            str(found / program),
            *arguments,
        ]
        with (self._folder / "output").open("a+b") as output:  # a pipe would stay open in the server
            done = subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd="/")
            output.seek(0)
            assert done.returncode == 0, output.read().decode(errors="replace")


def programs() -> Path | None:
    """The folder of initdb and pg_ctl, newest version first."""
    folders = sorted(Path(SERVER_PROGRAMS).glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    return next((f for f in [*folders, *([Path(on_path).parent] if on_path else [])] if (f / "initdb").exists()), None)


@contextmanager
def own_postgres(*, within: Path | None = None) -> Iterator[Postgres]:
    """A running cluster, gone at the end. Its files are within a folder of the machine's temporary ones, or of this."""
    folder = Path(tempfile.mkdtemp(prefix="admeta-postgres-", dir=within))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        server = Postgres(folder, _free_port())
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
