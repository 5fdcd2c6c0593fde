"""The product as a user runs it: `admeta serve` in a process of its own, on one machine or on a Ray cluster."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from admeta.client import Client
from admeta.client.errors import ClientError
from admeta.client.models import StudyView
from tests.chaos.processes import descendants, is_alive, kill, marked, title
from tests.machine import PATIENCE_S, wait_until

AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "dashboard/agent.py", "runtime_env/agent/main.py")
HOME = "ADMETA_TEST_SERVICE"
"""A variable of the service and of all that it starts, whoever is their parent later."""
N_LOG_LINES = 40
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAY_DISABLE_IMPORT_WARNING": "1"}


class Service:
    """`admeta serve` on a home; it can be killed and started again on the same port.

    Args:
        under: a command that starts it, such as ["prlimit", "--nofile=256"].
    """

    def __init__(
        self,
        home: Path,
        *,
        database_url: str,
        ray_address: str | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        under: Sequence[str] = (),
    ) -> None:
        self.home = home
        self._under = under
        self._environment = environment
        self.port = free_port()
        self.database_url = database_url
        self.ray_address = ray_address
        self._process: subprocess.Popen[bytes] | None = None
        self._agents: set[int] = set()
        home.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the service was not started"
        return self._process.pid

    @property
    def client(self) -> Client:
        return Client(f"http://127.0.0.1:{self.port}")

    def start(self) -> None:
        """Start, and wait until it answers."""
        flags = ["--home", str(self.home), "--port", str(self.port), "--database-url", self.database_url]
        if self.ray_address is not None:
            flags += ["--ray-address", self.ray_address]
        with (self.home / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                [*self._under, sys.executable, "-c", "from service.cli import main; main()", "serve", *flags],
                stdout=output,
                stderr=output,
                env={**os.environ, **ENVIRONMENT, **self._environment, HOME: str(self.home)},
            )
        wait_until(self._answers, what=f"the service answers, see {self.home}", poll_s=0.2)

    def wait(self, *, timeout_s: float) -> int:
        """The exit status, once it has ended by itself."""
        assert self._process is not None, "the service was not started"
        return self._process.wait(timeout=timeout_s)

    def completed(self, study: str, *, timeout_s: float = PATIENCE_S) -> StudyView:
        """The study at its end. Unless it is COMPLETED, the error gives its reason and the end of the service's log."""
        with self.client as client:
            with suppress(TimeoutError):
                client.wait(study, timeout_s=timeout_s)
            view = client.study(study)
        log = "\n".join((self.home / "output.log").read_text(errors="replace").splitlines()[-N_LOG_LINES:])
        assert view.state == "COMPLETED", f"study {view.name} is {view.state}: {view.reason}; the log ends with\n{log}"
        return view

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=PATIENCE_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until Ray's daemons and workers are gone too; its agents look only now and then."""
        assert self._process is not None, "the service was not started"
        started = descendants(self.pid) | marked(HOME, str(self.home))
        agents = {pid for pid in started if any(name in title(pid) for name in AGENTS)}
        started.discard(self.pid)
        self._process.kill()
        self._process.wait()
        self._process = None
        self._agents |= agents
        _wait_for_end(started - agents, timeout_s=PATIENCE_S)

    def check_left(self) -> None:
        """Wait until the agents of killed services have ended too."""
        _wait_for_end(self._agents, timeout_s=PATIENCE_S)

    def _answers(self) -> bool:
        assert self._process is not None, "the service was not started"
        if self._process.poll() is not None:
            raise RuntimeError(f"the service ended with {self._process.returncode}; see {self.home / 'output.log'}")
        with suppress(ClientError), self.client as client:
            return client.health().status == "ok"
        return False


def _wait_for_end(pids: set[int], *, timeout_s: float) -> None:
    """Wait until these have ended; raises TimeoutError naming those that do not, and kills them."""

    def left() -> list[int]:
        return [pid for pid in pids if is_alive(pid)]

    try:
        wait_until(lambda: not left(), timeout_s=timeout_s, what="the service's children are gone")
    except TimeoutError as error:
        titles = [title(pid)[:150] for pid in left()]
        for pid in left():
            kill(pid)
        raise TimeoutError(f"{error}: {titles}") from None


class RayNode:
    """One node of a cluster: a command in a session of its own, so that the whole node can be killed."""

    def __init__(self, folder: Path, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        with (folder / f"{name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env={**os.environ, **ENVIRONMENT, **environment},
                start_new_session=True,
            )

    @property
    def pids(self) -> set[int]:
        """Everything that runs on the node."""
        return descendants(self._process.pid)

    def tell_to_stop(self) -> None:
        """SIGTERM to the command, and wait until it has ended."""
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """SIGKILL to every process of the node."""
        pids = self.pids
        for pid in (self._process.pid, *pids):
            kill(pid)
        self._process.wait()
        for pid in pids:
            kill(pid)


class TwoNodes:
    """A Ray cluster of a head and a second node on this machine, one trial's room on each, guarded by a token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = free_port()
        self._environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.environ.update(self._environment)  # the service inherits it
        self._head = self._node("head", ["--head", f"--port={self._port}", "--include-dashboard=false"])
        time.sleep(5.0)
        self.second = self._node("second", [f"--address={self.address}"])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pids(self) -> set[int]:
        """Everything that runs on both nodes."""
        return self._head.pids | self.second.pids

    def replace_second(self) -> None:
        """A new second node in the place of the killed one."""
        self.second = self._node("second", [f"--address={self.address}"])

    def replace_second_by_worker(self) -> None:
        """`admeta worker` in the place of the second node."""
        self.second.kill()
        command = [sys.executable, "-c", "from service.cli import main; main()", "worker", "--address", self.address]
        self.second = RayNode(self.folder, "worker", [*command, "--cpus=1", "--gpus=0"], self._environment)

    def stop(self) -> None:
        self.second.kill()
        self._head.kill()
        for name in self._environment:
            os.environ.pop(name, None)

    def _node(self, name: str, arguments: list[str]) -> RayNode:
        command = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats"]
        room = ["--num-cpus=1", "--num-gpus=0"]
        return RayNode(self.folder, name, [*command, *arguments, *room], self._environment)


@contextmanager
def two_nodes(folder: Path) -> Iterator[TwoNodes]:
    """A cluster, gone at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = TwoNodes(folder)
    try:
        yield cluster
    finally:
        cluster.stop()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
