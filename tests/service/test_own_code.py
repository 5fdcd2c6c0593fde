"""Own code as a user of docs/own-code.md has it: written, served, submitted, edited, killed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from admeta.client import Client
from tests.machine import PATIENCE_S, wait_until
from tests.search import test_optimizer_docs as optimizer_docs
from tests.service.test_end_to_end import Served
from tests.tasks.own.test_docs import LISTINGS

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NEW, SERVE, SUBMIT = [
    shlex.split(line, comments=True)
    for kind, text in LISTINGS
    if kind == "sh"
    for line in text.splitlines()
    if line.startswith("admeta")
]


def admeta(line: list[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "admeta.cli", *line[1:]]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own")
    assert admeta(NEW, made).returncode == 0
    return made


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    service = Served(tmp_path_factory.mktemp("home"), *SERVE[2:], cwd=folder)
    yield service
    service.stop()


def study(name: str, **task: Any) -> dict[str, Any]:
    """A study of one trial of the written function."""
    values = {"name": "python", "run": "spirals:train", "epochs": 2, "settings": {"width": 8}}
    return {
        "name": name,
        "task": {**values, **task},
        "objective": {"metric": "val_accuracy", "direction": "maximize"},
        "optimizers": [{"name": "adamw"}],
        "budget": {"trials_per_optimizer": 1},
        "confirm": {"top_k": 0},
        "resources": {"cpus": 1, "gpus": 0},
        "checkpoint_every_s": 0,
        "max_failures": 1,
    }


def test_the_lines_of_the_page_work(served: Served, folder: Path) -> None:
    done = admeta(SUBMIT, folder, ADMETA_URL=served.url)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^adam(w|etar) +0\.\d+ ± \d", done.stdout, flags=re.MULTILINE), done.stdout
    with Client(served.url) as client:
        comparison = client.comparison("spirals")
        assert all(row.validation.n == 3 and row.test.mean is not None for row in comparison.rows)
        environment = client.run(next(iter(client.runs("spirals"))).id).attempts[0].environment
        assert environment is not None
        assert environment["run"] == "spirals:train"


def test_an_edited_function_counts_from_the_next_study_on(served: Served, folder: Path) -> None:
    """Without a restart: Ray sends the folder as it is when a study's driver starts. A fault is told with its line."""
    text = (folder / "spirals.py").read_text()
    (folder / "spirals.py").write_text(text.replace("loss.backward()", "loss.backwards()"))
    with Client(served.url) as client:
        client.submit(study("edited")).wait(timeout_s=PATIENCE_S)
        (run,) = client.runs("edited")
        assert (run.state, run.failure) == ("FAIL", "error")
        assert re.search(r"no attribute 'backwards' \(spirals\.py, line \d+, in train\)", str(run.error)), run.error
        (folder / "spirals.py").write_text("def train(ctx:\n")
        broken = client.submit(study("broken")).wait(timeout_s=PATIENCE_S)
        assert broken.state == "FAILED"
        assert "'spirals:train' cannot be imported: SyntaxError" in str(broken.reason)
        (folder / "spirals.py").write_text(text)


def test_a_killed_worker_goes_on_from_its_last_checkpoint(served: Served, folder: Path) -> None:
    """The function was edited again, and is whole after the fault of the test before."""
    text = (folder / "spirals.py").read_text()
    slow = text.replace("        for points, label", "        __import__('time').sleep(0.4)\n        for points, label")
    (folder / "spirals.py").write_text(slow)
    with Client(served.url) as client:
        submission = client.submit(study("killed", epochs=10))
        wait_until(lambda: any(run.epoch >= 3 for run in client.runs("killed")), what="three epochs are done")
        (begun,) = client.runs("killed")
        log = client.logs(begun.id).text
        os.kill(int(re.findall(r", process (\d+), cpu; from epoch 0", log)[0]), signal.SIGKILL)
        assert submission.wait(timeout_s=PATIENCE_S).state == "COMPLETED"
        run = client.run(begun.id)
        assert (run.state, run.epoch, len(run.attempts)) == ("COMPLETE", 10, 2)
        assert (run.attempts[1].resumed_from_epoch or 0) >= 3
        assert [point.epoch for point in client.curve(run.id)] == list(range(1, 11))
    (folder / "spirals.py").write_text(text)


def test_an_optimizer_of_ones_own_trains_with_another_for_the_others(served: Served, folder: Path) -> None:
    text = (folder / "spirals.py").read_text()
    (own,) = [text for text in optimizer_docs.PYTHON if text.startswith("# sign_descent.py")]
    broken = own.replace("SignDescent", "Broken").replace("average.lerp_(p.grad", "average.lerp_(p.gradient")
    (folder / "spirals.py").write_text(f"{text}\n\n{own}\n\n{broken}")
    space = {"lr": {"type": "float", "low": 1e-4, "high": 1e-3, "log": True}}
    mine = {"name": "spirals:SignDescent", "space": space, "roles": {"others": "adamw"}}
    with Client(served.url) as client:
        digits = {"name": "digits", "epochs": 1}
        rest = {**study("mine"), "task": digits, "objective": {"metric": "val_accuracy", "direction": "maximize"}}
        assert client.submit({**rest, "optimizers": [mine]}).wait(timeout_s=PATIENCE_S).state == "COMPLETED"
        (run,) = client.runs("mine")
        assert (run.label, run.optimizer, run.state) == ("SignDescent-adamw", "spirals:SignDescent+adamw", "COMPLETE")
        best = client.best(task="digits", optimizer="spirals:SignDescent+adamw")
        assert best.settings.keys() >= {"lr", "others.lr"}
        assert "from spirals import SignDescent" in best.code
        failing = {**mine, "name": "spirals:Broken"}
        failed = client.submit({**rest, "name": "fails", "optimizers": [failing]}).wait(timeout_s=PATIENCE_S)
        assert failed.state == "FAILED"
        assert "optimizer 'Broken-adamw' (spirals:Broken+adamw) cannot train convnet: AttributeError" in str(
            failed.reason
        )
    (folder / "spirals.py").write_text(text)
