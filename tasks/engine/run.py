"""The training run: one loop for every task. Holds the model, the optimizer and the position in the budget.

The task gives model, batches, loss and evaluation; `step.py` and `graph.py` make the steps.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from admeta import registry as optimizers
from admeta.roles import create_for_model, set_mode
from tasks.config import TaskConfig
from tasks.engine import checkpoint
from tasks.engine.device import (
    configure_torch,
    describe_machine,
    first_words,
    held_memory_bytes,
    is_out_of_memory,
    peak_memory_bytes,
    pick_device,
    pick_precision,
)
from tasks.engine.graph import GraphStep
from tasks.engine.optimizers import load_optimizer_state, lr_tensors
from tasks.engine.protocol import Cost, Evaluation, Progress
from tasks.engine.seeds import derive_seed
from tasks.engine.step import ALONE, EagerStep, LossMeter, Ranks, StepParts
from tasks.engine.task import Batch, Split, load_task
from tasks.engine.transforms import CastWeights, drop_batch_counters, joined_inductor, share_batch_norm
from tasks.errors import CheckpointError, Diverged, OutOfMemory


class TrainingRun(Progress):
    """A `tasks.engine.protocol.Run` on the engine. Arguments as `tasks.runs.open_run`.

    Args:
        ranks: this process's place among those that make each step together (`tasks.engine.distributed`).
    """

    def __init__(
        self,
        config: TaskConfig,
        *,
        optimizer: str,
        params: Mapping[str, Any],
        seed: int,
        data_dir: Path | None = None,
        device: str | None = None,
        threads: int = 1,
        init_from: Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(config, optimizer=optimizer, params=params, seed=seed)
        self._config = config
        self._seed = seed
        self._ranks = ranks
        self._device = pick_device(device)
        self._precision = pick_precision(config.precision, device=self._device)
        self._threads = threads
        self._restore_torch = self._configure_torch()
        self._closed = False
        self._stream = self._open_stream()
        with self._guard("set-up"):
            self._task = load_task(config, data_dir=data_dir, device=self._device)
            self._task.check_fit()
            self._steps_per_epoch = self._task.batches_per_epoch // config.accumulation
            self._model = self._initial_model(init_from)
            self._optimizer, self._lrs = self._build_optimizer(optimizer, params)
            self._base_lrs = [float(group["lr"]) for group in self._optimizer.param_groups]
            self._meter = LossMeter(self._device)
            self._stepper = self._build_stepper()

    @property
    def model(self) -> nn.Module:
        """The model being trained, on the run's device."""
        return self._model

    @property
    def step_status(self) -> str:
        """How the steps run: in a graph, or eagerly and why."""
        return self._stepper.status

    def advance(self) -> Evaluation:
        """Train one epoch and evaluate on validation; raises Diverged, OutOfMemory."""
        with self._guard("training"):
            epoch = self._begin_epoch()
            for _ in range(self._steps_per_epoch):
                batches = self._prepare_step(epoch)
                with self._divergence():
                    self._stepper.run(batches)
        return self._finish_epoch(epoch)

    def _begin_epoch(self) -> Epoch:
        """Put model and optimizer into training mode, and open the epoch's batches."""
        self._check_budget()
        epoch = Epoch(
            began_s=time.perf_counter(),
            batches=self._task.train_batches(seed=self._seed, epoch=self._epoch),
            setup_s=self._stepper.setup_s,
            setup_steps=self._stepper.setup_steps,
        )
        self._model.train()
        set_mode(self._optimizer, "train")
        self._seed_noise()
        return epoch

    def _seed_noise(self) -> None:
        """Dropout's stream is seeded in each epoch, so that other uses of the generator do not change it."""
        others = [self._ranks.rank] if self._ranks.rank else []
        torch.manual_seed(derive_seed(self._seed, "noise", self._epoch, *others))

    def _prepare_step(self, epoch: Epoch) -> list[Batch]:
        """The next step's batches, with its learning rate set."""
        begin = time.perf_counter()
        micro_batches = self._micro_batches(epoch.batches)
        epoch.data_s += time.perf_counter() - begin
        self._set_lr(self._factor(self._step))
        self._step += 1
        return micro_batches

    @contextlib.contextmanager
    def _divergence(self) -> Iterator[None]:
        """A preconditioner of NaN or infinity has no decomposition."""
        try:
            yield
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise Diverged(self._step, loss=math.nan, what="a matrix of the optimizer's state") from error

    def _finish_epoch(self, epoch: Epoch) -> Evaluation:
        """Evaluate on validation; raises Diverged.

        An optimizer that averages weights leaves the averages: what is evaluated and stored.
        """
        with self._guard("training"):
            _finish(epoch.batches)
            set_mode(self._optimizer, "eval")
            train_loss, bad_step, bad_loss = self._meter.read()
        train_s = time.perf_counter() - epoch.began_s
        if bad_step is not None:
            raise Diverged(self._step - self._steps_per_epoch + bad_step, loss=bad_loss)
        setup_s = self._stepper.setup_s - epoch.setup_s
        n_steady = max(0, self._steps_per_epoch - (self._stepper.setup_steps - epoch.setup_steps))
        begin = time.perf_counter()
        metrics = self._evaluate("val") if self._ranks.rank == 0 else {}
        eval_s = time.perf_counter() - begin
        self._epoch += 1
        if not math.isfinite(metrics.get("val_loss", 0.0)):
            raise Diverged(self._step, loss=metrics["val_loss"], what="validation loss")
        samples = n_steady * self._config.batch_size * self._config.accumulation
        peak_bytes, held_bytes, device_bytes = self._memory_bytes()
        return Evaluation(
            epoch=self._epoch,
            step=self._step,
            metrics={**metrics, "train_loss": train_loss},
            lr=self._base_lrs[0] * self._factor(self._step - 1),
            cost=Cost(
                train_s=train_s,
                eval_s=eval_s,
                optimizer_s=self._stepper.optimizer_s(),
                data_s=epoch.data_s,
                gpu_s=train_s + eval_s if self._stream is not None else 0.0,
                peak_memory_bytes=peak_bytes,
            ),
            setup_s=setup_s,
            samples_per_s=samples / max(1e-9, train_s - setup_s),
            held_bytes=held_bytes,
            device_bytes=device_bytes,
        )

    def train_steps(self, n_steps: int) -> float:
        """Make optimizer steps from epoch 0's batches, over and over, and return their wall seconds.

        For benchmarks: it changes the weights but not the position in the budget.
        """
        self._model.train()
        set_mode(self._optimizer, "train")
        factor = self._factor(0)
        begin = time.perf_counter()
        with self._guard("training"):
            batches: Iterator[Batch] = iter(())
            for done in range(n_steps):
                if done % self._steps_per_epoch == 0:
                    _finish(batches)
                    batches = self._task.train_batches(seed=self._seed, epoch=0)
                self._set_lr(factor)
                self._stepper.run(self._micro_batches(batches))
            _finish(batches)
            self._meter.read()  # waits for the device
        return time.perf_counter() - begin

    def test(self) -> dict[str, float]:
        """The test set's metrics of the current weights, named `test_…`."""
        return self._evaluate("test")

    def environment(self) -> dict[str, Any]:
        """Device, versions, commit, precision, and how the steps run (or why not in a graph)."""
        return {
            **describe_machine(self._device),
            **self._task.record(),
            "precision": self._precision,
            "step": self.step_status,
            "optimizer_class": f"{type(self._optimizer).__module__}:{type(self._optimizer).__qualname__}",
            "setup_s": self._stepper.setup_s,
            "deterministic": self._config.deterministic,
            "threads": self._threads,
            "parameters": sum(p.numel() for p in self._model.parameters()),
            "trained_parameters": sum(p.numel() for p in self._model.parameters() if p.requires_grad),
            "steps_per_epoch": self._steps_per_epoch,
        }

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and position: batch order, augmentation and noise follow from the seed and the epoch."""
        if self._stream is not None:
            torch.cuda.synchronize(self._device)
        return {
            **self._place(),
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; raises CheckpointError where it is of another configuration."""
        self._return_to(state)
        if missing := {"model", "optimizer"} - state.keys():
            raise CheckpointError(f"the checkpoint has no {min(missing)!r}; no run of the training engine wrote it")
        with self._guard("loading a checkpoint"):
            checkpoint.load_weights(self._model, state["model"], source="the checkpoint")
            load_optimizer_state(self._optimizer, state["optimizer"])
            if self._lrs is not None:
                self._lrs = lr_tensors(self._optimizer, device=self._device)
            self._stepper.close()
            self._stepper = self._build_stepper()

    def close(self) -> None:
        """Release the device memory and restore torch's settings; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._stepper.close()
        del self._stepper, self._optimizer, self._model, self._lrs, self._meter
        self._restore_torch()
        if self._stream is not None:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def _open_stream(self) -> torch.cuda.Stream | None:
        return _process_stream(self._device)

    def _memory_bytes(self) -> tuple[int, int, int]:
        """The most memory that tensors had so far, the most device memory held, and all there is; these 0 on a CPU."""
        return peak_memory_bytes(self._device), *held_memory_bytes(self._device)

    def _configure_torch(self) -> Callable[[], None]:
        return configure_torch(
            precision=self._precision,
            determinism="strict" if self._config.deterministic else "free",
            device=self._device,
            threads=self._threads,
        )

    def _initial_model(self, init_from: Path | None) -> nn.Module:
        # Weights are drawn on the CPU, so that they are the same whatever the device.
        torch.manual_seed(derive_seed(self._seed, "weights"))
        model = self._task.build_model()
        if self._ranks.n > 1 and self._stream is not None:
            model = share_batch_norm(model, compiled=self._compiled)
        else:
            drop_batch_counters(model)
        if init_from is not None:
            checkpoint.load_weights(model, checkpoint.read_weights(init_from), source=str(init_from.name))
        model.to(device=self._device, memory_format=self._task.memory_format)  # type: ignore[call-overload]
        if self._compiled:
            for region in self._task.compile_regions(model):
                region.compile(backend=joined_inductor, dynamic=self._task.compile_shapes == "many")
        return model

    def _build_optimizer(
        self, name: str, params: Mapping[str, Any]
    ) -> tuple[torch.optim.Optimizer, list[Tensor] | None]:
        captured = self._wants_graph() and optimizers.can_be_captured(name)
        weight_decay_on = self._config.weight_decay_on
        optimizer = create_for_model(name, self._model, params, weight_decay_on=weight_decay_on, captured=captured)
        return optimizer, lr_tensors(optimizer, device=self._device) if captured else None

    @property
    def _compiled(self) -> bool:
        return self._stream is not None and self._config.acceleration == "compile"

    def _cast_weights(self, model: nn.Module) -> CastWeights | None:
        if self._precision != "bf16":
            return None
        if self._task.bf16_weights == "all":
            return CastWeights.of_all(model)
        return CastWeights.of_layers(model) if self._wants_graph() else None

    def _wants_graph(self) -> bool:
        return self._stream is not None and self._config.acceleration != "eager"

    def _build_stepper(self) -> EagerStep:
        parts = StepParts(
            task=self._task,
            model=self._model,
            optimizer=self._optimizer,
            config=self._config,
            meter=self._meter,
            autocast=self._autocast,
            cast_weights=self._cast_weights(self._model),
            ranks=self._ranks,
        )
        if self._stream is None:
            return EagerStep(parts, status="eager: no GPU")
        if not self._wants_graph():
            return EagerStep(parts, status="eager: acceleration is 'eager'")
        why_not = "" if self._lrs is not None else f"{self._identity['optimizer']} cannot be captured"
        return GraphStep(parts, stream=self._stream, eager_update=why_not)

    def _micro_batches(self, batches: Iterator[Batch]) -> list[Batch]:
        return [self._ranks.share(batch) for batch in itertools.islice(batches, self._config.accumulation)]

    def _factor(self, step: int) -> float:
        return self._config.schedule.lr_factor(step, n_steps=self._config.epochs * self._steps_per_epoch)

    def _set_lr(self, factor: float) -> None:
        if self._lrs is not None:
            for tensor, base in zip(self._lrs, self._base_lrs, strict=True):
                tensor.fill_(base * factor)
        else:
            for group, base in zip(self._optimizer.param_groups, self._base_lrs, strict=True):
                group["lr"] = base * factor

    def _evaluate(self, split: Split) -> dict[str, float]:
        self._model.eval()
        # Compiled code is for the training batch's shape; evaluation is too short to compile for its own.
        eager = torch.compiler.set_stance("force_eager") if self._compiled else contextlib.nullcontext()
        with self._guard("evaluation"), torch.no_grad(), self._autocast(), eager:
            metrics = self._task.evaluate(self._model, split)
        return {f"{split}_{name}": value for name, value in metrics.items()}

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._precision != "bf16" or self._task.bf16_weights == "all":
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)

    @contextlib.contextmanager
    def _guard(self, phase: str) -> Iterator[None]:
        """Use the run's own stream; an out-of-memory error becomes `OutOfMemory`, with the phase."""
        on_stream = torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext()
        try:
            with on_stream:
                yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(phase=phase, device=str(self._device), detail=first_words(error)) from error


@dataclass
class Epoch:
    """An epoch of training that has begun: its batches, and the times and counts as it began."""

    began_s: float
    batches: Iterator[Batch]
    setup_s: float
    setup_steps: int
    data_s: float = 0.0


@functools.cache
def _process_stream(device: torch.device) -> torch.cuda.Stream | None:
    """One for all runs of the process: libraries keep their workspaces by stream, 32 MiB for each new one."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _finish(batches: Iterator[Batch]) -> None:
    """Close a generator of batches (it may hold worker processes), also if accumulation leaves some unread."""
    if (close := getattr(batches, "close", None)) is not None:
        close()
