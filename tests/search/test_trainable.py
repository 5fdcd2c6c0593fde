"""The worker's side without Ray: what an evaluation becomes, and what a run leaves when it is ended."""

from __future__ import annotations

import errno
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import ray

from search.assignment import Assignment, Pace, Report, Slot
from search.run_log import read_log
from search.states import FailureKind, RunState, Stage
from search.trainable import PreemptedError, Preemption, TrialWorker, to_point
from tasks.engine import checkpoint
from tasks.engine.folders import LocalFolder
from tasks.engine.protocol import Cost, Evaluation
from tasks.errors import CheckpointError, Diverged, UnreadableError

Metrics = Mapping[str, float]


class FakeRun:
    """Trains nothing; each epoch's metrics are given, or raised."""

    def __init__(self, epochs: list[Metrics | Exception]) -> None:
        self._epochs = epochs
        self.n_epochs = len(epochs)
        self.epoch = self.step = 0
        self.closed = False
        self.during_epoch: Callable[[], None] = lambda: None
        self.steps_run = ["eager"]
        self.times_described = 0

    @property
    def done(self) -> bool:
        return self.epoch >= self.n_epochs

    def advance(self) -> Evaluation:
        told = self._epochs[self.epoch]
        if isinstance(told, Exception):
            raise told
        self.during_epoch()
        self.epoch += 1
        self.step += 10
        return Evaluation(
            epoch=self.epoch, step=self.step, metrics=told, lr=0.1, samples_per_s=500.0, setup_s=0.4,
            held_bytes=7, device_bytes=70,
            cost=Cost(train_s=1.0, eval_s=0.1, optimizer_s=0.1, gpu_s=2.0),
        )  # fmt: skip

    def test(self) -> dict[str, float]:
        return {"test_accuracy": 0.4}

    @property
    def step_status(self) -> str:
        return self.steps_run[min(self.epoch, len(self.steps_run) - 1)]

    def environment(self) -> dict[str, Any]:
        self.times_described += 1
        return {"device": "cpu", "step": self.step_status}

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]

    def close(self) -> None:
        self.closed = True


def good(value: float) -> Metrics:
    return {"val_accuracy": value}


def assignment(**changes: Any) -> Assignment:
    values: dict[str, Any] = {
        "run_id": 1, "label": "sgdm", "trial_number": 0, "stage": Stage.SEARCH, "seed": 100, "attempt": 1,
        "task": {"name": "digits"}, "optimizer": "sgdm", "settings": {"lr": 0.1}, "metric": "val_accuracy",
        "direction": "maximize", "checkpoint_every_s": 0.0, "data_dir": None,
        "threads": 1, "cpus": 1.0, "gpus": 0.0,
    }  # fmt: skip
    return Assignment(**{**values, **changes})


class Workers:
    """Workers on one folder, each with a fake run; closed at the end."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.runs: list[FakeRun] = []
        self._monkeypatch = monkeypatch

    def start(self, *epochs: Metrics | Exception, **changes: Any) -> TrialWorker:
        self.runs.append(FakeRun(list(epochs)))
        self._monkeypatch.setattr("tasks.runs.open_run", lambda *_, **__: self.runs[-1])
        return TrialWorker(config=assignment(**{"checkpoint_dir": str(self.folder), **changes}).to_config())


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    return Workers(tmp_path / "run", monkeypatch)


def step(worker: TrialWorker) -> Report:
    report: Report = worker.train()["report"]
    return report


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"val_accuracy": math.nan}, "val_accuracy is nan at epoch 2; the objective must be a finite number"),
        ({"val_accuracy": math.inf}, "val_accuracy is inf at epoch 2"),
        ({"val_accuracy": -math.inf}, "val_accuracy is -inf at epoch 2"),
        ({"val_loss": 0.1}, "val_accuracy is missing at epoch 2"),
    ],
)
def test_without_a_finite_objective_a_run_fails_with_the_reason(
    workers: Workers, metrics: Metrics, reason: str
) -> None:
    """Ray Tune's own searcher leaves NaN RUNNING for ever, takes inf for the best, and aborts where it is missing."""
    worker = workers.start(good(0.5), metrics, good(0.9))
    assert step(worker).end is None
    end = step(worker).end
    assert end is not None
    assert (end.state, end.failure, end.value) == (RunState.FAIL, FailureKind.NO_METRIC, None)
    assert str(end.error).startswith(reason)


def test_a_further_objective_must_be_there_at_the_end(workers: Workers) -> None:
    first, last = {"val_accuracy": 0.5}, {"val_accuracy": 0.9, "latency_s": math.nan}
    worker = workers.start(first, last, reported=("latency_s",))
    assert step(worker).end is None  # it may come with a later epoch
    end = step(worker).end
    assert end is not None
    assert (end.state, end.failure) == (RunState.FAIL, FailureKind.NO_METRIC)
    assert str(end.error).startswith("latency_s is nan at epoch 2; the objective must be a finite number")
    folder = str(workers.folder / "other")
    worker = workers.start(first, {**last, "latency_s": 0.1}, reported=("latency_s",), checkpoint_dir=folder)
    step(worker)
    end = step(worker).end
    assert end is not None
    assert (end.state, end.value) == (RunState.COMPLETE, 0.9)


def test_an_undefined_metric_ends_a_run_at_its_last_epoch_alone(workers: Workers) -> None:
    """A model that predicts one class has no correlation yet; a later epoch may bring one."""
    undefined = {"val_mcc": math.nan, "val_accuracy": 0.5}
    task = {"name": "cola", "model": "tiny"}
    worker = workers.start(undefined, {"val_mcc": 0.3}, task=task, metric="val_mcc")
    assert step(worker).end is None
    end = step(worker).end
    assert end is not None
    assert (end.state, end.value) == (RunState.COMPLETE, 0.3)
    other = str(workers.folder / "other")
    worker = workers.start({"val_mcc": 0.3}, undefined, task=task, metric="val_mcc", checkpoint_dir=other)
    step(worker)
    end = step(worker).end
    assert end is not None
    assert (end.state, end.failure) == (RunState.FAIL, FailureKind.NO_METRIC)
    assert "val_mcc is undefined (all labels are of one class) at epoch 2" in str(end.error)


def test_divergence_keeps_what_was_trained_before(workers: Workers) -> None:
    worker = workers.start(good(0.5), Diverged(20, loss=math.nan))
    assert [p.value for p in step(worker).points] == [0.5]
    report = step(worker)
    assert report.points == []
    assert report.end is not None
    assert report.end.failure is FailureKind.DIVERGED


def test_the_end_is_the_last_value_and_only_confirm_runs_are_tested(workers: Workers) -> None:
    for stage, test in ((Stage.SEARCH, {}), (Stage.CONFIRM, {"test_accuracy": 0.4})):
        worker = workers.start(good(0.9), good(0.7), stage=stage, checkpoint_dir=str(workers.folder / stage))
        assert step(worker).end is None
        end = step(worker).end
        assert end is not None
        assert (end.state, end.value, end.test_metrics) == (RunState.COMPLETE, 0.7, test)


def test_the_next_attempt_goes_on_and_tells_the_curve_so_far(workers: Workers) -> None:
    first = workers.start(good(0.1), good(0.2), good(0.3))
    start = step(first).start
    assert start is not None
    assert (start.node, start.device, start.resumed_from_epoch) == ("127.0.0.1", "cpu", 0)
    step(first)
    second = workers.start(good(0.1), good(0.2), good(0.3), attempt=2)
    report = step(second)
    assert report.start is not None
    assert report.start.resumed_from_epoch == 2
    assert [(p.epoch, p.step, p.value) for p in report.points] == [(1, 10, 0.1), (2, 20, 0.2), (3, 30, 0.3)]
    assert report.end is not None


def test_a_run_stopped_between_evaluations_leaves_a_checkpoint(workers: Workers) -> None:
    worker = workers.start(good(0.1), good(0.2), good(0.3), checkpoint_every_s=3600.0)
    step(worker)
    step(worker)
    assert checkpoint.load_latest(workers.folder) is None  # none was due
    worker.stop()
    state = checkpoint.load_latest(workers.folder)
    assert state is not None
    assert state["run"]["epoch"] == 2
    assert workers.runs[0].closed


def test_the_best_weights_are_those_of_the_best_evaluation_that_was_saved(workers: Workers) -> None:
    values = [0.3, 0.5, 0.4, 0.6]
    first = workers.start(*map(good, values))
    kept = []
    for _ in range(3):
        step(first)
        kept.append(best_epoch(workers.folder))
    second = workers.start(*map(good, values), attempt=2)  # knows from the checkpoint what was saved before
    assert best_epoch(workers.folder) == 2
    step(second)
    assert [*kept, best_epoch(workers.folder)] == [1, 2, 2, 4]


def test_whatever_is_saved_leaves_weights_to_start_from(workers: Workers) -> None:
    """The best evaluation came before a checkpoint was due: the last one's weights stay, rather than none."""
    worker = workers.start(good(0.9), good(0.7), checkpoint_every_s=3600.0, stage=Stage.CONFIRM)
    step(worker)
    step(worker)
    assert best_epoch(workers.folder) == 2


def best_epoch(folder: Path) -> int:
    """Of the fake run whose state was saved as the best."""
    return int(checkpoint.load(folder / "best.pt")["run"]["epoch"])


@pytest.mark.parametrize("fault", ["torn", "another run's"])
def test_a_checkpoint_that_cannot_be_used_is_dropped_and_the_run_starts_over(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """After a restore of the database a run may find the place of one that the backup does not know."""
    first = workers.start(good(0.1), good(0.9), good(0.3))
    step(first)
    step(first)
    with monkeypatch.context() as patch:
        if fault == "torn":
            path = workers.folder / "epoch-000002.pt"
            path.write_bytes(path.read_bytes()[:-9])
            reason = "is damaged"
        else:
            reason = "the checkpoint is of another run: its params is '1', this run's is '2'"
            patch.setattr(FakeRun, "load_state_dict", refusing(CheckpointError(reason)))
        report = step(workers.start(good(0.1), good(0.2), good(0.3), attempt=2))
    assert [p.epoch for p in report.points] == [1]
    assert report.start is not None
    assert report.start.resumed_from_epoch == 0
    assert report.start.environment["checkpoint_error"].startswith("started from the beginning: ")
    assert reason in report.start.environment["checkpoint_error"]
    assert reason in read_log(str(workers.folder), 2, whole=True).text
    assert sorted(path.name for path in workers.folder.glob("*.pt")) == ["best.pt", "epoch-000001.pt"]
    assert checkpoint.load(workers.folder / "best.pt")["run"]["epoch"] == 1
    third = step(workers.start(good(0.1), good(0.2), good(0.3), attempt=3))
    assert third.start is not None
    assert third.start.resumed_from_epoch == 1


def refusing(error: Exception) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise error

    return refuse


def test_a_storage_that_is_away_is_no_reason_to_start_over(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    step(workers.start(good(0.1), good(0.2)))
    worker = workers.start(good(0.1), good(0.2), attempt=2)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "read", refusing(OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(UnreadableError, match="cannot be read: Input/output error"):
            worker.train()
    worker.stop()
    start = step(workers.start(good(0.1), good(0.2), attempt=3)).start
    assert start is not None
    assert start.resumed_from_epoch == 1


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = workers.start(good(0.1), good(0.2), good(0.3))
    step(worker)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _no_space)
        report = step(worker)
    assert [p.epoch for p in report.points] == [2]
    assert report.start is not None
    assert "of epoch 2 (0.0 MiB) could not be written" in report.start.environment["checkpoint_error"]
    assert "No space left on device; make room" in report.start.environment["checkpoint_error"]
    state = checkpoint.load_latest(workers.folder)
    assert state is not None
    assert state["run"]["epoch"] == 1  # the one before is whole
    last = step(worker)
    assert (last.start, last.end is None) == (None, False)
    assert "no checkpoint: " in read_log(str(workers.folder), 1, whole=True).text


def test_the_record_tells_how_steps_came_to_run(workers: Workers) -> None:
    """Steps are captured while they are made, and a width of text that comes late may be the first that cannot be."""
    worker = workers.start(good(0.1), good(0.2), good(0.3))
    workers.runs[0].steps_run = ["graph: not captured yet", "graph: 1 shape(s)", "graph: 1 shape(s)", "eager: refused"]
    told = [step(worker).start for _ in range(3)]
    steps = [None if start is None else start.environment["step"] for start in told]
    assert steps == ["graph: 1 shape(s)", None, "eager: refused"]
    assert workers.runs[0].times_described == 1  # the commit, the versions and the card are as they were


def _no_space(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_told_to_stop_it_ends_the_epoch_saves_and_gives_the_run_back(workers: Workers) -> None:
    worker = workers.start(good(0.1), good(0.2), good(0.3), checkpoint_every_s=3600.0)
    step(worker)
    workers.runs[0].during_epoch = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(PreemptedError, match=r"told to stop \(SIGTERM\); the run continues elsewhere from epoch 2"):
        worker.train()
    worker.stop()
    again = step(workers.start(good(0.1), good(0.2), good(0.3), attempt=2))
    assert [p.epoch for p in again.points] == [1, 2, 3]
    assert again.start is not None
    assert again.start.resumed_from_epoch == 2


def test_an_epoch_beyond_the_grace_period_is_interrupted(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    def hang() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        ended.append("by itself")

    monkeypatch.setattr("search.trainable.Preemption", lambda: Preemption(grace_s=0.1))
    worker = workers.start(good(0.1), good(0.2))
    step(worker)
    workers.runs[0].during_epoch = hang
    with pytest.raises(PreemptedError, match=r"took longer than the 0\.1 s left"):
        worker.train()
    assert not ended
    worker.stop()
    state = checkpoint.load_latest(workers.folder)
    assert state is not None
    assert state["run"]["epoch"] == 1


def test_a_run_whose_cohorts_process_ended_was_preempted_if_its_worker_is_told_to_stop_too(workers: Workers) -> None:
    """A machine that is taken away ends both. A process that died alone is lost, and so is its run's attempt."""

    class Ended(FakeRun):
        def advance(self) -> Evaluation:
            if self.epoch == 1:
                self.during_epoch()
                raise ray.exceptions.ActorDiedError
            return super().advance()

    words = r"told to stop \(SIGTERM\), and so was its cohort's process, which has ended"
    for told_to_stop, error, match in (
        (True, PreemptedError, words),
        (False, ray.exceptions.RayActorError, "actor died"),
    ):
        worker = workers.start()
        workers.runs[-1] = run = Ended([good(0.1), good(0.2)])
        step(worker)
        if told_to_stop:
            run.during_epoch = lambda: os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(error, match=match):
            worker.train()
        worker.stop()
        assert run.closed
        state = checkpoint.load_latest(workers.folder)
        assert state is not None
        assert state["run"]["epoch"] == 1
        shutil.rmtree(workers.folder)


def test_a_run_at_its_end_is_not_given_back(workers: Workers) -> None:
    worker = workers.start(good(0.1))
    workers.runs[0].during_epoch = lambda: os.kill(os.getpid(), signal.SIGTERM)
    assert step(worker).end is not None
    before = signal.getsignal(signal.SIGTERM)
    worker.stop()
    assert signal.getsignal(signal.SIGTERM) != before  # whoever had it has it again


def test_a_run_without_a_checkpoint_needs_no_torch() -> None:
    code = "import sys, search.trainable as t; t._last_state('/nowhere'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_reused_worker_gives_back_what_the_run_before_held(workers: Workers) -> None:
    worker = workers.start(good(0.1), good(0.2))
    step(worker)
    first = workers.runs[0]
    config = assignment(checkpoint_dir=str(workers.folder / "next"), run_id=2).to_config()
    assert worker.reset(config)
    assert first.closed


def test_a_share_of_a_card_is_charged_as_a_share() -> None:
    run = FakeRun([good(0.1)])
    assert to_point(run.advance(), metric="val_accuracy", gpus=0.25).cost.gpu_s == 0.5


def test_a_run_that_shares_a_card_says_how_fast_it_trains(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is charged its share, whatever part of the card Ray reserves for it, and leaves room for those beside it."""
    shares: list[float] = []
    monkeypatch.setattr("search.trainable._own_card", lambda: "node/0")
    monkeypatch.setattr("search.trainable._share_card", lambda share: shares.append(share) or "")
    slot = Slot(kind="", reserved=0.0625, share=0.5, n_beside=4, reason="2 trials a card, growing")
    worker = workers.start(good(0.1), good(0.2), gpus=0.0625, slot=slot, placement=slot.reason)
    report = step(worker)
    pace = Pace(card="node/0", samples_per_s=500.0, train_s=0.6, eval_s=0.1, memory_bytes=7, card_bytes=70)
    assert report.pace == pace
    assert report.points[0].cost.gpu_s == 1.0
    assert report.start is not None
    assert (report.start.environment["gpus"], report.start.environment["placement"]) == (0.5, slot.reason)
    assert shares == [0.25]
    alone = workers.start(good(0.1), good(0.2), gpus=1.0)
    assert step(alone).pace is None
