"""Images of a task in memory: uint8, on the device where they fit, with labels and normalisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.engine.batches import Rows

DEVICE_SHARE = 0.4  # of the device's free memory that images may take; beyond it they stay on the host


@dataclass(frozen=True)
class ImageSplit:
    """Images (n, height, width, channels) uint8 and labels (n,) int64.

    Labels lie on the run's device. Images do too where they fit; otherwise in host memory (perhaps a mapped file), and
    each chunk is sent when its turn comes.
    """

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, images: NDArray[np.uint8], labels: Rows, *, device: torch.device) -> ImageSplit:
        """From arrays; copies to the device where `DEVICE_SHARE` of its free memory allows."""
        tensor = torch.from_numpy(images)
        if device.type == "cuda" and images.nbytes <= DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]:
            tensor = tensor.to(device)
        return cls(tensor, torch.from_numpy(labels).to(device))

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


def measure_normalization(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over (n, h, w, c) images, in grey levels; exact, in integers."""
    pixels = images.shape[0] * images.shape[1] * images.shape[2]
    means, stds = [], []
    for channel in range(images.shape[3]):
        counts = np.zeros(256, dtype=np.int64)
        for begin in range(0, len(images), 4096):
            counts += np.bincount(images[begin : begin + 4096, :, :, channel].ravel(), minlength=256)
        levels = np.arange(256)
        mean = float(counts @ levels) / pixels
        variance = float(counts @ levels**2) / pixels - mean**2
        means.append(mean)
        stds.append(max(variance, 1e-6) ** 0.5)
    return tuple(means), tuple(stds)
