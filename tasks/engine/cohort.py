"""A cohort: several runs of one study trained as one stacked model, by one forward and backward pass for all.

Here are the slots, the runs in them, and which of several runs that became NaN has diverged. `stacked_model` makes the
model and its loss, `stacked_step` its steps. Everything but the model is a run's own: optimizer, settings, learning
rate, batches, seed, loss, evaluation, checkpoint, and when it begins an epoch.

Where a slot diverges, its infinite values may make others NaN: some kernels of grouped convolutions multiply them by
zeros for the other groups. Only the run that became non-finite first has diverged then; see `Cohort.why_uncertain`.

Dropout's noise is drawn for all slots at once. So a run with dropout draws other noise than it would alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasks.config import TaskConfig
from tasks.engine.graph import GraphStep
from tasks.engine.optimizers import state_tensors
from tasks.engine.protocol import Evaluation
from tasks.engine.run import Epoch
from tasks.engine.slots import SlotRun, Slots
from tasks.engine.stacked_model import StackedTask, stack_model, why_not_stacked
from tasks.engine.stacked_step import SlotUpdate, SlotUpdates, Stack
from tasks.engine.step import EagerStep, LossMeter, StepParts
from tasks.engine.task import Batch
from tasks.errors import CannotStackError, Diverged, NanFromAnotherRun, NanInSeveralRuns, OutOfMemory
from tasks.registry import OWN_FIELDS, why_not_together

UNKNOWN = 0  # the step in which a slot's values became NaN or infinite, where its losses are finite


class Cohort(Slots["CohortMember"]):
    """The slots of one stacked model. Each costs its part of the work even while it is free.

    Args:
        config: of the first run; the others' must be equal but for `tasks.registry.OWN_FIELDS`.
        options: of `Slots`.

    Attributes:
        n_steps: made so far.
    """

    is_one_network = True
    name = "slots of the cohort"

    def __init__(self, config: TaskConfig, **options: Any) -> None:
        if refusal := why_not_together(config):
            raise CannotStackError(refusal)
        super().__init__(config, **options)
        self.n_steps = 0
        self._stack: Stack | None = None
        self._past: list[tuple[int, int]] = []  # a slot's bad step, and the step after which it reached no other

    def step(self) -> None:
        """Make one optimizer step of every run that is within an epoch; a run's error ends its own epoch alone."""
        training = [member for member in self._members if member.is_training]
        batches = {member.slot: batch for member in training if (batch := member.next_batch()) is not None}
        if not batches:
            return
        assert self._stack is not None
        training = [member for member in training if member.slot in batches]
        try:
            with training[0].guard():
                self._stack.step(batches, {member.slot: member.update for member in training})
        except Exception as error:  # noqa: BLE001 - `finish` of each raises it
            for member in training:
                member.fail(error)
        self.n_steps += 1
        for member in training:
            member.end_step()

    def _open(self, slot: int, config: TaskConfig, **options: Any) -> CohortMember:
        own = self._config
        differing = [name for name, value in config if name not in OWN_FIELDS and value != getattr(own, name, None)]
        if config.name != own.name or differing:
            raise CannotStackError(f"the run differs from the cohort's in {', '.join(differing)}")
        return CohortMember(self, slot, config, **options)

    def _release(self) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = None

    # What the members call.

    def place(self, member: CohortMember, model: nn.Module) -> Stack:
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
        others = [other.bad_step() for other in self._members if other is not member]
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
        oldest = min(member.counts_since for member in self._members)
        self._past = [(step, until) for step, until in self._past if until > oldest] + [(bad_step, self.n_steps)]

    def clear(self, slot: int) -> None:
        """Zero the weights of a run that has ended, so that they reach no other and slow no machine down."""
        if self._stack is not None:
            self._stack.clear(slot)

    def free(self, slot: int) -> None:
        super().free(slot)
        self.clear(slot)


class CohortMember(SlotRun):
    """A run in a slot of a cohort. `advance` trains whatever other members have begun an epoch along with this one.

    Attributes:
        counts_since: the cohort's step after which the slot's losses count: where its epoch began, or the last ended.
    """

    def __init__(self, cohort: Cohort, slot: int, config: TaskConfig, **options: Any) -> None:
        self._cohort = cohort
        super().__init__(cohort, slot, config, **options)
        self._meter = self._stack.meter.of(slot)
        self._meter.reset()
        self.counts_since = cohort.n_steps
        self._ended = False

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

    def finish(self) -> Evaluation:
        """Evaluate after the epoch's last step.

        Raises what ended the epoch early, Diverged, NanFromAnotherRun or OutOfMemory.
        """
        epoch = self._take_epoch()
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

    def build_stack(self, model: nn.Module, *, n_slots: int) -> Stack:
        """The stacked model of the cohort of which this is the first member."""
        with _own_noise(self._device):
            if refusal := why_not_stacked(self._task, model, autocast=self._autocast):
                raise CannotStackError(refusal)
        stacked = stack_model(model, n_slots)
        compiled = self._stream is not None and self._config.acceleration == "compile"
        meter = LossMeter(self._device, shape=(n_slots,))
        updates = SlotUpdates([parameter for parameter in stacked.parameters() if parameter.requires_grad])
        parts = StepParts(
            task=StackedTask(self._task, stacked, compiled=compiled),  # type: ignore[arg-type]
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
        return Stack(self._task, stacked, step, updates, meter)

    @torch.no_grad()
    def _is_finite(self) -> bool:
        """Whether weights and the optimizer's state are, by one reduction of them all."""
        weights = list(self._model.parameters())
        found = [one for one in state_tensors(self._optimizer.state) if one.device == weights[0].device]
        counted = [one for one in (*weights, *found) if one.is_floating_point() and one.numel() and one.itemsize > 1]
        largest = torch.stack([norm.double() for norm in torch._foreach_norm(counted, math.inf)])
        return bool(largest.isfinite().all())

    # What the run does otherwise in a cohort.

    def _begin_epoch(self) -> Epoch:
        self._update.count_setup()
        epoch = super()._begin_epoch()
        self._stack.load_buffers(self._model, self.slot)
        if first := self._meter.first_bad():  # in another run's batch, while the slot was idle
            self._cohort.note_bad(self.counts_since + first)
        self._meter.reset()
        self.counts_since = self._cohort.n_steps
        return epoch

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
        self._update = SlotUpdate(parts, self._stack.stepper, stream=self._stream, refused=refused)
        return self._update

    def _seed_noise(self) -> None:
        """Nothing: the noise is all slots'."""


@contextlib.contextmanager
def _own_noise(device: torch.device) -> Iterator[None]:
    """A block whose draws and seeds do not change the noise of the members that train."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _has_noise(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules())
