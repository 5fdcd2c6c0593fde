"""Class folders of coloured noise: a stand-in for CIFAR in shape and size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

Tint = tuple[int, int, int]
"""What is added to each channel, at most 55, so that a net can tell the classes."""


def write_noise(folder: Path, tints: Mapping[str, Tint], *, n_train: int, n_test: int) -> None:
    """Write `train` and `test` with so many 32×32 images of each class, always the same ones."""
    rng = np.random.default_rng(0)
    for split, n in (("train", n_train), ("test", n_test)):
        for name, tint in tints.items():
            place = folder / split / name
            place.mkdir(parents=True)
            for index in range(n):
                pixels = rng.integers(0, 200, size=(32, 32, 3), dtype=np.uint8) + np.array(tint, dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{index:04d}.bmp")
