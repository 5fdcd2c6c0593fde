"""Joining NVIDIA's multi-process service, with a stand-in for its control program."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tasks.engine import sharing


def write_refusing_control(folder: Path, *, reason: str) -> None:
    """Write a control program that starts no service into a folder, and tells why."""
    program = folder / sharing.CONTROL
    program.write_text(f"#!/bin/sh\necho {reason}\nexit 1\n")
    program.chmod(0o755)


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control program that notes how it is called; it runs once -d was given."""
    program = tmp_path / "bin" / sharing.CONTROL
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'log={tmp_path}/calls; up="$CUDA_MPS_PIPE_DIRECTORY/up"\n'
        'if [ "$1" = "-d" ]; then echo "start on:$CUDA_VISIBLE_DEVICES" >> $log; touch "$up"; exit 0; fi\n'
        'read command; echo "$command" >> $log\n'
        'if [ ! -f "$up" ]; then echo "Cannot find MPS control daemon process"; exit 1; fi\n'
        'if [ "$command" = quit ]; then rm "$up"; fi\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "calls"


def test_started_once_and_stopped(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # as Ray sets it for the worker that comes first
    first: dict[str, str] = {}
    second: dict[str, str] = {}
    assert sharing.join(first, share=0.125) == ""
    assert sharing.join(second, share=0.125) == ""
    assert first == second
    assert first["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert first["CUDA_MPS_PIPE_DIRECTORY"] == str(sharing.pipe_folder())
    assert control.read_text().count("start on:\n") == 1
    sharing.leave()
    assert control.read_text().split()[-1] == "quit"


def test_without_the_program_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    environment: dict[str, str] = {}
    assert sharing.join(environment, share=0.5) == "nvidia-cuda-mps-control is not installed"
    assert environment == {}


@pytest.mark.usefixtures("control")
def test_a_failed_start_is_told(tmp_path: Path) -> None:
    write_refusing_control(tmp_path / "bin", reason="no such device")
    assert "did not start (no such device)" in sharing.join({}, share=0.5)


@pytest.mark.parametrize(("share", "percent"), [(1.0, 100), (0.5, 100), (0.3, 60), (0.25, 50), (0.125, 25), (0.01, 25)])
def test_a_process_may_use_twice_its_share(share: float, percent: int) -> None:
    assert sharing.active_percent(share) == percent
