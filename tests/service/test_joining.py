"""`admeta worker` before it is a part of its cluster: what it tells, and what it waits for."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service import joining
from service.joining import JoinError


@pytest.fixture
def ray_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ray's command replaced: `health-check` prints and exits as told, `start` notes that it was called and waits."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setattr(joining, "_PAUSE_S", 0.05)

    def say(text: str, code: int) -> Path:
        started = tmp_path / "started"
        script = tmp_path / "ray.py"
        script.write_text(
            "import pathlib, sys, time\n"
            "if sys.argv[1] == 'health-check':\n"
            f"    sys.stderr.write({text!r}); sys.exit({code})\n"
            f"pathlib.Path({str(started)!r}).write_text(' '.join(sys.argv[1:])); time.sleep(60)\n"
        )
        monkeypatch.setattr(joining, "_RAY", (sys.executable, str(script)))
        return started

    return say


@pytest.fixture
def address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def stop_when(condition: Any) -> None:
    """SIGTERM to this process as soon as it holds."""

    def watch() -> None:
        deadline = time.monotonic() + 30
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def test_another_clusters_token_is_told_before_a_node_starts(ray_says: Any, address: str) -> None:
    started = ray_says("Traceback …\nRPC error: InvalidAuthToken: Authentication token is missing or incorrect", 1)
    with pytest.raises(JoinError, match=f"the cluster at {address} does not know this machine's token") as told:
        joining.work(address, cpus=None, gpus=None)
    assert "RAY_AUTH_TOKEN_PATH" in told.value.hint
    assert not started.exists()


def test_what_ray_says_otherwise_is_left_to_the_node(
    ray_says: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining.leaving, "give_back", lambda _address, _node: True)
    started = ray_says("something else", 1)
    stop_when(started.exists)
    assert joining.work(address, cpus=2, gpus=0) == 0
    assert started.read_text() == f"start --address={address} --block --disable-usage-stats --num-cpus=2 --num-gpus=0"


def test_a_head_that_is_not_there_yet_is_waited_for(ray_says: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As a machine does that starts before its cluster, or is cut off from it."""
    started = ray_says("", 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
    with caplog.at_level(logging.WARNING):
        stop_when(lambda: caplog.text.count(f"nothing answers at {silent}") > joining.MAX_FAILURES + 1)
        assert joining.work(silent, cpus=None, gpus=None) == 0
    assert not started.exists()
