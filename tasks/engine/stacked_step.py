"""The step of a stacked model: one forward and backward pass for all slots, then an update for each that trains.

A slot's model has its part of the stacked parameters as its own, in place; so has each gradient. A slot that is free or
between two epochs is computed too, and changes nothing: its weights move only in its own update, and its norms'
statistics are put back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tasks.engine.graph import GraphStep, capture
from tasks.engine.step import EagerStep, LossMeter, StepParts
from tasks.engine.task import Batch, Task
from tasks.errors import CannotStackError

Update = Callable[[Sequence[Tensor | None]], None]
"""Moves one slot's parameters by their gradients."""


class Stack:
    """The stacked model and its step.

    Attributes:
        meter: the slots' losses.
        stepper: makes the steps.
    """

    def __init__(
        self, task: Task[Any, Any], model: nn.Module, step: EagerStep, updates: SlotUpdates, meter: LossMeter
    ) -> None:
        self.meter = meter
        self.stepper = step
        self._task = task
        self._model = model
        self._updates = updates
        self._n_slots = len(next(model.parameters()))

    def step(self, batches: Mapping[int, Batch], updates: Mapping[int, Update]) -> None:
        """Make one step of these slots, from a batch for each of them and what updates it."""
        aligned = dict(zip(batches, self._task.align(list(batches.values())), strict=True))
        spare = next(iter(aligned.values()))
        rows = [aligned.get(slot, spare) for slot in range(self._n_slots)]
        self._updates.of_slots = updates
        self.stepper.run([{name: torch.stack([row[name] for row in rows]) for name in spare}])

    @torch.no_grad()
    def take_in(self, model: nn.Module, slot: int) -> None:
        """Move a model's parameters into a slot, with their values.

        Raises:
            CannotStackError: it is another model, or has other constants.
        """
        stacked = dict(self._model.named_parameters())
        if [(name, p.shape) for name, p in model.named_parameters()] != [(n, p.shape[1:]) for n, p in stacked.items()]:
            raise CannotStackError("the run's model has other parameters than the cohort's")
        constants = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_floating_point()}
        shared = dict(self._model.named_buffers())
        if other := [name for name, buffer in constants.items() if not torch.equal(buffer, shared[name])]:
            raise CannotStackError(f"the runs' models have different constants {other[0]!r}")
        for name, parameter in model.named_parameters():
            place = stacked[name].data[slot]
            place.copy_(parameter)
            parameter.data = place

    @torch.no_grad()
    def load_buffers(self, model: nn.Module, slot: int) -> None:
        """Copy a model's norm statistics into the slot: before it trains."""
        for own, place in self._buffers(model, slot):
            place.copy_(own)

    @torch.no_grad()
    def store_buffers(self, model: nn.Module, slot: int) -> None:
        """Copy a slot's norm statistics to the model: after it has trained."""
        for own, place in self._buffers(model, slot):
            own.copy_(place)

    @torch.no_grad()
    def clear(self, slot: int) -> None:
        """Set the weights and statistics of a slot to zero."""
        for tensor in [*self._model.parameters(), *self._model.buffers()]:
            if tensor.is_floating_point():
                tensor[slot].zero_()

    def close(self) -> None:
        """Release the graphs."""
        self.stepper.close()

    def _buffers(self, model: nn.Module, slot: int) -> Iterator[tuple[Tensor, Tensor]]:
        stacked = dict(self._model.named_buffers())
        for name, own in model.named_buffers():
            if own.is_floating_point():
                yield own, stacked[name][slot]


class SlotUpdates:
    """In place of an optimizer in `StepParts`: a step is the updates of the slots that train.

    Attributes:
        of_slots: what updates each of these slots, from its part of the gradients.
    """

    takes_narrow_gradients = False  # whether the optimizers of later runs do is not known

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.of_slots: Mapping[int, Update] = {}
        self._parameters = parameters
        self._whole: list[Tensor | None] = []
        self._parts: list[list[Tensor | None]] = []

    def step(self) -> None:
        whole = [parameter.grad for parameter in self._parameters]
        if len(whole) != len(self._whole) or any(a is not b for a, b in zip(whole, self._whole, strict=True)):
            n_slots = len(self._parameters[0])
            parts = [(None,) * n_slots if gradient is None else gradient.unbind(0) for gradient in whole]
            self._whole, self._parts = whole, [list(of_slot) for of_slot in zip(*parts, strict=True)]
        for slot, update in self.of_slots.items():
            update(self._parts[slot])

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        assert set_to_none
        self._whole = []
        for parameter in self._parameters:
            parameter.grad = None


class SlotUpdate(EagerStep):
    """Clips and moves one slot's parameters, in a graph of its own where the optimizer can be captured.

    Args:
        parts: of the slot's own run.
        shared: the cohort's step, in whose memory to capture, if it captures.
        refused: why the update must not be captured; empty: capture it.
    """

    def __init__(
        self, parts: StepParts, shared: EagerStep, *, stream: torch.cuda.Stream | None, refused: str = ""
    ) -> None:
        super().__init__(parts, status=refused)
        self.refused = refused
        self._shared = shared
        self._stream = stream
        self._own_setup_s = 0.0
        self._places = [parameter.data for parameter in self._trained]
        self._gradients: Sequence[Tensor | None] = ()
        self._graph: torch.cuda.CUDAGraph | None = None
        self.count_setup()

    def count_setup(self) -> None:
        """Take over what the cohort's steps have spent on their set-up."""
        self.setup_s, self.setup_steps = self._shared.setup_s + self._own_setup_s, self._shared.setup_steps

    def move(self, gradients: Sequence[Tensor | None]) -> None:
        """Update by these gradients of the parameters."""
        if self._graph is not None:
            with self._clock.timing():
                self._graph.replay()
            return
        if gradients is not self._gradients:
            self._gradients = gradients
            for parameter, gradient in zip(self._trained, gradients, strict=True):
                parameter.grad = gradient
        with self._clock.timing():
            self._update()
        self._put_back()
        step = self._shared
        if isinstance(step, GraphStep) and step.has_fixed_gradients and self._stream is not None and not self.refused:
            begin = time.perf_counter()
            self._graph, self.refused = capture(self._update, stream=self._stream, pool=step.pool)
            self._own_setup_s += time.perf_counter() - begin
            self.setup_s += time.perf_counter() - begin

    def close(self) -> None:
        """Release the graph."""
        if self._stream is not None:
            self._stream.synchronize()
        self._graph, self._gradients = None, ()
        for parameter in self._trained:
            parameter.grad = None

    def _put_back(self) -> None:
        """Copy weights to the slot to which the optimizer gave other memory (``p.data = …``)."""
        for parameter, place in zip(self._trained, self._places, strict=True):
            if parameter.data_ptr() != place.data_ptr():
                place.copy_(parameter.data)
                parameter.data = place
                self.refused = "the optimizer gives the weights new memory in each step"
