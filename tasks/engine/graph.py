"""The whole step (forward, backward, clipping, optimizer) captured in a CUDA graph, one for each batch shape.

The first steps of a shape run eagerly, and they are real training steps: nothing is trained twice or undone. What makes
a capture fail (a host read, a new allocation pattern) sends that run back to eager steps, and its record says why.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.engine.step import EagerStep, StepParts
from tasks.engine.task import Batch

N_EAGER = 3  # workspaces, algorithm choice and optimizer state are made in the first steps
MAX_GRAPHS = 64

_Key = tuple[tuple[tuple[str, torch.Size, torch.dtype], ...], ...]


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[dict[str, Tensor]]


class GraphStep(EagerStep):
    """As `EagerStep`, replaying a captured step where one exists; runs on the stream that is current."""

    def __init__(self, parts: StepParts, *, stream: torch.cuda.Stream) -> None:
        super().__init__(parts, status="graph: not captured yet")
        self._suffix = ", compiled" if parts.config.acceleration == "compile" else ""
        self._stream = stream
        self._seen: dict[_Key, int] = {}
        self._captured: dict[_Key, _Captured] = {}
        self._pool: Any = None
        self._refused = False

    def run(self, micro_batches: Sequence[Batch]) -> None:
        """Replay the step of this shape; the first steps of a shape run eagerly, the next captures it."""
        key = _shapes(micro_batches)
        if (captured := self._captured.get(key)) is not None:
            self._replay(captured, micro_batches)
            return
        if self._refused or (key not in self._seen and len(self._seen) >= MAX_GRAPHS):
            super().run(micro_batches)
            return
        begin = time.perf_counter()
        self._seen[key] = self._seen.get(key, 0) + 1
        super().run(micro_batches)
        if self._seen[key] >= N_EAGER:
            self._capture(key, micro_batches)
        self._stream.synchronize()
        self.setup_s += time.perf_counter() - begin
        self.setup_steps += 1

    def close(self) -> None:
        """Drop the graphs and their memory."""
        self._stream.synchronize()
        self._captured.clear()
        self._seen.clear()
        self._pool = None

    def _replay(self, captured: _Captured, micro_batches: Sequence[Batch]) -> None:
        for inputs, batch in zip(captured.inputs, micro_batches, strict=True):
            for name, tensor in inputs.items():
                tensor.copy_(batch[name])
        self._clock.begin_step()
        captured.graph.replay()

    def _capture(self, key: _Key, micro_batches: Sequence[Batch]) -> None:
        """Record the step without running it; gradients are born inside the graph, at fixed addresses."""
        inputs = [{name: tensor.clone() for name, tensor in batch.items()} for batch in micro_batches]
        self._parts.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        self._stream.synchronize()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                self._step_body(inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._refused = True
            self.status = f"eager: capture failed: {str(error).splitlines()[0]}"
        else:
            self._pool = graph.pool()
            self._captured[key] = _Captured(graph, inputs)
            self.status = f"graph: {len(self._captured)} shape(s){self._suffix}"
        self._parts.optimizer.zero_grad(set_to_none=True)


def _shapes(micro_batches: Sequence[Batch]) -> _Key:
    return tuple(
        tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(batch.items())) for batch in micro_batches
    )
