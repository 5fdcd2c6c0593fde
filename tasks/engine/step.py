"""One optimizer step: forward and backward over the micro-batches, clipping, update. graph.py captures the same."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tasks.config import TaskConfig
from tasks.engine.meter import LossMeter
from tasks.engine.task import Batch, Task


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """What a step is made of; `autocast` opens the precision's context around each forward pass."""

    task: Task[Any, Any]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    config: TaskConfig
    meter: LossMeter
    autocast: Callable[[], contextlib.AbstractContextManager[Any]]


class EagerStep:
    """Makes optimizer steps one after another; the learning rate is set by the caller before each.

    Attributes:
        setup_s: seconds spent so far on what happens once (here nothing).
        setup_steps: steps made during that time.
        status: how steps are run, for the run's record.
    """

    def __init__(self, parts: StepParts, *, status: str) -> None:
        self.setup_s = 0.0
        self.setup_steps = 0
        self.status = status
        self._parts = parts
        trained = [p for p in parts.model.parameters() if p.requires_grad]
        self._clipped = trained if parts.config.grad_clip else []
        self._clock = _clock(trained[0].device)

    def run(self, micro_batches: Sequence[Batch]) -> None:
        """Make one step from `config.accumulation` batches."""
        self._clock.begin_step()
        self._step_body(micro_batches)
        self._parts.optimizer.zero_grad(set_to_none=True)

    def optimizer_s(self) -> float:
        """Seconds of the optimizer's steps since the last call (on a GPU: sampled, scaled to all steps)."""
        return self._clock.read()

    def close(self) -> None:
        """Nothing to give back."""

    def _step_body(self, micro_batches: Sequence[Batch]) -> None:
        parts = self._parts
        total: Tensor | None = None
        for batch in micro_batches:
            with parts.autocast():
                loss = parts.task.loss(parts.model, batch) / len(micro_batches)
            loss.backward()  # type: ignore[no-untyped-call]
            total = loss.detach() if total is None else total + loss.detach()
        if parts.config.grad_clip:
            nn.utils.clip_grad_norm_(self._clipped, parts.config.grad_clip)
        self._clock.begin_update()
        parts.optimizer.step()
        self._clock.end_update()
        assert total is not None
        parts.meter.add(total.float())


class HostClock:
    """Wall seconds of the updates, exact on a CPU."""

    def __init__(self) -> None:
        self._total = 0.0
        self._begin = 0.0

    def begin_step(self) -> None:
        """A step begins."""

    def begin_update(self) -> None:
        self._begin = time.perf_counter()

    def end_update(self) -> None:
        self._total += time.perf_counter() - self._begin

    def read(self) -> float:
        total, self._total = self._total, 0.0
        return total


class DeviceClock:
    """Device seconds of the updates by events on the newest step, scaled to all steps since the last read.

    The events may be captured: `external` ones become nodes of the graph and are recorded by each replay.
    """

    def __init__(self) -> None:
        self._events = [_timing_event() for _ in range(2)]
        self._steps = 0

    def begin_step(self) -> None:
        self._steps += 1

    def begin_update(self) -> None:
        self._events[0].record()

    def end_update(self) -> None:
        self._events[1].record()

    def read(self) -> float:
        steps, self._steps = self._steps, 0
        if steps == 0:
            return 0.0
        self._events[1].synchronize()
        return float(steps * self._events[0].elapsed_time(self._events[1]) / 1000.0)


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]


def _clock(device: torch.device) -> HostClock | DeviceClock:
    return DeviceClock() if device.type == "cuda" else HostClock()
