"""Random crops and flips of whole chunks of images, on the device the images are on.

The draws come from numpy on the CPU, so a seed gives the same crops on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tasks.engine.seeds import derive_seed


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
        rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "augment", epoch)))
        offsets = torch.from_numpy(rng.integers(0, 2 * pad + 1, size=(2, n))).to(device)
        flip = torch.from_numpy(rng.integers(0, 2, size=n)).to(device)
        return cls(top=offsets[0], left=offsets[1], flip=flip, pad=pad)

    def apply(self, images: Tensor, rows: Tensor, positions: slice) -> Tensor:
        """The augmented images of some rows.

        Args:
            images: the whole split, (n, height, width, channels) uint8.
            rows: which images, int64 (m,), on the same device.
            positions: where those rows stand in the epoch's order, of length m.

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
