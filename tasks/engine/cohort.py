"""A cohort: several runs of one study trained as one stacked model, by one forward and backward pass for all.

Each parameter of the stacked model is (slots, …), and a slot's model has its part of it as its own parameter, in place;
so has each gradient. Everything else of a run is its own: optimizer, settings, learning rate, batches, seed, loss,
evaluation, checkpoint, and when it begins an epoch. `torch.func` makes the stacked pass from the task's own loss:
convolutions become grouped ones and matrix products batched ones. A slot that is free or between two epochs is computed
too, and changes nothing: its weights move only in its own update, and its norms' statistics are put back.

Where a slot diverges, its infinite values may make others NaN: some kernels of grouped convolutions multiply them by
zeros for the other groups. Only the run that became non-finite first has diverged then; see `Cohort.why_uncertain`.

Dropout's noise is drawn for all slots at once. So a run with dropout draws other noise than it would alone.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from tasks.config import TaskConfig
from tasks.engine.device import first_words, is_out_of_memory
from tasks.engine.graph import GraphStep, capture
from tasks.engine.optimizers import first_batch, state_tensors
from tasks.engine.protocol import Evaluation
from tasks.engine.run import Epoch, TrainingRun
from tasks.engine.step import EagerStep, LossMeter, StepParts
from tasks.engine.task import Batch, Task
from tasks.errors import CannotStackError, Diverged, NanFromAnotherRun, NanInSeveralRuns, OutOfMemory, TaskError
from tasks.registry import OWN_FIELDS, why_not_together

N_SAMPLES = 4  # of a batch, for the pass that tries whether a model can be stacked
TOLERANCE = 0.02  # of its losses; bf16 rounds to 3 digits
UNKNOWN = 0  # the step in which a slot's values became NaN or infinite, where its losses are finite


class Cohort:
    """Holds up to `n_slots` runs. For one thread.

    Args:
        config: of the first run; the others' must be equal but for `tasks.registry.OWN_FIELDS`.
        n_slots: runs at once. Each costs its part of the work even while it is free.
        data_dir, device, threads: as of `tasks.runs.open_run`.
    """

    is_one_network: ClassVar[bool] = True
    """Whether what one run lacks, memory for example, all lack."""

    def __init__(
        self,
        config: TaskConfig,
        *,
        n_slots: int,
        data_dir: Path | None = None,
        device: str | None = None,
        threads: int = 1,
    ) -> None:
        if refusal := why_not_together(config):
            raise CannotStackError(refusal)
        self.n_slots = n_slots
        self.n_steps = 0
        self._config = config
        self._where: dict[str, Any] = {"data_dir": data_dir, "device": device, "threads": threads}
        self._members: list[CohortMember | None] = [None] * n_slots
        self._stack: _Stack | None = None
        self._past: list[tuple[int, int]] = []  # a slot's bad step, and the step after which it reached no other
        self._restore_torch: Callable[[], None] = lambda: None

    @property
    def n_free(self) -> int:
        """Slots that a run may take."""
        return self._members.count(None)

    def open(
        self, config: TaskConfig, *, optimizer: str, params: Mapping[str, Any], seed: int, init_from: Path | None = None
    ) -> CohortMember:
        """A run at epoch 0 in a free slot; arguments as of `tasks.runs.open_run`.

        Raises:
            CannotStackError: the model cannot be stacked, or the run does not fit the cohort.
            TaskError: as `open_run`; or no slot is free.
        """
        if not self.n_free:
            raise TaskError(f"all {self.n_slots} slots of the cohort are taken; close a run first")
        differing = [field for field, value in config if field not in OWN_FIELDS and value != self._value(field)]
        if config.name != self._config.name or differing:
            raise CannotStackError(f"the run differs from the cohort's in {', '.join(differing)}")
        slot = self._members.index(None)
        member = CohortMember(
            self, slot, config, optimizer=optimizer, params=params, seed=seed, init_from=init_from, **self._where
        )
        self._members[slot] = member
        return member

    def _value(self, field: str) -> Any:
        return getattr(self._config, field, None)

    def step(self) -> None:
        """Make one optimizer step of every run that is within an epoch; a run's error ends its own epoch alone."""
        training = [member for member in self._members if member is not None and member.is_training]
        batches = {member.slot: batch for member in training if (batch := member.next_batch()) is not None}
        if not batches:
            return
        assert self._stack is not None
        training = [member for member in training if member.slot in batches]
        try:
            with training[0].guard():
                self._stack.step(batches, training)
        except Exception as error:  # noqa: BLE001 - `finish` of each raises it
            for member in training:
                member.fail(error)
        self.n_steps += 1
        for member in training:
            member.end_step()

    def close(self) -> None:
        """Close all runs, and release what the cohort holds."""
        for member in self._members:
            if member is not None:
                member.close()
        if self._stack is not None:
            self._stack.close()
            self._stack = None
        self._restore_torch()
        self._restore_torch = lambda: None

    # What the members call.

    def configure(self, configure: Callable[[], Callable[[], None]]) -> None:
        """Set torch as the first member asks; the settings last as long as the cohort."""
        if self._stack is None:
            self._restore_torch()
            self._restore_torch = configure()

    def place(self, member: CohortMember, model: nn.Module) -> _Stack:
        """Move a model's parameters into its slot, keeping their values.

        Raises:
            CannotStackError: the model cannot be stacked, or is another model than the cohort's.
        """
        if self._stack is None:
            self._stack = member.build_stack(model, n_slots=self.n_slots)
        self._stack.take_in(model, member.slot)
        return self._stack

    def why_uncertain(self, member: CohortMember, bad_step: int) -> NanFromAnotherRun | None:
        """The reason why a member whose values are not finite may not have diverged; None: it has, by itself.

        What is not finite in an epoch can come from a slot that became so in the same step or before, be it between two
        epochs. Runs that were the first in one step leave the cohort (`NanInSeveralRuns`), and later ones may go on in
        it (`NanFromAnotherRun`): a first one ends or leaves each time, so that this cannot go on for ever.

        Args:
            bad_step: as of `CohortMember.bad_step`.
        """
        others = [other.bad_step() for other in self._members if other is not None and other is not member]
        others += [step for step, until in self._past if until > member.counts_since]
        found = [step for step in others if step is not None and (not bad_step or step <= bad_step)]
        if not found:
            return None
        if any(0 < step < bad_step for step in found):
            return NanFromAnotherRun(
                "another run of the cohort diverged, and its values may have reached this run: it does not count as "
                "a failure, and the run continues from its last checkpoint"
            )
        return NanInSeveralRuns(
            "several runs of the cohort became NaN or infinite at once, and which of them diverged is not known: it "
            "does not count as a failure, and the run continues from its last checkpoint in a process of its own"
        )

    def note_bad(self, bad_step: int) -> None:
        """Keep a slot's bad step, which its meter forgets now, for the members that are within an epoch."""
        oldest = min(member.counts_since for member in self._members if member is not None)
        self._past = [(step, until) for step, until in self._past if until > oldest] + [(bad_step, self.n_steps)]

    def clear(self, slot: int) -> None:
        """Zero the weights of a run that has ended, so that they reach no other and slow no machine down."""
        if self._stack is not None:
            self._stack.clear(slot)

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self._members[slot] = None
        self.clear(slot)


class CohortMember(TrainingRun):
    """A `tasks.engine.protocol.Run` in a slot of a cohort.

    `advance` trains whatever other members have begun an epoch along with this one. To train several at once: call
    `begin` of each, the cohort's `step` until none `is_training`, and `finish` of each.

    Attributes:
        slot: its place in the cohort.
        counts_since: the cohort's step after which the slot's losses count: where its epoch began, or the last ended.
    """

    def __init__(self, cohort: Cohort, slot: int, config: TaskConfig, **options: Any) -> None:
        self._cohort = cohort
        self.slot = slot
        self._training: Epoch | None = None
        self._steps_left = 0
        self._error: Exception | None = None
        super().__init__(config, **options)
        self._meter = self._stack.meter.of(slot)
        self._meter.reset()
        self.counts_since = cohort.n_steps
        self._ended = False

    @property
    def is_training(self) -> bool:
        """Whether the run is within an epoch."""
        return self._steps_left > 0

    @property
    def step_status(self) -> str:
        """How the cohort's steps and this run's updates are made."""
        refused = f", eager update: {self._update.refused}" if self._update.refused else ""
        return f"slot {self.slot + 1} of {self._cohort.n_slots} of a cohort, {self._stack.stepper.status}{refused}"

    def advance(self) -> Evaluation:
        self.begin()
        while self.is_training:
            self._cohort.step()
        return self.finish()

    def begin(self) -> None:
        """Begin an epoch; the cohort's steps train it."""
        with self.guard():
            self._update.count_setup()
            self._training = self._begin_epoch()
            self._stack.load_buffers(self._model, self.slot)
            if first := self._meter.first_bad():  # in another run's batch, while the slot was idle
                self._cohort.note_bad(self.counts_since + first)
            self._meter.reset()
            self.counts_since = self._cohort.n_steps
        self._error, self._steps_left = None, self._steps_per_epoch

    def finish(self) -> Evaluation:
        """Evaluate after the epoch's last step.

        Raises what ended the epoch early, Diverged, NanFromAnotherRun or OutOfMemory.
        """
        assert self._training is not None
        assert not self.is_training
        epoch, self._training = self._training, None
        if isinstance(self._error, OutOfMemory):
            raise self._error
        with self.guard():
            self._stack.store_buffers(self._model, self.slot)
            bad_step = self.bad_step() if self._error is None else UNKNOWN  # a NaN may be why the optimizer raised
            uncertain = None if bad_step is None else self._cohort.why_uncertain(self, bad_step)
        try:
            if error := uncertain or self._error:
                raise error
            evaluation = self._finish_epoch(epoch)
        except (Diverged, NanFromAnotherRun):
            if bad_step is not None:
                self._cohort.note_bad(bad_step)
            with self.guard():
                self._cohort.clear(self.slot)
            self._ended = True
            raise
        self.counts_since = self._cohort.n_steps
        return evaluation

    def environment(self) -> dict[str, Any]:
        """As of any run, with the slot and the number of slots."""
        noise = {"noise": "drawn for the cohort as a whole"} if _has_noise(self._model) else {}
        return {**super().environment(), "cohort": {"slot": self.slot, "slots": self._cohort.n_slots, **noise}}

    def close(self) -> None:
        """Free the slot; may be called twice."""
        if not self._closed:
            self._closed = True
            self._steps_left = 0
            self._update.close()
            if (bad_step := self.bad_step()) is not None:
                self._cohort.note_bad(bad_step)
            with self.guard():
                self._cohort.free(self.slot)
            del self._stepper, self._update, self._optimizer, self._model, self._lrs, self._meter, self._stack

    def state_dict(self) -> dict[str, Any]:
        """As of any run; of the stacked tensors only this run's part."""
        state = super().state_dict()
        return {**state, "model": {name: value.clone() for name, value in state["model"].items()}}

    # What the cohort calls.

    def guard(self) -> contextlib.AbstractContextManager[None]:
        """Around what uses the device."""
        return self._guard("training")

    def next_batch(self) -> Batch | None:
        """The next step's batch; None where it cannot be read, which ends the epoch."""
        assert self._training is not None
        try:
            with self.guard():
                return self._prepare_step(self._training)[0]
        except Exception as error:  # noqa: BLE001 - of the data's reader; `finish` raises it
            self.fail(error)
            return None

    def update(self, gradients: Sequence[Tensor | None]) -> None:
        """Move the parameters."""
        try:
            with self.guard(), self._divergence():
                self._update.move(gradients)
        except Exception as error:  # noqa: BLE001 - of an optimizer's step; `finish` raises it
            self.fail(error)

    def end_step(self) -> None:
        """Count a step that was made."""
        self._steps_left = max(0, self._steps_left - 1)

    def fail(self, error: Exception) -> None:
        """End the epoch by an error."""
        self._error, self._steps_left = error, 0

    def bad_step(self) -> int | None:
        """The cohort's step whose loss was the first that is NaN or infinite in this slot; None if all is finite.

        UNKNOWN where only weights or the optimizer's state are not finite. Waits for the device.
        """
        if self._ended:
            return None
        with self.guard():
            if first := self._meter.first_bad():
                return self.counts_since + first
            return None if self._is_finite() else UNKNOWN

    def build_stack(self, model: nn.Module, *, n_slots: int) -> _Stack:
        """The stacked model of the cohort of which this is the first member."""
        with _own_noise(self._device):
            if refusal := why_not_stacked(self._task, model, autocast=self._autocast):
                raise CannotStackError(refusal)
        stacked = stack_model(model, n_slots)
        compiled = self._stream is not None and self._config.acceleration == "compile"
        meter = LossMeter(self._device, shape=(n_slots,))
        updates = _Updates([parameter for parameter in stacked.parameters() if parameter.requires_grad])
        parts = StepParts(
            task=_StackedTask(self._task, stacked, compiled=compiled),  # type: ignore[arg-type]
            model=stacked,
            optimizer=updates,  # type: ignore[arg-type]
            config=self._config.model_copy(update={"grad_clip": None}),
            meter=meter,
            autocast=self._autocast,
            cast_weights=self._cast_weights(stacked),
        )
        if self._stream is not None and self._wants_graph():
            step: EagerStep = GraphStep(parts, stream=self._stream, eager_update=None)
        else:
            why = "no GPU" if self._stream is None else "acceleration is 'eager'"
            step = EagerStep(parts, status=f"eager: {why}")
        return _Stack(self._task, stacked, step, updates, meter)

    @torch.no_grad()
    def _is_finite(self) -> bool:
        """Whether weights and the optimizer's state are, by one reduction of them all."""
        weights = list(self._model.parameters())
        found = [one for one in state_tensors(self._optimizer.state) if one.device == weights[0].device]
        counted = [one for one in (*weights, *found) if one.is_floating_point() and one.numel() and one.itemsize > 1]
        largest = torch.stack([norm.double() for norm in torch._foreach_norm(counted, math.inf)])
        return bool(largest.isfinite().all())

    # What the run does otherwise in a cohort.

    def _configure_torch(self) -> Callable[[], None]:
        self._cohort.configure(super()._configure_torch)
        return lambda: None

    def _initial_model(self, init_from: Path | None) -> nn.Module:
        with _own_noise(self._device):
            model = super()._initial_model(init_from)
        self._stack = self._cohort.place(self, model)
        return model

    @property
    def _compiled(self) -> bool:
        return False  # the stacked pass is; this run's own model only evaluates

    def _build_stepper(self) -> EagerStep:
        captured = isinstance(self._stack.stepper, GraphStep)
        refused = f"{self._identity['optimizer']} cannot be captured" if captured and self._lrs is None else ""
        parts = StepParts(
            task=self._task,
            model=self._model,
            optimizer=self._optimizer,
            config=self._config,
            meter=self._meter,
            autocast=self._autocast,
        )
        self._update = _SlotUpdate(parts, self._stack.stepper, stream=self._stream, refused=refused)
        return self._update

    def _seed_noise(self) -> None:
        """Nothing: the noise is all slots'."""


class _SlotUpdate(EagerStep):
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


class _Updates:
    """In place of an optimizer in `StepParts`: a step is the updates of the members that train."""

    takes_narrow_gradients = False  # whether those of later members do is not known

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.members: Sequence[CohortMember] = ()
        self._parameters = parameters
        self._whole: list[Tensor | None] = []
        self._parts: list[list[Tensor | None]] = []

    def step(self) -> None:
        whole = [parameter.grad for parameter in self._parameters]
        if len(whole) != len(self._whole) or any(a is not b for a, b in zip(whole, self._whole, strict=True)):
            n_slots = len(self._parameters[0])
            parts = [(None,) * n_slots if gradient is None else gradient.unbind(0) for gradient in whole]
            self._whole, self._parts = whole, [list(of_slot) for of_slot in zip(*parts, strict=True)]
        for member in self.members:
            member.update(self._parts[member.slot])

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        assert set_to_none
        self._whole = []
        for parameter in self._parameters:
            parameter.grad = None


class _Stack:
    """The stacked model and its step.

    Attributes:
        meter: the slots' losses.
        stepper: makes the steps.
    """

    def __init__(
        self, task: Task[Any, Any], model: nn.Module, step: EagerStep, updates: _Updates, meter: LossMeter
    ) -> None:
        self.meter = meter
        self.stepper = step
        self._task = task
        self._model = model
        self._updates = updates
        self._n_slots = len(next(model.parameters()))

    def step(self, batches: Mapping[int, Batch], members: Sequence[CohortMember]) -> None:
        """Make one step of these members from a batch for each of their slots."""
        aligned = dict(zip(batches, self._task.align(list(batches.values())), strict=True))
        spare = next(iter(aligned.values()))
        rows = [aligned.get(slot, spare) for slot in range(self._n_slots)]
        self._updates.members = members
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


class _LossOf(nn.Module):
    """A task's loss as a module, for `functional_call`."""

    def __init__(self, task: Task[Any, Any], model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, batch: Batch) -> Tensor:
        return self._task.loss(self.model, batch)


class _StackedTask:
    """In place of a task in `StepParts`: its loss is that of every slot, (slots,)."""

    def __init__(self, task: Task[Any, Any], model: nn.Module, *, compiled: bool = False) -> None:
        self._task = task
        self._whole = whole = _LossOf(task, model)

        def loss(own: dict[str, Tensor], shared: dict[str, Tensor], batch: Batch) -> Tensor:
            found: Tensor = functional_call(whole, (own, shared), (batch,))
            return found

        self._losses = torch.vmap(loss, in_dims=(0, None, 0), randomness="different")
        if compiled:
            # Each width by itself: vmap's rules for embeddings, norms and attention fix the sizes they see.
            self._losses = torch.compile(self._losses, dynamic=False)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of each slot's batch."""
        assert model is self._whole.model
        own: dict[str, Tensor] = dict(self._whole.named_parameters())
        shared: dict[str, Tensor] = {}
        for name, buffer in self._whole.named_buffers():
            (own if buffer.is_floating_point() else shared)[name] = buffer
        # Under vmap the memory-efficient attention does not see that gradients are asked for, and keeps nothing for its
        # backward pass; cuDNN's asks for a layout that vmap does not know (torch 2.11).
        with self._task.in_a_stack(), sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            losses: Tensor = self._losses(own, shared, batch)
        return losses

    def loss_terms(self, batch: Batch) -> None:
        """None: a cohort takes no micro-batches."""


def stack_model(model: nn.Module, n_slots: int) -> nn.Module:
    """A model of the same modules whose parameters and floating buffers are (n_slots, …), each slot a copy.

    In memory a slot has the layout of the model's own parameter (channels last, for example).
    """
    stacked = copy.deepcopy(model).train()
    wide: dict[int, nn.Parameter] = {}
    for module in stacked.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.forward = _without_cudnn(module.forward)  # type: ignore[assignment]
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = nn.Parameter(_widen(parameter.detach(), n_slots), requires_grad=parameter.requires_grad)
                module._parameters[name] = wide.setdefault(id(parameter), new)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = _widen(buffer, n_slots)
    return stacked


def _without_cudnn(norm: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A batch norm by torch's own kernel in float32, which is what cuDNN computes in.

    Under vmap cuDNN's asks for a layout that vmap does not know, and torch's own takes no bf16 beside statistics in
    float32 (torch 2.11).
    """

    def forward(x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # which has kernels of its own
            return norm(x)
        with torch.backends.cudnn.flags(enabled=False):
            return norm(x.float()).to(x.dtype)

    return forward


def _widen(tensor: Tensor, n_slots: int) -> Tensor:
    strides = torch.empty_like(tensor).stride()  # dense, in the tensor's layout
    size, stride = (n_slots, *tensor.shape), (tensor.numel(), *strides)
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def why_not_stacked(
    task: Task[Any, Any],
    model: nn.Module,
    *,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> str:
    """Why this model cannot be stacked, by a pass of two slots on a few samples; empty: it can. Changes nothing."""
    batch = {name: tensor[:N_SAMPLES] for name, tensor in first_batch(task).items()}
    stacked = stack_model(model, 2).eval()
    try:
        with autocast():
            losses = _StackedTask(task, stacked).loss(stacked, {name: torch.stack([t, t]) for name, t in batch.items()})
            alone = task.loss(copy.deepcopy(model).eval(), batch)
        stacked.train()
        with autocast():
            trained = _StackedTask(task, stacked).loss(stacked, {n: torch.stack([t, t]) for n, t in batch.items()})
        trained.backward(torch.ones_like(trained))  # type: ignore[no-untyped-call]
    except Exception as error:  # of torch, or of the model's code
        if is_out_of_memory(error):
            raise
        return f"the model cannot be stacked ({first_words(error)})"
    if not torch.allclose(losses, alone.expand(2), rtol=TOLERANCE):
        return f"the stacked model's losses {losses.tolist()} are not the model's own, {float(alone):.6g}"
    return ""


@contextlib.contextmanager
def _own_noise(device: torch.device) -> Iterator[None]:
    """A block whose draws and seeds do not change the noise of the members that train."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _has_noise(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules())
