"""Image classification from images in memory: splits, batches, augmentation, loss and scores of every image task.

Images are uint8, on the device where they fit.

Crops and flips are drawn by NumPy on the CPU, so a seed gives the same ones on any device, and applied on the device.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.data.hold_out import Rows, hold_out
from tasks.engine.device import place_array
from tasks.engine.seeds import epoch_order, random_stream
from tasks.engine.task import Batch, Split, Task
from tasks.metrics import classification_metrics
from tasks.vision.config import ImageConfig, SplitImageConfig
from tasks.vision.images import DecodedTree
from tasks.vision.models import build_image_model, check_model


@dataclass(frozen=True)
class ImageSplit:
    """Some rows of a set of images, and their labels.

    Attributes:
        images: (N, height, width, channels) uint8; training and validation may share one.
        rows: which of them, int64 (n,), on the images' device.
        labels: of those rows, int64 (n,), on the run's device.
    """

    images: Tensor
    rows: Tensor
    labels: Tensor

    @classmethod
    def of(cls, images: Tensor, labels: Rows, rows: Rows | None = None, *, device: torch.device) -> ImageSplit:
        """From images in place, the labels of all of them, and the rows that belong to the split (None: all)."""
        chosen = np.arange(len(labels), dtype=np.int64) if rows is None else rows
        index = torch.from_numpy(chosen)
        return cls(images, index.to(images.device), torch.from_numpy(labels[chosen]).to(device))

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class ImageData:
    """The three splits, the class names, and the mean and std of each channel on the 0 … 255 scale."""

    train: ImageSplit
    val: ImageSplit
    test: ImageSplit
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    n_skipped: int = 0
    n_others: int = 0


def measure_normalization(images: NDArray[np.uint8], rows: Rows) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over some (n, h, w, c) images, in grey levels; counted exactly."""
    n_channels = images.shape[3]
    counts = np.zeros((n_channels, 256), dtype=np.int64)
    for begin in range(0, len(rows), 1024):
        part = images[rows[begin : begin + 1024]]
        for channel in range(n_channels):
            counts[channel] += np.bincount(part[..., channel].ravel(), minlength=256)
    levels = np.arange(256)
    pixels = counts[0].sum()
    mean = counts @ levels / pixels
    variance = counts @ levels**2 / pixels - mean**2
    return tuple(mean.tolist()), tuple(np.sqrt(np.maximum(variance, 1e-6)).tolist())


def split_tree(tree: DecodedTree, *, config: SplitImageConfig, device: torch.device) -> ImageData:
    """The three parts on the device; without a validation folder validation is held out by `config.split_seed`.

    Raises:
        DataError: a class would be missing from training or validation.
    """
    labels = tree.train.labels
    images = place_array(tree.train.images, device=device)
    if tree.val is None:
        kept, held_out = hold_out(
            labels, fraction=config.val_fraction, seed=config.split_seed, what="training image", classes=tree.classes
        )
        val = ImageSplit.of(images, labels, held_out, device=device)
    else:
        kept = np.arange(len(labels), dtype=np.int64)
        val = ImageSplit.of(place_array(tree.val.images, device=device), tree.val.labels, device=device)
    mean, std = measure_normalization(tree.train.images, kept)
    parts = [part for part in (tree.train, tree.val, tree.test) if part is not None]
    return ImageData(
        train=ImageSplit.of(images, labels, kept, device=device),
        val=val,
        test=ImageSplit.of(place_array(tree.test.images, device=device), tree.test.labels, device=device),
        classes=tree.classes,
        mean=mean,
        std=std,
        n_skipped=sum(part.n_skipped for part in parts),
        n_others=tree.n_others,
    )


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
        return build_image_model(
            self.config.model, n_classes=self._n_classes, image_size=self._image_size, shape=self.config.shape
        )

    def compile_regions(self, model: nn.Module) -> Sequence[nn.Module]:
        layers = getattr(getattr(model, "encoder", None), "layers", None)  # of torchvision's vision transformers
        return list(layers) if isinstance(layers, nn.Sequential) else super().compile_regions(model)

    def check_model(self) -> None:
        check_model(
            self.config.model,
            n_classes=self._n_classes,
            image_size=self._image_size,
            batch_size=self.config.batch_size,
            shape=self.config.shape,
        )

    @property
    def _n_classes(self) -> int:
        return len(self.data.classes)

    @property
    def _image_size(self) -> int:
        return int(self.data.train.images.shape[1])
