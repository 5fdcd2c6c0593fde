"""A small convolutional net on log-mel spectrograms, trained from scratch."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
from torch import Tensor, nn

from tasks.audio.features import FLOOR, LogMel, span_mask

N_BANDS = 40
CHANNELS = (16, 32, 64)
MASKED_TIME = 0.15
MASKED_BANDS = 0.15


class SpectrogramNet(nn.Module):
    """Four 3×3 convolutions with batch norm, the first three halving time and bands; mean and maximum over time.

    243,000 parameters at ten classes.
    """

    def __init__(self, *, n_classes: int, sample_rate: int, augment: Literal["none", "spec"]) -> None:
        super().__init__()
        self.features = LogMel(sample_rate=sample_rate, n_bands=N_BANDS)
        self._augment = augment
        widths = (1, *CHANNELS)
        self.blocks = nn.ModuleList(
            nn.Sequential(_convolution(before, after), nn.MaxPool2d(2, ceil_mode=True))
            for before, after in itertools.pairwise(widths)
        )
        self.last = _convolution(CHANNELS[-1], CHANNELS[-1])
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(2 * CHANNELS[-1], n_classes)

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Logits (b, classes) of standardised waves (b, width) whose clips have these lengths (b,)."""
        bands = self.features(waves) - math.log(FLOOR)  # silence is 0, as padding is
        if self.training and self._augment == "spec":
            bands = _mask(bands)
        maps = bands.unsqueeze(1)
        for block in self.blocks:
            maps = block(maps)
        maps = self.last(maps).mean(dim=2)
        shrunk = 2 ** len(CHANNELS)
        heard = (lengths // self.features.hop + shrunk) // shrunk  # ⌈frames / shrunk⌉
        inside = torch.arange(maps.shape[2], device=maps.device) < heard[:, None, None]
        mean = (maps * inside).sum(dim=2) / inside.sum(dim=2)
        largest = maps.masked_fill(~inside, -torch.inf).amax(dim=2)
        logits: Tensor = self.head(self.dropout(torch.cat([mean, largest], dim=1)))
        return logits


def _convolution(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def _mask(bands: Tensor) -> Tensor:
    """Silence in a few spans of time and one of bands, of each clip its own."""
    n, n_bands, n_frames = bands.shape
    times = span_mask(n, n_frames, share=MASKED_TIME, length=max(1, n_frames // 10), at_least=1, device=bands.device)
    rows = span_mask(n, n_bands, share=MASKED_BANDS, length=n_bands // 7, at_least=1, device=bands.device)
    return bands.masked_fill(times[:, None, :] | rows[:, :, None], 0.0)
