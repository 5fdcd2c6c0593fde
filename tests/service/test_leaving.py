"""A node's runs are told to stop, after Ray was told to place no new ones; who does not train is left alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import leaving

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc (Linux)")

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
    monkeypatch.setattr(leaving, "_drain", addresses.append)
    return addresses


def node(heed: str) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    program = [sys.executable, "-c", NODE.replace("{heed}", heed)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker, driver = map(int, process.stdout.readline().split())
        yield process, worker, driver
        for pid in (worker, driver):
            subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)


@pytest.mark.parametrize(("heed", "given_back"), [(SAVES, True), (IGNORES, False)], ids=["saves", "ignores"])
def test_runs_are_given_back(told: list[str], heed: str, given_back: bool) -> None:
    for process, worker, driver in node(heed):
        begin = time.monotonic()
        assert leaving.give_back("head:6379", process.pid, patience_s=20.0 if given_back else 0.5) is given_back
        assert time.monotonic() - begin < 20
        assert told == ["head:6379"]
        assert Path(f"/proc/{driver}").exists()
        assert (worker in {p.pid for p in leaving.leftovers.descendants(process.pid)}) is not given_back


def test_a_node_without_runs_is_not_waited_for(told: list[str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert leaving.give_back("head:6379", process.pid)
        process.kill()
    assert told == []


def test_a_head_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "_DRAIN_PATIENCE_S", 0.2)
    begin = time.monotonic()
    leaving._drain("127.0.0.1:9")
    assert time.monotonic() - begin < 10
