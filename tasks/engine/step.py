"""One optimizer step: forward and backward over the micro-batches, clipping, update. graph.py captures the same.

Several processes may make a step together (`Ranks`). Each rank computes the same batch and takes its slice, so a step
has the samples of one card with the same `batch_size`. The mean over ranks of their mean losses is the batch's mean
loss, as slices are equally large; where the mean is over something else (`Task.loss_terms`), the step divides by it.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tasks.config import TaskConfig
from tasks.engine.task import Batch, Task
from tasks.engine.transforms import GRADIENTS_MAY_BE_NARROW, CastWeights


class LossMeter:
    """Mean loss of an epoch and the first step whose loss was NaN or infinite; safe inside a captured graph."""

    def __init__(self, device: torch.device, *, shape: tuple[int, ...] = ()) -> None:
        """Of one run, or of several: `shape` is then their number."""
        self._sum = torch.zeros(shape, device=device)
        self._steps = torch.zeros(shape, dtype=torch.int64, device=device)
        self._first_bad = torch.zeros(shape, dtype=torch.int64, device=device)
        self._bad_loss = torch.zeros(shape, device=device)

    def of(self, slot: int) -> LossMeter:
        """The meter of one of several runs, which reads and resets that run alone."""
        one = copy.copy(self)
        one._sum, one._steps = self._sum[slot], self._steps[slot]
        one._first_bad, one._bad_loss = self._first_bad[slot], self._bad_loss[slot]
        return one

    def add(self, loss: Tensor) -> None:
        """Count one optimizer step's mean loss, of the meter's shape, on the device."""
        self._sum += loss
        self._steps += 1
        first = (self._first_bad == 0) & ~torch.isfinite(loss)
        self._first_bad.copy_(torch.where(first, self._steps, self._first_bad))
        self._bad_loss.copy_(torch.where(first, loss, self._bad_loss))

    def read(self) -> tuple[float, int | None, float]:
        """(mean loss, step of the first bad loss from 1 or None, that loss); waits for the device, and resets."""
        total, steps, first_bad, bad_loss = (
            torch.stack([value.double() for value in (self._sum, self._steps, self._first_bad, self._bad_loss)])
        ).tolist()
        self.reset()
        return total / max(1.0, steps), int(first_bad) or None, bad_loss

    def first_bad(self) -> int:
        """Step of the first bad loss, from 1, or 0; of one run. Waits for the device, and resets nothing."""
        return int(self._first_bad)

    def reset(self) -> None:
        """Forget what was counted."""
        for value in (self._sum, self._steps, self._first_bad, self._bad_loss):
            value.zero_()


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's rank among those of a run; all share torch.distributed's default group.

    Attributes:
        rank: from 0; rank 0 evaluates and reports.
        n: number of ranks; 1 needs no group.
    """

    rank: int = 0
    n: int = 1

    def share(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """This rank's samples of a batch whose size is a multiple of `n`; views of it."""
        if self.n == 1:
            return batch
        slices = {}
        for name, tensor in batch.items():
            size = tensor.shape[0] // self.n
            slices[name] = tensor[self.rank * size : (self.rank + 1) * size]
        return slices

    @torch.no_grad()
    def average(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Put the ranks' mean gradient into every `.grad`; returns the mean of their losses.

        By one all-reduce of a flat buffer, which can be captured in a graph. A parameter without a gradient must have
        none on any rank.
        """
        if self.n == 1:
            return loss
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for dtype in {gradient.dtype for gradient in gradients}:
            self._average_inplace([gradient for gradient in gradients if gradient.dtype == dtype])
        return self.mean(loss)

    @torch.no_grad()
    def mean(self, value: Tensor) -> Tensor:
        """The mean over ranks of a float tensor."""
        if self.n == 1:
            return value
        value = value.clone()
        self._average_inplace([value])
        return value

    def _average_inplace(self, tensors: list[Tensor]) -> None:
        flat = torch.empty(sum(t.numel() for t in tensors), dtype=tensors[0].dtype, device=tensors[0].device)
        parts = torch.split(flat, [t.numel() for t in tensors])
        views = [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
        torch._foreach_copy_(views, tensors)
        flat /= self.n
        dist.all_reduce(flat)
        torch._foreach_copy_(tensors, views)


ALONE = Ranks()


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """What a step is made of.

    Attributes:
        autocast: opens the precision's context around each forward pass.
        cast_weights: bf16 copies of weights to use in it; None: leave the casts to autocast.
        ranks: the processes that make each step together.
    """

    task: Task[Any, Any]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    config: TaskConfig
    meter: LossMeter
    autocast: Callable[[], contextlib.AbstractContextManager[Any]]
    cast_weights: CastWeights | None = None
    ranks: Ranks = ALONE

    def trained(self) -> list[nn.Parameter]:
        """The parameters that the optimizer moves."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def update_reads_narrow_gradients(self) -> bool:
        """Whether bf16 gradients can go into the update as backward leaves them; nothing adds them up on the way."""
        return (
            GRADIENTS_MAY_BE_NARROW
            and self.config.accumulation == 1
            and self.ranks.n == 1
            and bool(getattr(self.optimizer, "takes_narrow_gradients", False))
        )


class EagerStep:
    """Makes optimizer steps one after another; the learning rate is set by the caller before each.

    Attributes:
        setup_s: seconds spent so far on what happens once (none here).
        setup_steps: steps made during that time.
        status: how steps are run, for the run's record.
    """

    def __init__(self, parts: StepParts, *, status: str) -> None:
        self.setup_s = 0.0
        self.setup_steps = 0
        self.status = status
        self._parts = parts
        self._trained = parts.trained()
        self._clock = _clock(self._trained[0].device)
        if parts.cast_weights is not None and parts.update_reads_narrow_gradients():
            parts.cast_weights.keep_gradients_narrow()

    def run(self, micro_batches: Sequence[Batch]) -> None:
        """Make one step from `config.accumulation` batches."""
        self._forward_backward(micro_batches)
        with self._clock.timing():
            self._update()
        self._parts.optimizer.zero_grad(set_to_none=True)

    def optimizer_s(self) -> float:
        """Seconds of the updates since the last call, clipping included (on a GPU: the newest, times their number)."""
        return self._clock.read()

    def close(self) -> None:
        """Release what the steps hold: nothing here."""

    def _forward_backward(self, micro_batches: Sequence[Batch]) -> None:
        """Leave the mean gradient of the micro-batches in `.grad`, and the mean loss with the meter."""
        parts = self._parts
        total: Tensor | None = None
        for batch, divisor in zip(micro_batches, self._divisors(micro_batches), strict=True):
            with parts.autocast(), parts.cast_weights.in_use() if parts.cast_weights else contextlib.nullcontext():
                loss = parts.task.loss(parts.model, batch) / divisor
            # torch imports its compiler's symbols to look at the shape of a gradient that it is given.
            loss.backward(torch.ones_like(loss) if loss.dim() else None)  # type: ignore[no-untyped-call]
            if parts.cast_weights is not None:
                parts.cast_weights.hand_over_gradients()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        parts.meter.add(parts.ranks.average(self._trained, total.float()))

    def _divisors(self, micro_batches: Sequence[Batch]) -> Sequence[int | Tensor]:
        """Divisors of the micro-batches' mean losses: with them the mean over ranks of the sums is the step's mean."""
        n_parts, ranks = len(micro_batches), self._parts.ranks
        counts = [self._parts.task.loss_terms(batch) for batch in micro_batches] if n_parts * ranks.n > 1 else []
        terms = [count for count in counts if count is not None]
        if not terms:
            return [n_parts] * n_parts
        mean = ranks.mean(torch.stack(terms).sum().float())
        return [mean / count for count in terms]

    def _update(self) -> None:
        """Clip and move the parameters."""
        if (limit := self._parts.config.grad_clip) is None:
            self._parts.optimizer.step()
        else:
            step_clipped(self._parts.optimizer, self._trained, limit=limit)


def step_clipped(optimizer: torch.optim.Optimizer, trained: Sequence[nn.Parameter], *, limit: float) -> None:
    """As `clip_grad_norm_` and `step`, but fused optimizers divide the gradients themselves, as they read them.

    What they divide by is the inverse of the factor that `clip_grad_norm_` multiplies by, so the two ways differ by the
    rounding of one division. It saves a pass over the gradients: 8 bytes a parameter, of which torch's own spend 4
    again, as they write the divided gradients back. Do not use the gradients afterwards.
    """
    norm = _total_norm([p.grad for p in trained if p.grad is not None])
    if norm.dtype != torch.float32 or not getattr(optimizer, "_step_supports_amp_scaling", False):
        nn.utils.clip_grads_with_norm_(trained, limit, norm)
        optimizer.step()
        return
    scaled: Any = optimizer  # torch's protocol for GradScaler: an attribute that `step` looks for
    scaled.grad_scale = ((norm + 1e-6) / limit).clamp(min=1.0)
    try:
        optimizer.step()
    finally:
        del scaled.grad_scale


def _total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """As `get_total_norm`, but bf16 gradients' norms are float32: theirs would be rounded to 8 bits."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for gradient in gradients:
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    if not by_dtype.keys() & {torch.bfloat16, torch.float16}:
        return nn.utils.get_total_norm(gradients)
    norms: list[Tensor] = []
    for dtype, members in by_dtype.items():
        norms += torch._foreach_norm(members, 2.0, dtype=torch.promote_types(dtype, torch.float32))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


class Clock(Protocol):
    """Adds up the time of updates."""

    def timing(self) -> contextlib.AbstractContextManager[None]:
        """Around one update."""

    def read(self) -> float:
        """Seconds since the last read."""


class HostClock:
    """Wall seconds of the updates, exact on a CPU."""

    def __init__(self) -> None:
        self._total = 0.0

    @contextlib.contextmanager
    def timing(self) -> Any:
        begin = time.perf_counter()
        yield
        self._total += time.perf_counter() - begin

    def read(self) -> float:
        total, self._total = self._total, 0.0
        return total


class DeviceClock:
    """Device seconds by events around each update; the newest one's time, scaled to all since the last read."""

    def __init__(self) -> None:
        self._begin, self._end = _timing_event(), _timing_event()
        self._updates = 0

    @contextlib.contextmanager
    def timing(self) -> Any:
        self._begin.record()
        yield
        self._end.record()
        self._updates += 1

    def read(self) -> float:
        updates, self._updates = self._updates, 0
        if updates == 0:
            return 0.0
        self._end.synchronize()
        return float(updates * self._begin.elapsed_time(self._end) / 1000.0)


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _clock(device: torch.device) -> Clock:
    return DeviceClock() if device.type == "cuda" else HostClock()
