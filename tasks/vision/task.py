"""Image classification from images in memory: batches, augmentation, loss and scores of every image task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from tasks.engine.batches import epoch_order
from tasks.engine.task import Batch, Split, Task
from tasks.vision.augment import EpochDraws
from tasks.vision.config import ImageConfig
from tasks.vision.data import ImageData, ImageSplit
from tasks.vision.scoring import classification_metrics

CHUNK = 8192  # images augmented at once: few large kernels instead of many small ones
EVAL_BATCH = 1000

ImageConfigT = TypeVar("ImageConfigT", bound=ImageConfig)


class ImageTask(Task[ImageConfigT, ImageData], Generic[ImageConfigT]):
    """Subclasses load the data and name the models; batches are uint8 and are normalised inside the step."""

    memory_format = torch.channels_last

    def __init__(self, config: ImageConfigT, data: ImageData, *, device: torch.device) -> None:
        super().__init__(config, data, device=device)
        self._mean = torch.tensor(data.mean, device=device)
        self._scale = 1.0 / torch.tensor(data.std, device=device)

    @property
    def n_train(self) -> int:
        return len(self.data.train)

    def train_batches(self, *, seed: int, epoch: int) -> Iterator[Batch]:
        """Batches {"images": (batch, h, w, c) uint8, "labels": (batch,) int64}; incomplete ones are dropped."""
        config, split = self.config, self.data.train
        source = split.images.device
        size = config.batch_size
        order = epoch_order(self.n_train, seed=seed, epoch=epoch)[: self.batches_per_epoch * size]
        rows, labels_in_order = split.rows[order.to(source)], split.labels[order.to(self.device)]
        pad = config.pad if config.augment == "crop_flip" else 0
        draws = EpochDraws.draw(len(order), pad=pad, seed=seed, epoch=epoch, device=source)
        chunk = max(1, CHUNK // size) * size
        for begin in range(0, len(order), chunk):
            positions = slice(begin, begin + chunk)
            if config.augment == "none":
                images = split.images[rows[positions]]
            else:
                images = draws.apply(split.images, rows[positions], positions)
            images = images.to(self.device, non_blocking=True)
            labels = labels_in_order[positions]
            for start in range(0, len(labels), size):
                yield {"images": images[start : start + size], "labels": labels[start : start + size]}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(self.normalize(batch["images"]))
        return nn.functional.cross_entropy(logits.float(), batch["labels"], label_smoothing=self.config.label_smoothing)

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        part: ImageSplit = getattr(self.data, split)
        logits = [
            model(self.normalize(part.images[part.rows[begin : begin + EVAL_BATCH]].to(self.device)))
            for begin in range(0, len(part), EVAL_BATCH)
        ]
        return classification_metrics(torch.cat(logits), part.labels)

    def record(self) -> dict[str, Any]:
        sizes = {"n_val": len(self.data.val), "n_test": len(self.data.test), "n_skipped_images": self.data.n_skipped}
        return {**super().record(), **sizes}

    def normalize(self, images: Tensor) -> Tensor:
        """(n, h, w, c) uint8 to (n, c, h, w) float32 of zero mean and unit variance, channels last in memory."""
        return ((images.float() - self._mean) * self._scale).permute(0, 3, 1, 2)
