"""Folders built once a node: one builder, the others wait; a failure leaves nothing; a cache that cannot be written."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.data.find import build_once, cache_root
from tasks.errors import DataError
from tests.machine import PATIENCE_S

BUILDER = """
import sys, time
from pathlib import Path
from tasks.data.find import build_once

def build(folder):
    with open(sys.argv[1], "a") as log:
        log.write("built\\n")
    time.sleep(0.5)
    (folder / "content").write_text("whole")

print((build_once("things", "key", build) / "content").read_text())
"""


def test_processes_that_ask_at_once_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = [sys.executable, "-c", BUILDER, str(log)]
    processes = [subprocess.Popen(program, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=PATIENCE_S)[0] for process in processes] == ["whole\n"] * 4
    assert log.read_text() == "built\n"


def test_a_failure_leaves_nothing_and_the_next_one_tries_again() -> None:
    def torn(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise DataError("no network")

    with pytest.raises(DataError, match="no network"):
        build_once("things", "key", torn)
    assert [path.name for path in (cache_root() / "things").iterdir()] == ["key.lock"]
    build_once("things", "key", lambda folder: None)
    build_once("things", "key", torn)  # is there already


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written.*set XDG_CACHE_HOME"):
        build_once("things", "key", lambda folder: None)


def test_a_full_disk_is_told_with_the_folder() -> None:
    def fill(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DataError, match=r"cache folder .*/things has no room \(No space left on device\); make room"):
        build_once("things", "a", fill)
    assert not list((cache_root() / "things").glob(".a-*"))
