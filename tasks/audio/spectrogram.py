"""A small convolutional net on log-mel spectrograms, trained from scratch."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
from torch import Tensor, nn

from tasks.audio.features import FLOOR, LogMel, span_mask, standardize

N_BANDS = 40
CHANNELS = (16, 32, 64)
MASKED_TIME = 0.15
MASKED_BANDS = 0.15


class SpectrogramNet(nn.Module):
    """Four 3×3 convolutions with batch norm, the first three halving time and bands; mean and maximum over time.

    61,690 parameters at ten classes.
    """

    def __init__(self, *, n_classes: int, sample_rate: int, augment: Literal["none", "spec"]) -> None:
        super().__init__()
        self.features = LogMel(sample_rate=sample_rate, n_bands=N_BANDS)
        self._augment = augment
        self.blocks = nn.ModuleList(
            _convolution(before, after) for before, after in itertools.pairwise((1, *CHANNELS, CHANNELS[-1]))
        )
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(2 * CHANNELS[-1], n_classes)

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        """Logits (b, classes) of waves (b, width) whose clips have these lengths (b,); how loud they are is nothing."""
        bands = self.features(standardize(waves, lengths)) - math.log(FLOOR)  # silence is 0, as padding is
        if self.training and self._augment == "spec":
            bands = _mask(bands)
        heard = lengths // self.features.hop + 1  # frames; what lies beyond stays silent, however much it is
        maps = bands.unsqueeze(1) * _inside(heard, bands.shape[2])
        for place, block in enumerate(self.blocks):
            if place:
                maps, heard = self.pool(maps), (heard + 1) // 2
            maps = block(maps) * _inside(heard, maps.shape[3])
        maps = maps.mean(dim=2)
        mean = maps.sum(dim=2) / heard[:, None]
        largest = maps.amax(dim=2)  # of nothing negative, so silence never is
        logits: Tensor = self.head(self.dropout(torch.cat([mean, largest], dim=1)))
        return logits


def _convolution(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def _inside(heard: Tensor, n_frames: int) -> Tensor:
    return torch.arange(n_frames, device=heard.device) < heard[:, None, None, None]


def _mask(bands: Tensor) -> Tensor:
    """Silence in a few spans of time and one of bands, of each clip its own."""
    n, n_bands, n_frames = bands.shape
    times = span_mask(n, n_frames, share=MASKED_TIME, length=max(1, n_frames // 10), at_least=1, device=bands.device)
    rows = span_mask(n, n_bands, share=MASKED_BANDS, length=n_bands // 7, at_least=1, device=bands.device)
    return bands.masked_fill(times[:, None, :] | rows[:, :, None], 0.0)
