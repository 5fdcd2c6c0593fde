"""Ending processes: a raylet's children only, and never another process under an old number."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from service.ray.node import RAY_FOLDER, embedded_ray, end_processes, orphans
from tests.machine import PATIENCE_S

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc (Linux)")
SPAWN = "sleep 60 & echo $!; wait"


def test_a_raylet_and_its_children_are_found_and_ended(tmp_path: Path) -> None:
    shell = tmp_path / "raylet"  # the name is what tells a raylet
    shutil.copy("/bin/sh", shell)
    other = subprocess.Popen(["/bin/sleep", "60"])
    raylet = subprocess.Popen([str(shell), "-c", SPAWN], stdout=subprocess.PIPE, text=True)
    assert raylet.stdout is not None
    child = int(raylet.stdout.readline())

    family = embedded_ray()
    assert {process.pid for process in family} == {raylet.pid, child}
    end_processes(family)
    assert not psutil.pid_exists(raylet.pid)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert other.poll() is None
    other.kill()
    other.wait()


def test_what_a_dead_raylet_left_is_found_with_its_children(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    left: dict[Path, list[subprocess.Popen[str]]] = {ours: [], theirs: []}
    for folder, name in ((ours, "ray::TrialWorker"), (ours, "nvidia-cuda-mps-control"), (theirs, "ray::TrialWorker")):
        command = [name, "-c", SPAWN]
        environment = {**os.environ, RAY_FOLDER: str(folder)}
        started = subprocess.Popen(command, executable="/bin/sh", env=environment, stdout=subprocess.PIPE, text=True)
        left[folder].append(started)
    worker, other = left[ours]
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    assert {process.pid for process in orphans(ours)} == {worker.pid, child}
    assert embedded_ray() == set()
    end_processes([psutil.Process(one.pid) for one in (worker, other, *left[theirs])])
    assert orphans(ours) == set()
    psutil.Process(child).kill()
    for one in (worker, other, *left[theirs]):
        one.wait()


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    stubborn = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    end_processes([psutil.Process(stubborn.pid)], timeout_s=0.3)
    assert stubborn.wait(timeout=PATIENCE_S) == -9


def test_another_process_under_the_same_number_is_left_alone() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        earlier = psutil.Process(other.pid)
        earlier._ident = (other.pid, 1.0)  # as of a process that started long before
        end_processes([earlier])
        assert other.poll() is None
        other.kill()
    assert embedded_ray() == set()
