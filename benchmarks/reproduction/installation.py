"""`admeta serve` as a process of its own on a home folder: SQLite there, and Ray with all that the machine has."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from admeta.client import Client
from admeta.client.errors import ClientError

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 20.0


class Installation:
    """The service on a home, from `with` to its end.

    Args:
        home: database, checkpoints and logs; made where missing.
        data: the data folder; None: the home's own.
    """

    def __init__(self, home: Path, *, data: Path | None) -> None:
        self.home = home
        self._data = data
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> Client:
        return Client(f"http://127.0.0.1:{self._port}")

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        database = f"sqlite:///{self.home.absolute() / 'admeta.sqlite3'}"
        flags = ["--home", str(self.home), "--port", str(self._port), "--database-url", database]
        flags += [] if self._data is None else ["--data", str(self._data)]
        with (self.home / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from service.cli import main; main()", "serve", *flags],
                stdout=output,
                stderr=output,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the caller, who pauses first
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise SystemExit(f"the service ended with {self._process.returncode}; see {self.home / 'output.log'}")
            with suppress(ClientError), self.client as client:
                if client.health().status == "ok":
                    return
            time.sleep(0.3)
        raise SystemExit(f"the service does not answer after {START_TIMEOUT_S:.0f} s; see {self.home / 'output.log'}")

    def _stop(self) -> None:
        """As Ctrl-C does; killed with what it started where it takes too long."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
