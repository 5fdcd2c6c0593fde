"""Callbacks by which other trainers report to a study: transformers' Trainer and Lightning's.

Neither library is imported before its callback is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.own.context import Context

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
