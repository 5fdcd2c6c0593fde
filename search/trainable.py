"""The worker's side: one Ray actor that executes runs, one after the other.

It does what Tune asks of its workers and imports nothing of Tune, a second's work for each process.

A step is one epoch and its evaluation. Checkpoints are this class's own and not Tune's: whatever ended an attempt
(an exception, the worker, the node, the driver, the whole cluster), the next one finds its run's last checkpoint in
the same folder and continues from there.

A preempted worker gets SIGTERM, as spot capacity, `docker stop` and Kubernetes send it before they end a machine. An
epoch that ends within the grace period is saved. A longer one is interrupted, and its run continues from its last
checkpoint on another worker. Both happen within 30 s.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import ray

from search import shared_trainer
from search.assignment import Assignment, Curve, Pace, Report
from search.records import AttemptStart, Point, RunOutcome
from search.run_log import start_log
from search.states import Direction, FailureKind, RunState, Stage
from tasks.config import TaskConfig
from tasks.engine.folders import find_checkpoints, find_unneeded, open_folder
from tasks.engine.protocol import Evaluation, Run
from tasks.errors import CheckpointError, Diverged, EndedEarly, NanFromAnotherRun, UnreadableError
from tasks.registry import explain_undefined, why_not_side_by_side

GRACE_S = 15.0
"""For the current epoch. Machines are ended 30 s after the signal or later, and saving takes time too."""
WORKER_ENVIRONMENT = {
    "PL_DISABLE_FORK": "1",  # Tune's own default, for a fault of Ray with Lightning's forks
}


class TrialWorker:
    """Executes the assignment in its config; the process is used again for the next one by `reset`."""

    def __init__(self, config: dict[str, Any]) -> None:
        os.environ.update(WORKER_ENVIRONMENT)
        self._run: Run | None = None
        self._unsaved = False
        self._take_up(config)

    def reset(self, config: dict[str, Any]) -> bool:
        """Take up another assignment; True, by which Tune knows that the process can be used again."""
        self._close()
        self._take_up(config)
        return True

    def get_auto_filled_metrics(self, **_: object) -> dict[str, Any]:
        """Nothing: what Tune asks each worker to show before its first result."""
        return {}

    def _take_up(self, config: dict[str, Any]) -> None:
        self._assignment = Assignment.from_config(config)
        self._log = start_log(self._assignment.checkpoint_dir, self._assignment.attempt)
        self._preemption = Preemption()
        self._start: AttemptStart | None = None
        self._start_is_told = False
        self._problem: str | None = None
        self._pace: Pace | None = None

    def train(self) -> dict[str, Any]:
        """One epoch; the run is opened here and not in `__init__`, so that its errors are this run's.

        Raises:
            PreemptedError: the process was told to stop; the run is saved, or was before.
        """
        self._preemption.listen()
        with self._log.capturing():
            try:
                report = self._step()
            except ray.exceptions.RayActorError as error:
                if not self._preemption.requested:
                    raise
                ends = "the worker was told to stop (SIGTERM), and so was its cohort's process, which has ended"
                raise PreemptedError(f"{ends}; the run continues from its last checkpoint") from error
        if self._preemption.requested and report.end is None:
            self._give_back(cast(Run, self._run))
        self._log.publish()
        return report.to_result()

    def _step(self) -> Report:
        self._unsaved = False  # within an epoch the run's state fits no evaluation
        self._pace = None
        backlog: list[Point] = []
        try:
            with self._preemption.may_interrupt():
                if self._run is None:
                    self._start = self._open()
                    backlog = list(self._curve.points)
                run = cast(Run, self._run)
                points = backlog if run.done else [*backlog, *self._advance(run)]
                end = self._end(run)
        except NanFromAnotherRun as error:
            self._log.say(f"interrupted: {error}")
            raise
        except Diverged as error:
            self._log.say(f"diverged: {error}")
            outcome = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error=str(error))
            return Report(points=backlog, start=self._news_of_start(), end=outcome)
        if end is not None or self._checkpoint_is_due():
            self._save(run, final=end is not None)
        else:
            self._unsaved = True
        return Report(points=points, start=self._news_of_start(), end=end, pace=self._pace)

    def _news_of_start(self) -> AttemptStart | None:
        """Where and how the attempt runs: with its first report, and again when that changed.

        Steps are captured, or found not to be capturable, while they are made; a checkpoint may fail to be written.
        """
        if self._start is not None and self._run is not None:
            news = {"step": self._run.step_status}
            if self._problem is not None:
                news["checkpoint_error"] = self._problem
                self._problem = None
            environment = {**self._start.environment, **news}
            if environment != self._start.environment:
                self._start, self._start_is_told = replace(self._start, environment=environment), False
        if self._start_is_told:
            return None
        self._start_is_told = True
        return self._start

    def _give_back(self, run: Run) -> None:
        if self._unsaved:
            self._save(run, final=False)
        self._unsaved = False
        rest = f"the run continues elsewhere from epoch {run.epoch}" if self._problem is None else self._problem
        self._log.say(f"told to stop: {rest}")
        raise PreemptedError(f"the worker was told to stop (SIGTERM); {rest}")

    def stop(self) -> None:
        """The worker's end. A run that is stopped between two evaluations, by a pause say, leaves a checkpoint."""
        with self._log.capturing():
            if self._run is not None and self._unsaved:
                self._save(self._run, final=False)
        self._close()

    def _close(self) -> None:
        self._unsaved = False
        self._preemption.stop_listening()
        if self._run is not None:
            self._run.close()
            self._run = None
        self._log.close()

    def _open(self) -> AttemptStart:
        from tasks.registry import parse_config
        from tasks.runs import initial_weights

        assignment = self._assignment
        self._saved_at = time.monotonic()
        self._best_saved: float | None = None
        config = parse_config(assignment.task)
        data_dir = None if assignment.data_dir is None else Path(assignment.data_dir)
        with initial_weights(config, data_dir=data_dir, origins=assignment.init_from) as weights:
            begin = partial(open_assigned, assignment, config, init_from=weights)
            (run, notes) = begin()
            self._run = run
            self._curve = Curve()
            try:
                self._go_on(run)
            except UnreadableError:
                raise  # it may be there at the next attempt
            except CheckpointError as error:
                self._start_over(error)
                run.close()
                (run, notes) = begin()
                self._run = run
        environment = {**run.environment(), **notes, "gpus": assignment.share, "placement": assignment.placement}
        start = AttemptStart(
            node=ray.util.get_node_ip_address(),
            pid=os.getpid(),
            device=str(environment.get("device", "cpu")),
            resumed_from_epoch=run.epoch,
            environment=environment,
        )
        place = f"node {start.node}, process {start.pid}, {start.device}"
        self._log.say(f"attempt {assignment.attempt}, seed {assignment.seed}: {place}; from epoch {run.epoch}")
        return start

    def _go_on(self, run: Run) -> None:
        """Take the run to where its last checkpoint, if there is one, was written."""
        state = _last_state(self._assignment.checkpoint_dir)
        if state is not None:
            run.load_state_dict(state["run"])
            points = Curve.from_state(state["curve"]).points
            self._curve = Curve([point for point in points if point.epoch <= run.epoch])  # own code may save less often
            self._best_saved = state.get("best")

    def _start_over(self, error: CheckpointError) -> None:
        """The checkpoint is torn, or another run's that had this place before the database was restored: drop it."""
        self._problem = f"started from the beginning: {error}"
        self._log.say(self._problem)
        folder = open_folder(self._assignment.checkpoint_dir)
        for name in find_unneeded(folder.names(), keep_best=False):
            folder.remove(name)

    def _advance(self, run: Run) -> list[Point]:
        """The next point; none where own code ended before its last epoch, and its last point counts."""
        try:
            evaluation = run.advance()
        except EndedEarly:
            return []
        if self._assignment.slot is not None:
            self._pace = to_pace(evaluation, card=_own_card())
        point = to_point(evaluation, metric=self._assignment.metric, gpus=self._assignment.share)
        self._curve.points.append(point)
        told = ", ".join(f"{name} {value:.6g}" for name, value in point.metrics.items())
        self._log.say(f"epoch {point.epoch}, step {point.step}: {told}; {point.cost.train_s:.2f} s of training")
        return [point]

    def _end(self, run: Run) -> RunOutcome | None:
        """The outcome, where this was the last evaluation or the objective is lost."""
        last, metric = self._curve.points[-1], self._assignment.metric
        if last.value is not None and run.done:
            metric = next((name for name in self._assignment.reported if not _is_finite(last, name)), metric)
        if not _is_finite(last, metric):
            found = last.metrics.get(metric, "missing")
            if (undefined := explain_undefined(metric)) is not None and found != found:  # NaN
                found = f"undefined ({undefined})"
                if not run.done:  # a later evaluation may have a value
                    self._log.say(f"{metric} is {found} at epoch {last.epoch}")
                    return None
            reason = f"{metric} is {found} at epoch {last.epoch}; the objective must be a finite number"
            if metric not in last.metrics:
                reason += f"; the run reported {', '.join(sorted(last.metrics)) or 'nothing'}"
            self._log.say(f"failed: {reason}")
            return RunOutcome(state=RunState.FAIL, failure=FailureKind.NO_METRIC, error=reason)
        if not run.done:
            return None
        test = run.test() if self._assignment.stage is Stage.CONFIRM else {}
        self._log.say(", ".join([f"complete: {metric} {last.value:.6g}", *(f"{k} {v:.6g}" for k, v in test.items())]))
        return RunOutcome(state=RunState.COMPLETE, value=last.value, test_metrics=test)

    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self._saved_at >= self._assignment.checkpoint_every_s

    def _save(self, run: Run, *, final: bool) -> None:
        """Unless it confirms, a run that ended before its first checkpoint was due leaves none: repeating costs less.

        One that cannot be written, because the disk is full, is reported and tried again when the next is due.
        """
        if final and self._assignment.stage is not Stage.CONFIRM and not self._checkpoint_is_due():
            return
        from tasks.engine import checkpoint  # brings torch, which a run without a network never needs

        of_run, best = run.state_dict(), self._best_with_this()
        state = {"run": of_run, "curve": self._curve.to_state(), "best": best}
        weights = None
        if best != self._best_saved:
            weights = {"model": of_run["model"]} if "model" in of_run else {"run": of_run}
        self._saved_at = time.monotonic()
        try:
            checkpoint.save(self._assignment.checkpoint_dir, state, epoch=run.epoch, best=weights)
            self._best_saved = best
        except CheckpointError as error:
            self._problem = str(error)
            self._log.say(f"no checkpoint: {error}")

    def _best_with_this(self) -> float | None:
        """The best value that was saved, with the last evaluation's among them."""
        values = [value for value in (self._best_saved, self._curve.points[-1].value) if value is not None]
        return Direction(self._assignment.direction).best(values) if values else None


def _is_finite(point: Point, metric: str) -> bool:
    return math.isfinite(point.metrics.get(metric, math.nan))


def open_assigned(assignment: Assignment, config: TaskConfig, *, init_from: Path | None) -> tuple[Run, dict[str, Any]]:
    """The assignment's run at epoch 0, and notes for the record of how it shares its card.

    Raises:
        CannotStackError: the run is to be in a cohort, and its model cannot be stacked.
        TaskError: as `tasks.runs.open_run`.
    """
    from tasks.runs import open_run

    if assignment.cohort > 1:
        return shared_trainer.join(assignment, config, init_from=init_from), {}
    notes: dict[str, Any] = {}
    if assignment.n_beside > 1 and (no_service := _share_card(1 / assignment.n_beside)):
        reason = assignment.own_process or why_not_side_by_side(config)
        if not reason:
            notes["sharing"] = f"{no_service}: the runs that share this card are trained by one process"
            return shared_trainer.join(assignment, config, init_from=init_from, side_by_side=True), notes
        notes["sharing"] = f"{no_service}: this run and others take turns on the card ({reason})"
    run = open_run(
        config,
        optimizer=assignment.optimizer,
        params=assignment.settings,
        seed=assignment.seed,
        data_dir=None if assignment.data_dir is None else Path(assignment.data_dir),
        device=None if assignment.gpus > 0 else "cpu",
        threads=assignment.threads,
        init_from=init_from,
        n_devices=max(1, round(assignment.gpus)),
    )
    return run, notes


def _share_card(share: float) -> str:
    """Run at the same time as the other trials on this card, not in turns; must be called before CUDA starts."""
    from tasks.engine import sharing

    return sharing.join(os.environ, share=share)


def _last_state(folder: str) -> dict[str, Any] | None:
    """What the last checkpoint holds. A run that has none needs no torch to find that out."""
    if not find_checkpoints(open_folder(folder).names()):
        return None
    from tasks.engine import checkpoint

    return checkpoint.load_latest(folder)


def to_point(evaluation: Evaluation, *, metric: str, gpus: float) -> Point:
    """A curve point from the engine's evaluation; `value` is None where the metric is missing or not finite.

    Args:
        gpus: cards the run holds: a packed one is charged its share of the seconds.
    """
    value = evaluation.metrics.get(metric)
    return Point(
        epoch=evaluation.epoch,
        step=evaluation.step,
        value=value if value is not None and math.isfinite(value) else None,
        metrics=dict(evaluation.metrics),
        lr=evaluation.lr,
        cost=replace(evaluation.cost, gpu_s=evaluation.cost.gpu_s * gpus),
    )


def to_pace(evaluation: Evaluation, *, card: str) -> Pace:
    """What the engine's evaluation says of the card."""
    return Pace(
        card=card,
        samples_per_s=evaluation.samples_per_s,
        train_s=max(0.0, evaluation.cost.train_s - evaluation.setup_s),
        eval_s=evaluation.cost.eval_s,
        memory_bytes=evaluation.held_bytes,
        card_bytes=evaluation.device_bytes,
    )


def _own_card() -> str:
    """The node and the number of the card that Ray gave this process."""
    return f"{ray.get_runtime_context().get_node_id()}/{','.join(map(str, ray.get_gpu_ids()))}"


class PreemptedError(Exception):
    """The worker was told to stop, and its run waits for another worker. The run did not fail."""


class Preemption:
    """Handles SIGTERM while a run is open on the main thread, the only one on which Python handles signals.

    Attributes:
        requested: whether the signal has come.
    """

    def __init__(self, *, grace_s: float = GRACE_S) -> None:
        self.requested = False
        self._grace_s = grace_s
        self._before: dict[signal.Signals, Any] | None = None

    def listen(self) -> None:
        """Handle SIGTERM until `stop_listening`."""
        if threading.current_thread() is threading.main_thread() and self._before is None:
            self._before = {
                signal.SIGTERM: signal.signal(signal.SIGTERM, self._request),
                signal.SIGALRM: signal.signal(signal.SIGALRM, self._interrupt),
            }

    def stop_listening(self) -> None:
        """Put back the handlers that were there before."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = None

    @contextmanager
    def may_interrupt(self) -> Iterator[None]:
        """A block that may be interrupted at the end of the grace period: training. Saving, which follows, may not."""
        try:
            yield
        finally:
            if self._before is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _request(self, number: int, frame: object) -> None:
        self.requested = True
        signal.setitimer(signal.ITIMER_REAL, self._grace_s)

    def _interrupt(self, number: int, frame: object) -> None:
        raise PreemptedError(
            f"the worker was told to stop (SIGTERM), and its epoch took longer than the {self._grace_s:g} s left; "
            "the run continues from its last checkpoint"
        )
