"""What own training code gets: the trial's optimizer, seed and budget, and where it reports and saves.

transformers and Lightning are not imported before a callback for their trainers is made.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from admeta import registry
from admeta.roles import create_for_model
from tasks.engine.folders import make_private_folder
from tasks.engine.seeds import derive_seed
from tasks.own import PythonConfig
from tasks.registry import METRIC_NAME

Report = Callable[[int, dict[str, float]], None]


class TrialEnded(BaseException):
    """Raised by `report` where the trial goes no further: it was pruned, stopped, or has used its epochs."""


class Context:
    """The one argument of own training code.

    Attributes:
        seed: of this run. Python's, NumPy's and torch's generators were seeded with it before the call.
        epochs: reports of a full training, the task's `epochs`.
        epoch: epochs reported so far, those before a resume too.
        batch_size: the task's.
        settings: the task's `settings`: constants of yours.
        params: the optimizer's settings of this trial, `lr` among them.
        device: where to train.
        data_dir: the data folder, or the folder in it that the task's `data_dir` names; None without one.
        step: optimizer steps so far, of every optimizer that `optimizer` made.
    """

    def __init__(
        self,
        config: PythonConfig,
        *,
        optimizer: str,
        params: Mapping[str, Any],
        seed: int,
        device: torch.device,
        data_dir: Path | None,
        report: Report,
    ) -> None:
        self.seed = seed
        self.epochs = config.epochs
        self.epoch = 0
        self.batch_size = config.batch_size
        self.settings: Mapping[str, Any] = config.settings
        self.params: Mapping[str, Any] = dict(params)
        self.device = device
        self.data_dir = data_dir
        self._folder: Path | None = None
        self.step = 0
        self._schedule = config.schedule
        self._optimizer_name = optimizer
        self._optimizers: list[Optimizer] = []
        self._report = report
        self._stopped = False
        self._parts: dict[str, Any] | None = None
        self._pending: Mapping[str, Any] | Path | None = None
        self._saved: dict[str, Any] = {}
        self._state: Mapping[str, Any] = {}

    @property
    def folder(self) -> Path:
        """A folder of this run for files of yours, on the worker's own disk. It is removed at the end."""
        if self._folder is None:
            self._folder = make_private_folder("admeta-own-")
        return self._folder

    @property
    def stop(self) -> bool:
        """Whether the trial has ended, so that nothing that is trained now counts. The next `report` raises."""
        return self._stopped

    @property
    def lr(self) -> float:
        """The learning rate of the first parameter group now; the setting where no optimizer was made."""
        if self._optimizers:
            return float(self._optimizers[0].param_groups[0]["lr"])
        return float(self.params.get("lr", 0.0))

    @property
    def has_optimizer(self) -> bool:
        """Whether `optimizer` was called."""
        return bool(self._optimizers)

    def optimizer(self, parameters: Any) -> Optimizer:
        """The trial's optimizer, with its settings.

        Args:
            parameters: the model, or `model.parameters()`, `model.named_parameters()` or groups, as torch's optimizers
                take them. An optimizer of hidden matrices, such as muon, needs the model.
        """
        if isinstance(parameters, torch.nn.Module):
            made = create_for_model(self._optimizer_name, parameters, self.params)
        else:
            made = registry.create(self._optimizer_name, parameters, **self.params)
        made.register_step_post_hook(self._count_step)
        self._optimizers.append(made)
        return made

    def _count_step(self, *_: object) -> None:
        self.step += 1

    def schedule(self, optimizer: Optimizer, *, n_steps: int) -> LambdaLR:
        """The task's `schedule` as a scheduler of torch, to be stepped after each optimizer step.

        Args:
            n_steps: optimizer steps of all epochs.
        """
        return LambdaLR(optimizer, lambda step: self._schedule.lr_factor(step, n_steps=n_steps))

    def report(self, metrics: Mapping[str, Any] | None = None, /, *, epoch: int | None = None, **more: Any) -> None:
        """Report the metrics of an epoch; the study continues the trial, prunes it, or has it saved.

        Metrics of the test set, named `test_…`, are kept apart: those of the last epoch are the run's test results.
        After the last epoch a confirm run is called again, so that they can be computed and reported alone.

        Args:
            metrics, **more: numbers by name, the study's objective among them.
            epoch: which epoch this was, counted from 1; default: one more than the last.

        Raises:
            TrialEnded: the trial goes no further.
            TypeError: a metric is not a number.
            ValueError: a name is not allowed, or the epoch does not come after the last one.
        """
        values = {name: _number(name, value) for name, value in {**(metrics or {}), **more}.items()}
        if all(name.startswith("test_") for name in values):
            if not values:
                raise ValueError("report: give at least one metric, the study's objective: report(val_loss=0.3)")
            epoch = self.epoch
        elif epoch is None:
            epoch = self.epoch + 1
        elif not self.epoch < epoch:
            raise ValueError(f"report: epoch = {epoch} must come after {self.epoch}, the last one; the first is 1")
        elif epoch > self.epochs:
            raise ValueError(f"report: epoch = {epoch} is beyond the task's epochs = {self.epochs}")
        if epoch > self.epoch and self._pending is not None:
            self._saved = {"epoch": epoch, "step": self.step, "state": self._pending}
            self._pending = None
        self._report(epoch, values)

    def resume(self, **parts: Any) -> range:
        """The epochs to train, from 1 to `epochs`; a resumed run starts after its last checkpoint.

        Args:
            **parts: what has `state_dict` and `load_state_dict`: the model, the optimizer, a scheduler. They are
                restored before the first epoch, with the random generators of Python, NumPy and torch, and saved with
                a report whenever a checkpoint is due.
        """
        if (restored := self.restored()) is not None:
            if parts.keys() != restored.keys():
                raise ValueError(f"resume: the checkpoint has {sorted(restored)}, and the call has {sorted(parts)}")
            for name, part in parts.items():
                part.load_state_dict(restored[name])
            _set_random_state(self._state["random"])
        self._parts = parts
        return range(self.epoch + 1, self.epochs + 1)

    def save(self, state: Mapping[str, Any]) -> None:
        """Give the state of the epoch that is reported next, for a function that does not use `resume`.

        Args:
            state: tensors, numbers and text, in dicts, lists and tuples.

        Raises:
            TypeError: it has something else in it.
        """
        _check_state(state, "state")
        self._pending = deepcopy(state)  # training continues in the same tensors

    def save_checkpoint(self, path: Path) -> None:
        """Give a file or a folder as the state of the epoch that is reported next; it is read when one is due."""
        self._pending = path

    def seed_epoch(self) -> None:
        """Seed the generators of Python, NumPy and torch for the coming epoch, the same after a resume."""
        seed_all(derive_seed(self.seed, "epoch", self.epoch))

    @property
    def checkpoint(self) -> str | None:
        """The file or folder that `save_checkpoint` was given, if the run continues from it; None at its beginning."""
        restored = self.restored()
        return None if restored is None else str(_write_files(restored["files"], self.folder / "restored"))

    def restored(self) -> Mapping[str, Any] | None:
        """The state that was saved with the epoch `epoch`, if the run continues from there; None at its beginning."""
        return self._state.get("state")

    def collect(self, *, epoch: int, step: int) -> dict[str, Any]:
        """What a checkpoint keeps: the parts of `resume` as they are after this epoch, or what `save` was given last.

        Empty if there is neither, so that a run starts from the beginning.
        """
        if self._parts is None:
            if isinstance(path := self._saved.get("state"), Path):
                self._saved["state"] = {"files": _read_files(path)}
            return self._saved
        state = {name: part.state_dict() for name, part in self._parts.items()}
        return {"epoch": epoch, "step": step, "state": state, "random": random_state()}

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Before the function is called: the checkpoint that it continues from."""
        self._saved = {name: state[name] for name in ("epoch", "step", "state", "random") if name in state}
        self._state, self.epoch, self.step = state, int(state["epoch"]), int(state["step"])

    def end(self) -> None:
        """Let the function know that its trial has ended."""
        self._stopped = True

    def remove_folder(self) -> None:
        """Remove the folder of the run's files, where there is one."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def trainer_callback(self) -> Any:
        """A callback for transformers' Trainer: it reports each evaluation, with the checkpoint that is saved then."""
        return trainer_callback(self)

    def lightning_callback(self) -> Any:
        """A callback for Lightning's Trainer: it reports each epoch, with a checkpoint."""
        return lightning_callback(self)


def _number(name: str, value: Any) -> float:
    if not re.fullmatch(METRIC_NAME, name):
        raise ValueError(f"report: the metric's name {name!r} must be at most 100 letters, digits, '_', '.' or '-'")
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"report: {name} = {str(value)[:80]} is a {type(value).__name__}, not a number") from error
    except OverflowError as error:  # an integer; infinite floats are a result
        raise ValueError(f"report: {name} is a whole number beyond 1.8e308, the largest float") from error


def _check_state(value: Any, at: str) -> None:
    """A checkpoint is loaded with `weights_only=True`, which takes no other classes."""
    match value:
        case None | bool() | int() | float() | str() | bytes() | Tensor():
            return
        case Mapping():
            for name, inner in value.items():
                _check_state(name, f"a key of {at}")
                _check_state(inner, f"{at}[{name!r}]")
        case list() | tuple():
            for i, inner in enumerate(value):
                _check_state(inner, f"{at}[{i}]")
        case _:
            raise TypeError(
                f"save: {at} is a {type(value).__name__}; a state is made of tensors, numbers and text, in dicts and "
                "lists. Give a module's or an optimizer's state_dict()"
            )


def _read_files(path: Path) -> dict[str, Tensor]:
    """The bytes of a file, under its name, or of the files in a folder, by their paths from it after a slash."""
    files = [path] if path.is_file() else sorted(found for found in path.rglob("*") if found.is_file())
    return {
        path.name if path.is_file() else f"/{file.relative_to(path).as_posix()}": torch.from_numpy(
            np.fromfile(file, dtype=np.uint8)
        )
        for file in files
    }


def _write_files(files: Mapping[str, Tensor], folder: Path) -> Path:
    """Write what `_read_files` read below a folder; returns the file, or the folder."""
    for name, content in files.items():
        place = folder / name.removeprefix("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        content.numpy().tofile(place)
    only = next(iter(files), "/")
    return folder if only.startswith("/") else folder / only


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """The states of the global random generators, as a checkpoint can hold them."""
    _, keys, *numpy_rest = np.random.get_state(legacy=True)
    state = {
        "python": random.getstate(),
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), *numpy_rest],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_random_state(state: Mapping[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state.get("cuda", ())) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


_SPEEDS = ("_runtime", "_per_second", "_compilation_time")


def trainer_callback(ctx: Context) -> Any:
    """A `transformers.TrainerCallback`: each evaluation is an epoch of the study.

    `eval_loss` is reported as `val_loss`, and so on. A checkpoint that the Trainer saves with an evaluation
    (`save_strategy` as `eval_strategy`) is the run's.
    """
    from transformers import TrainerCallback

    class StudyCallback(TrainerCallback):  # type: ignore[misc] # transformers is untyped
        def __init__(self) -> None:
            self._waiting: dict[str, Any] | None = None

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any], **_: Any) -> None:
            found = _of_trainer(metrics)
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            if losses and not any(name.startswith("test_") for name in found):
                found["train_loss"] = losses[-1]
            if control.should_save:
                self._waiting = found  # the checkpoint is written after the evaluation, and belongs to it
            else:
                _report(ctx, found)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self._waiting is not None:
                ctx.save_checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")
                found, self._waiting = self._waiting, None
                _report(ctx, found)

    return StudyCallback()


def lightning_callback(ctx: Context) -> Any:
    """A `lightning.pytorch.Callback`: each training epoch is an epoch of the study, with what the module logged.

    The run's checkpoint is Lightning's own, written where one is due.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback  # its name alone

    class StudyCallback(Callback):  # type: ignore[misc] # Lightning may not be installed
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            ctx.seed_epoch()  # Lightning's checkpoints have no random generators

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            path = ctx.folder / "lightning.ckpt"
            trainer.save_checkpoint(path)
            ctx.save_checkpoint(path)
            _report(ctx, dict(trainer.callback_metrics))
            ctx.seed_epoch()

        def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            _report(ctx, {name: value for name, value in trainer.callback_metrics.items() if name.startswith("test_")})

    return StudyCallback()


def _of_trainer(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The Trainer's metrics under a study's names, without its own timings."""
    kept = {name: value for name, value in metrics.items() if name != "epoch" and not name.endswith(_SPEEDS)}
    return {f"val_{name[5:]}" if name.startswith("eval_") else name: value for name, value in kept.items()}


def _report(ctx: Context, metrics: Mapping[str, Any]) -> None:
    """Report what counts: after the last epoch nothing but the test set's metrics does."""
    tested = {name: value for name, value in metrics.items() if name.startswith("test_")}
    if found := tested if ctx.epoch >= ctx.epochs else metrics:
        ctx.report(found)
