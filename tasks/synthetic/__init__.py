"""Toy surfaces, which the trial's own optimizer minimises: no data, no network. Here their configuration."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tasks.config import Count, Epochs, Number, TaskConfig


class SyntheticConfig(TaskConfig):
    """A surface, the optimizer steps of an epoch, and the seconds that each epoch sleeps."""

    models: ClassVar[tuple[str, ...]] = ("idle", "quadratic", "rosenbrock", "noisy_quadratic")

    name: Literal["synthetic"] = "synthetic"
    model: str = Field("quadratic", description="idle: no steps at all, a score by formula, without torch")
    epochs: Epochs = 10
    batch_size: Count = Field(1, ge=1, le=1)
    steps_per_epoch: Count = Field(20, ge=1, le=1_000_000, description="optimizer steps; idle makes none")
    sleep_s: Number = Field(0.0, ge=0.0, le=3600.0, description="seconds slept in each epoch")
