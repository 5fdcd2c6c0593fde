"""The configuration of the digits task."""

from __future__ import annotations

from typing import ClassVar, Literal

from tasks.config import BatchSize, Epochs, NamedSchedule, Schedule
from tasks.vision.config import Augmentation, ImageConfig


class DigitsConfig(ImageConfig):
    """Handwritten digits 8×8: 18 steps an epoch at the default batch."""

    models: ClassVar[tuple[str, ...]] = ("convnet", "mlp", "linear")

    name: Literal["digits"] = "digits"
    model: str = "convnet"
    epochs: Epochs = 20
    batch_size: BatchSize = 64
    schedule: NamedSchedule = Schedule(name="cosine")
    augment: Augmentation = "none"
