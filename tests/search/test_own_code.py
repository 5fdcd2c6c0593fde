"""Own training code on a worker: killed and resumed, ended early, failing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from search.assignment import Report
from search.run_log import read_log
from search.states import FailureKind, RunState, Stage
from search.trainable import PreemptedError, Preemption, TrialWorker
from tasks.errors import OwnCodeError
from tests.search.test_trainable import assignment
from tests.tasks.own import functions


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")


def config(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """A worker's configuration for one of `tests.tasks.own.functions`."""
    task = {"name": "python", "run": f"tests.tasks.own.functions:{name}", "epochs": 4, "schedule": {"name": "cosine"}}
    values = {"task": task, "metric": "val_loss", "direction": "minimize", "checkpoint_dir": str(folder)}
    return assignment(**{**values, **changes}).to_config()


def step(worker: TrialWorker) -> Report:
    report: Report = worker.train()["report"]
    return report


def steps(worker: TrialWorker) -> list[Report]:
    found = [step(worker)]
    while found[-1].end is None:
        found.append(step(worker))
    worker.stop()
    return found


def values(reports: list[Report]) -> dict[int, float | None]:
    return {point.epoch: point.value for report in reports for point in report.points}


KILLED = """
import os, sys
import ray.util
from search.trainable import TrialWorker
from tests.search.test_own_code import config, step
from pathlib import Path

ray.util.get_node_ip_address = lambda: "127.0.0.1"
worker = TrialWorker(config=config(Path(sys.argv[1]), sys.argv[2]))
for _ in range(3):
    step(worker)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("name", "resumed_from"), [("line", 3), ("reports", 2), ("forgets", 0)])
def test_a_killed_worker_costs_what_was_trained_since_the_last_save(
    tmp_path: Path, name: str, resumed_from: int
) -> None:
    """By `resume` each epoch is kept, by `save` each that it was called in; without either the run begins anew."""
    whole = values(steps(TrialWorker(config=config(tmp_path / "whole", name))))
    assert list(whole) == [1, 2, 3, 4]
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "killed"), name], check=False)
    assert done.returncode == -9
    reports = steps(TrialWorker(config=config(tmp_path / "killed", name, attempt=2)))
    assert reports[0].start is not None
    assert reports[0].start.resumed_from_epoch == resumed_from
    assert len(reports) == 4 - resumed_from
    assert values(reports) == whole
    assert [point.epoch for report in reports for point in report.points] == [1, 2, 3, 4]


def test_a_worker_that_is_told_to_stop_ends_code_within_a_long_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal reaches the worker while it waits for the code's thread, which sees `ctx.stop`."""
    functions.told.clear()
    monkeypatch.setattr("search.trainable.Preemption", lambda: Preemption(grace_s=0.1))
    worker = TrialWorker(config=config(tmp_path, "preempted"))
    step(worker)
    with pytest.raises(PreemptedError, match=r"took longer than the 0\.1 s left"):
        step(worker)
    worker.stop()
    assert functions.told == ["long", "stopped"]
    reports = steps(TrialWorker(config=config(tmp_path, "preempted", attempt=2)))
    assert reports[0].start is not None
    assert reports[0].start.resumed_from_epoch == 1
    assert values(reports) == {1: 1.0, 2: 0.5, 3: 1 / 3, 4: 0.25}


def test_the_best_checkpoint_has_the_model(tmp_path: Path) -> None:
    from tasks.engine.checkpoint import load

    steps(TrialWorker(config=config(tmp_path, "line")))
    assert set(load(tmp_path / "best.pt")["model"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_code_that_ends_early_is_complete_with_its_last_value(tmp_path: Path) -> None:
    reports = steps(TrialWorker(config=config(tmp_path, "ends_early")))
    end = reports[-1].end
    assert end is not None
    assert (end.state, end.value, reports[-1].points) == (RunState.COMPLETE, 0.5, [])
    assert list(values(reports)) == [1, 2]


def test_a_confirm_run_has_the_codes_test_results(tmp_path: Path) -> None:
    (*_, last) = steps(TrialWorker(config=config(tmp_path, "line", stage=Stage.CONFIRM)))
    assert last.end is not None
    assert last.end.test_metrics == {"test_loss": last.end.value}


def test_failing_code_is_told_with_its_lines_and_traced_in_the_log(tmp_path: Path) -> None:
    worker = TrialWorker(config=config(tmp_path, "raises"))
    assert step(worker).end is None
    with pytest.raises(OwnCodeError, match=r"mat1 and mat2 .* in raises; functions\.py, line \d+, in bad_shapes"):
        step(worker)
    log = read_log(str(tmp_path), 1, whole=True).text
    assert 'functions.py", line' in log
    assert "return float((torch.ones(2, 3) @ torch.ones(2, 3)).sum())" in log
    worker.stop()


def test_a_metric_that_the_code_does_not_report_is_told(tmp_path: Path) -> None:
    end = step(TrialWorker(config=config(tmp_path, "tells_another_metric"))).end
    assert end is not None
    assert (end.state, end.failure) == (RunState.FAIL, FailureKind.NO_METRIC)
    assert str(end.error).startswith("val_loss is missing at epoch 1; ")
    assert str(end.error).endswith("; the run reported val_accuracy")


def test_a_loss_that_is_not_finite_is_a_result(tmp_path: Path) -> None:
    end = steps(TrialWorker(config=config(tmp_path, "diverges", metric="val_accuracy")))[-1].end
    assert end is not None
    assert (end.failure, end.error) == (FailureKind.DIVERGED, "diverged at step 2: val_loss is nan")
