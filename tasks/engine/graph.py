"""The step captured in CUDA graphs: forward and backward, one graph for each batch shape; and one for the update.

The first steps of a shape run eagerly; they are training steps, so nothing is trained twice or undone. The first
capture fixes the addresses of the gradients. Every other way to compute gradients (another shape's graph, an eager
step) copies into those, so a single update graph, captured after one eager update on them, serves all shapes. An
optimizer that cannot be captured gets its gradients from a graph all the same. If a capture fails, that half runs
eagerly, and the run's record says why. So does everything where the optimizer gives parameters new memory
(``p.data = …``): a graph would go on reading the old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.engine.device import first_words, is_out_of_memory
from tasks.engine.step import EagerStep, StepParts
from tasks.engine.task import Batch

N_EAGER = 3  # the first steps create workspaces and optimizer state and choose algorithms
N_EAGER_LATER = 1  # a further shape only chooses its algorithms
MAX_GRAPHS = 64

_Key = tuple[tuple[tuple[str, torch.Size, torch.dtype], ...], ...]


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[dict[str, Tensor]]


class GraphStep(EagerStep):
    """As `EagerStep`, but replays captured halves where they exist; uses the current stream.

    Args:
        eager_update: why the update must not be captured; empty: capture it; None: the optimizer does that itself.
    """

    def __init__(self, parts: StepParts, *, stream: torch.cuda.Stream, eager_update: str | None = "") -> None:
        super().__init__(parts, status="graph: not captured yet")
        self._stream = stream
        self._pool: Any = None
        self._seen: dict[_Key, int] = {}
        self._backward: dict[_Key, _Captured] = {}
        self._backward_refused = ""
        self._gradients: list[Tensor] | None = None
        self._owners: list[torch.nn.Parameter] = []
        self._addresses: list[int] = []
        self._update_graph: torch.cuda.CUDAGraph | None = None
        self._update_refused = eager_update or ""
        self._captures_update = eager_update == ""

    @property
    def pool(self) -> Any:
        """The memory that the graphs share; None before the first capture."""
        return self._pool

    @property
    def has_fixed_gradients(self) -> bool:
        """Whether the gradients' addresses stay the same from now on, so that an update may be captured."""
        return self._gradients is not None

    def run(self, micro_batches: Sequence[Batch]) -> None:
        """Make one step; a shape's first steps run eagerly and the last of them captures it."""
        key = _shapes(micro_batches)
        if self._weights_moved():
            self._give_up_graphs("the optimizer gives the weights new memory in each step")
        if self._is_steady(key):
            self._step(key, micro_batches)
            return
        begin = time.perf_counter()
        self._step(key, micro_batches)
        self._seen[key] = self._seen.get(key, 0) + 1
        if key not in self._backward and self._seen[key] >= (N_EAGER if self._gradients is None else N_EAGER_LATER):
            self._capture_backward(key, micro_batches)
        elif self._captures_update and self.has_fixed_gradients and not (self._update_graph or self._weights_moved()):
            self._capture_update()
        self._stream.synchronize()
        self.status = self._describe()
        self.setup_s += time.perf_counter() - begin
        self.setup_steps += 1

    def close(self) -> None:
        """Release the graphs and their memory."""
        self._stream.synchronize()
        for parameter in self._trained:
            parameter.grad = None
        self._backward.clear()
        self._seen.clear()
        self._owners.clear()
        self._addresses.clear()
        self._update_graph = self._gradients = self._pool = None

    def _is_steady(self, key: _Key) -> bool:
        if self._backward_refused:
            return True
        if key not in self._backward:
            return key not in self._seen and len(self._seen) >= MAX_GRAPHS
        return self._update_graph is not None or not self._captures_update

    def _step(self, key: _Key, micro_batches: Sequence[Batch]) -> None:
        if (captured := self._backward.get(key)) is not None:
            for inputs, batch in zip(captured.inputs, micro_batches, strict=True):
                for name, tensor in inputs.items():
                    tensor.copy_(batch[name])
            captured.graph.replay()
            if self._update_graph is None:
                self._attach_gradients()  # an eager update may have replaced or removed them
        else:
            self._clear_gradients()
            self._forward_backward(micro_batches)
            self._settle_gradients()
        with self._clock.timing():
            if self._update_graph is not None:
                self._update_graph.replay()
            else:
                self._update()

    def _clear_gradients(self) -> None:
        for parameter in self._trained:
            parameter.grad = None

    def _settle_gradients(self) -> None:
        """Copy new gradients to the fixed addresses, after these exist, unless they are there already."""
        if self._gradients is None:
            return
        found = [
            p.grad if p.grad is not None else torch.zeros_like(to)
            for p, to in zip(self._owners, self._gradients, strict=True)
        ]
        moves = [(to, fresh) for to, fresh in zip(self._gradients, found, strict=True) if to is not fresh]
        if moves:
            torch._foreach_copy_([to for to, _ in moves], [fresh for _, fresh in moves])
        self._attach_gradients()

    def _attach_gradients(self) -> None:
        for parameter, gradient in zip(self._owners, self._gradients or (), strict=True):
            parameter.grad = gradient

    def _weights_moved(self) -> bool:
        """Whether an eager update gave a parameter other memory than a graph reads."""
        pairs = zip(self._trained, self._addresses, strict=False)  # no addresses before the first capture
        return self._update_graph is None and any(p.data_ptr() != address for p, address in pairs)

    def _give_up_graphs(self, reason: str) -> None:
        self._clear_gradients()
        self._backward.clear()
        self._owners.clear()
        self._addresses.clear()
        self._gradients = None
        if self._parts.cast_weights is not None:
            self._parts.cast_weights.fix_gradients([], [])
        self._backward_refused = reason
        self.status = self._describe()

    def _capture_backward(self, key: _Key, micro_batches: Sequence[Batch]) -> None:
        inputs = [{name: tensor.clone() for name, tensor in batch.items()} for batch in micro_batches]
        self._clear_gradients()

        def body() -> None:
            self._forward_backward(inputs)
            self._settle_gradients()

        graph, refusal = self._capture(body)
        if graph is None:
            self._backward_refused = refusal
            self._clear_gradients()
            return
        if self._gradients is None:
            self._owners = [parameter for parameter in self._trained if parameter.grad is not None]
            self._gradients = [p.grad for p in self._owners if p.grad is not None]
            self._addresses = [parameter.data_ptr() for parameter in self._trained]
            if self._parts.cast_weights is not None:
                self._parts.cast_weights.fix_gradients(self._owners, self._gradients)
        self._backward[key] = _Captured(graph, inputs)

    def _capture_update(self) -> None:
        self._update_graph, self._update_refused = self._capture(self._update)
        self._captures_update = not self._update_refused

    def _capture(self, body: Callable[[], None]) -> tuple[torch.cuda.CUDAGraph | None, str]:
        graph, refusal = capture(body, stream=self._stream, pool=self._pool)
        if graph is not None:
            self._pool = graph.pool()
        return graph, refusal

    def _describe(self) -> str:
        if self._backward_refused:
            return f"eager: {self._backward_refused}"
        words = [f"graph: {len(self._backward)} shape(s)"]
        if self._parts.config.acceleration == "compile":
            words.append("compiled")
        if self._update_refused:
            words.append(f"eager update: {self._update_refused}")
        return ", ".join(words)


def capture(
    body: Callable[[], None], *, stream: torch.cuda.Stream, pool: Any
) -> tuple[torch.cuda.CUDAGraph | None, str]:
    """The graph of what `body` launches, which is not executed; or None and the reason.

    Args:
        stream: the current one.
        pool: the memory of graphs that are replayed one after another; None: a new one.
    """
    graph = torch.cuda.CUDAGraph()
    stream.synchronize()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            body()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return None, f"capture failed: {first_words(error)}"
    return graph, ""


def _shapes(micro_batches: Sequence[Batch]) -> _Key:
    return tuple(
        tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(batch.items())) for batch in micro_batches
    )
