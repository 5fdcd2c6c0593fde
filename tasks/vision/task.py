"""Image classification from images in memory: batches, augmentation, loss and scores of every image task.

Crops and flips are drawn by NumPy on the CPU, so a seed gives the same ones on any device, and applied on the device.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from tasks.engine.seeds import epoch_order, random_stream
from tasks.engine.task import Batch, Split, Task
from tasks.metrics import classification_metrics
from tasks.vision.config import ImageConfig, SplitImageConfig
from tasks.vision.data import ImageData, ImageSplit
from tasks.vision.models import build_image_model, check_model


@dataclass(frozen=True)
class EpochDraws:
    """One epoch's choices for each position in the batch order: int64 offsets in [0, 2·pad] and flips, shape (n,)."""

    top: Tensor
    left: Tensor
    flip: Tensor
    pad: int

    @classmethod
    def draw(cls, n: int, *, pad: int, seed: int, epoch: int, device: torch.device) -> EpochDraws:
        """Draw an epoch's augmentation for n positions; pad 0 flips only."""
        rng = random_stream(seed, "augment", epoch)
        offsets = torch.from_numpy(rng.integers(0, 2 * pad + 1, size=(2, n))).to(device)
        flip = torch.from_numpy(rng.integers(0, 2, size=n)).to(device)
        return cls(top=offsets[0], left=offsets[1], flip=flip, pad=pad)

    def apply(self, images: Tensor, rows: Tensor, positions: slice) -> Tensor:
        """The augmented images of some rows.

        Args:
            images: the whole split, (n, height, width, channels) uint8.
            rows: which images, int64 (m,), on the same device.
            positions: positions of those rows in the epoch's order, of length m.

        Returns:
            (m, height, width, channels) uint8, contiguous; outside the image it is 0, as zero padding gives.
        """
        height, width = images.shape[1:3]
        across = torch.arange(width, device=rows.device)
        down = torch.arange(height, device=rows.device)
        flipped = self.flip[positions, None].bool()
        y = down + self.top[positions, None] - self.pad  # (m, height)
        x = torch.where(flipped, width - 1 - across, across) + self.left[positions, None] - self.pad  # (m, width)
        inside = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]
        picked = images[rows[:, None, None], y.clamp(0, height - 1)[:, :, None], x.clamp(0, width - 1)[:, None, :]]
        return picked * inside[..., None]


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
        order = torch.from_numpy(epoch_order(self.n_train, seed=seed, epoch=epoch)[: self.batches_per_epoch * size])
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
        sizes = {"n_val": len(self.data.val), "n_test": len(self.data.test)}
        left_out = {"n_skipped_images": self.data.n_skipped, "n_other_files": self.data.n_others}
        return {**super().record(), **sizes, **left_out}

    def normalize(self, images: Tensor) -> Tensor:
        """(n, h, w, c) uint8 to (n, c, h, w) float32 of zero mean and unit variance, channels last in memory."""
        return ((images.float() - self._mean) * self._scale).permute(0, 3, 1, 2)


SplitConfigT = TypeVar("SplitConfigT", bound=SplitImageConfig)


class NamedModelTask(ImageTask[SplitConfigT], Generic[SplitConfigT]):
    """Models by name (`tasks.vision.models`), square RGB images, validation split off the training set."""

    @classmethod
    def cache_key(cls, config: SplitConfigT) -> Hashable:
        return (super().cache_key(config), config.val_fraction)

    def build_model(self) -> nn.Module:
        return build_image_model(self.config.model, n_classes=self._n_classes, image_size=self._image_size)

    def check_fit(self) -> None:
        super().check_fit()
        check_model(
            self.config.model,
            n_classes=self._n_classes,
            image_size=self._image_size,
            batch_size=self.config.batch_size,
        )

    @property
    def _n_classes(self) -> int:
        return len(self.data.classes)

    @property
    def _image_size(self) -> int:
        return int(self.data.train.images.shape[1])
