"""`admeta worker`: what it says before it is a part of its cluster, and how it gives its runs back."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.ray import node
from service.ray.node import ClockWatch, JoinError
from tests.machine import PATIENCE_S, wait_until


@pytest.fixture
def ray_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ray's command replaced: `health-check` prints and exits as told, `start` notes that it was called and waits.

    What `start` starts itself does not end with it.
    """
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setattr(node, "_PAUSE_S", 0.05)

    def say(text: str, code: int) -> Path:
        started = tmp_path / "started"
        script = tmp_path / "ray.py"
        script.write_text(
            "import os, pathlib, subprocess, sys, time\n"
            "if sys.argv[1] == 'health-check':\n"
            f"    sys.stderr.write({text!r}); sys.exit({code})\n"
            f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(subprocess.Popen(['sleep', '3600']).pid))\n"
            "words = [*sys.argv[1:], f'at {os.environ[\"RAY_worker_niceness\"]}']\n"
            f"pathlib.Path({str(started)!r}).write_text(' '.join(words)); time.sleep(60)\n"
        )
        monkeypatch.setattr(node, "_RAY", (sys.executable, str(script)))
        return started

    yield say
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


@pytest.fixture
def address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def stop_when(condition: Any) -> None:
    """SIGTERM to this process as soon as it holds."""

    def watch() -> None:
        with suppress(TimeoutError):
            wait_until(condition, what="the test may end", poll_s=0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@pytest.mark.parametrize("address", ["head", "auto", "ray://head:10001"])
def test_a_worker_needs_the_heads_host_and_port(address: str) -> None:
    with pytest.raises(JoinError, match=rf"address = '{address}' must be HOST:PORT .*--address"):
        node.work(address, cpus=None, gpus=None)


def test_another_clusters_token_is_told_before_a_node_starts(ray_says: Any, address: str) -> None:
    started = ray_says("Traceback …\nRPC error: InvalidAuthToken: Authentication token is missing or incorrect", 1)
    with pytest.raises(JoinError, match=f"the cluster at {address} refuses this machine's token") as told:
        node.work(address, cpus=None, gpus=None)
    assert "RAY_AUTH_TOKEN_PATH" in told.value.hint
    assert not started.exists()


@pytest.mark.parametrize(("niceness", "expected"), [(None, "0"), ("5", "5")])
def test_what_ray_says_otherwise_is_left_to_the_node(
    ray_says: Any, address: str, monkeypatch: pytest.MonkeyPatch, niceness: str | None, expected: str
) -> None:
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    if niceness is not None:
        monkeypatch.setenv("RAY_worker_niceness", niceness)
    monkeypatch.setattr(node, "give_back", lambda _address, _node: True)
    started = ray_says("something else", 1)
    stop_when(started.exists)
    assert node.work(address, cpus=2, gpus=0) == 0
    told = re.sub("--temp-dir=[^ ]+", "--temp-dir", started.read_text())
    start = f"start --address={address} --block --disable-usage-stats"
    assert told == f"{start} --temp-dir --num-cpus=2 --num-gpus=0 at {expected}"


def test_a_head_that_is_not_there_yet_is_waited_for(ray_says: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As a machine does that starts before its cluster, or is cut off from it."""
    started = ray_says("", 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
    with caplog.at_level(logging.WARNING):
        stop_when(lambda: caplog.text.count(f"nothing answers at {silent}") > node.MAX_FAILURES + 1)
        assert node.work(silent, cpus=None, gpus=None) == 0
    assert not started.exists()


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc (Linux)")
NODE = """
import subprocess, sys, time
worker = "import signal, sys, time; {heed}; print(flush=True); time.sleep(60)"
processes = [
    subprocess.Popen([name, "-c", worker], executable=sys.executable, stdout=subprocess.PIPE)
    for name in ("ray::TrialWorker.train", "ray::DriverActor.run")
]
for process in processes:
    process.stdout.readline()
print(*(process.pid for process in processes), flush=True)
for process in processes:
    process.wait()
"""
SAVES = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(0)))"
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses at which Ray was told that the node leaves."""
    addresses: list[str] = []
    monkeypatch.setattr(node, "_drain", addresses.append)
    return addresses


def node_with_runs(heed: str) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    program = [sys.executable, "-c", NODE.replace("{heed}", heed)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker, driver = map(int, process.stdout.readline().split())
        yield process, worker, driver
        for pid in (worker, driver):
            subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)


@needs_proc
@pytest.mark.parametrize(("heed", "given_back"), [(SAVES, True), (IGNORES, False)], ids=["saves", "ignores"])
def test_runs_are_given_back(told: list[str], heed: str, given_back: bool) -> None:
    for process, worker, driver in node_with_runs(heed):
        assert node.give_back("head:6379", process.pid, timeout_s=PATIENCE_S if given_back else 0.5) is given_back
        assert told == ["head:6379"]
        assert Path(f"/proc/{driver}").exists()
        assert (worker in {p.pid for p in node.descendants(process.pid)}) is not given_back


@needs_proc
def test_a_node_without_runs_is_not_waited_for(told: list[str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert node.give_back("head:6379", process.pid)
        process.kill()
    assert told == []


def test_a_head_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_DRAIN_TIMEOUT_S", 0.2)
    monkeypatch.setattr(node, "_RAY", (sys.executable, "-c", "import time; time.sleep(3600)"))
    node._drain("127.0.0.1:9")


def test_the_node_is_replaced_when_the_clock_was_set_back(
    ray_says: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timers of Ray's daemons stand still for as long as the step was, and those of workers, too."""
    given_back: list[str] = []
    wall_s = [0.0]
    monkeypatch.setattr(node, "CLOCK_CHECK_S", 0.05)
    monkeypatch.setattr(node, "give_back", lambda address, _node: given_back.append(address))
    monkeypatch.setattr(node, "ClockWatch", lambda: ClockWatch(wall=lambda: wall_s[0], monotonic=lambda: 0.0))
    started = ray_says("", 0)
    children: list[psutil.Process] = []

    def is_replaced() -> bool:
        if started.exists() and wall_s == [0.0]:
            children.append(psutil.Process(int((started.parent / "child").read_text())))
            started.unlink()
            wall_s[0] = -3600.0
        return bool(given_back) and started.exists()

    stop_when(is_replaced)
    assert node.work(address, cpus=None, gpus=None) == 0
    assert given_back == [address, address]  # at the step, and when told to stop
    wait_until(lambda: not children[0].is_running(), what="the node's processes have ended")
