"""Images of a task in memory: uint8, on the device where they fit, in three splits, with normalization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.data.hold_out import Rows, hold_out
from tasks.engine.device import place_array
from tasks.vision.config import SplitImageConfig
from tasks.vision.images import DecodedTree


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
