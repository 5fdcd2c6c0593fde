"""A run's log: whatever the process prints is there, also after SIGKILL; its length is bounded, offsets go on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from search import run_log
from search.run_log import Excerpt, RunLog, excerpt, log_file, logged_attempts, read_log, start_log
from tasks.engine.folders import LocalFolder
from tests.machine import PATIENCE_S

PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from search.run_log import RunLog
print("before")
log = RunLog(Path(sys.argv[1]))
try:
    with log.capturing():
        print("by Python")
        print("an error's text", file=sys.stderr)
        os.write(1, b"by C\\n")
        subprocess.run(["echo", "by a child"], check=True)
        {end}
except ValueError:
    print("after")
"""


def read(path: Path, *, offset: int = 0, tail: int | None = None, whole: bool) -> Excerpt:
    return excerpt(path.read_bytes(), offset=offset, tail=tail, whole=whole)


def _run(path: Path, end: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(end=end)
    return subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=PATIENCE_S)


def test_everything_printed_is_captured(tmp_path: Path) -> None:
    path = log_file(tmp_path / "run", 2)
    done = _run(path, "raise ValueError('no such metric')")
    assert (done.stdout, done.stderr) == ("before\nafter\n", "")
    text = read(path, whole=True).text
    assert text.startswith("by Python\nan error's text\nby C\nby a child\nTraceback (most recent call last)")
    assert text.endswith("ValueError: no such metric\n")
    assert read_log(str(tmp_path / "run"), 2, whole=True).text == text
    assert logged_attempts(str(tmp_path / "run")) == [2]
    assert logged_attempts(str(tmp_path / "other")) == []
    with pytest.raises(FileNotFoundError):
        read_log(str(tmp_path / "run"), 3, whole=True)


def test_a_killed_process_leaves_what_it_printed(tmp_path: Path) -> None:
    done = _run(tmp_path / "log", "os.kill(os.getpid(), 9)")
    assert done.returncode == -signal.SIGKILL
    assert read(tmp_path / "log", whole=True).text.endswith("by a child\n")


def test_long_logs_keep_their_tail_and_offsets_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "KEEP_BYTES", 1000)
    monkeypatch.setattr(run_log, "CUT_AT_BYTES", 2000)
    log, path = RunLog(tmp_path / "log"), tmp_path / "log"
    said = [f"line {i:06d}\n" for i in range(500)]
    for line in said:
        log._write(line)
        log.cut()
        assert path.stat().st_size <= 2000
    whole = "".join(said)
    kept = read(path, whole=True)
    assert len(kept.text) > 900
    assert (kept.text, kept.end) == (whole[kept.start :], len(whole))
    assert kept.text.startswith("line ")
    assert read(path, offset=kept.end, whole=True).text == ""
    log.close()
    again = RunLog(path)  # the same attempt, in another process
    again._write("more\n")
    again.close()
    assert read(path, offset=kept.end, whole=True).text == "more\n"


def test_parts(tmp_path: Path) -> None:
    log, path = RunLog(tmp_path / "log"), tmp_path / "log"
    log._write("one\nzwei ü\nthr")
    first = read(path, whole=False)
    assert (first.text, first.start, first.end) == ("one\nzwei ü\n", 0, 12)
    log._write("ee\n")
    assert read(path, offset=first.end, whole=False).text == "three\n"
    assert read(path, tail=2, whole=False).text == "zwei ü\nthree\n"
    assert read(path, tail=2, whole=False).start == 4
    assert [read(path, tail=n, whole=False).text for n in (0, 9)] == ["", "one\nzwei ü\nthree\n"]
    log._write("12 %\r15 %")
    assert read(path, offset=18, whole=False).text == "12 %\r"  # a progress bar
    assert read(path, offset=18, whole=True).text == "12 %\r15 %"
    assert read(path, offset=10**6, whole=True).text == ""
    log.close()


def test_a_folder_that_cannot_be_written_costs_the_log_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    log = RunLog(tmp_path / "file" / "log")
    with log.capturing():
        log.say("nobody hears it")
    log.close()
    assert "log cannot be written: " in capsys.readouterr().err


def test_where_the_folder_is_an_address_the_log_is_copied_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = tmp_path / "bucket"
    monkeypatch.setattr(run_log, "open_folder", lambda address: LocalFolder(bucket / address.removeprefix("s3://")))
    address = "s3://runs/search-0"
    log = start_log(address, 1)
    beside = log._path
    log.say("one")
    log.publish()
    log.say("two")
    log.publish()  # not again so soon
    assert read_log(address, 1, whole=True).text.endswith(" one\n")
    log.close()
    assert read_log(address, 1, whole=True).text.endswith(" two\n")
    assert logged_attempts(address) == [1]
    assert not beside.exists()
    log.close()
