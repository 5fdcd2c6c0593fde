"""Augmentation against torchvision's own transforms, pixel for pixel."""

from __future__ import annotations

import numpy as np
import torch
from torchvision.transforms import functional

from tasks.vision.task import EpochDraws, measure_normalization


def draws(n: int, pad: int, epoch: int = 3) -> EpochDraws:
    return EpochDraws.draw(n, pad=pad, seed=1, epoch=epoch, device=torch.device("cpu"))


def test_crops_and_flips_are_torchvisions() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50, 12, 10, 3), dtype=torch.uint8, generator=generator)
    rows = torch.randperm(50, generator=generator)
    ours = draws(50, pad=4)
    got = torch.cat([ours.apply(images, rows[part], part) for part in (slice(0, 20), slice(20, 50))])
    for position, row in enumerate(rows.tolist()):
        image = functional.pad(images[row].permute(2, 0, 1), [4, 4, 4, 4])
        top, left = int(ours.top[position]), int(ours.left[position])
        image = functional.crop(image, top, left, 12, 10)
        if ours.flip[position]:
            image = functional.hflip(image)
        assert torch.equal(got[position], image.permute(1, 2, 0))


def test_draws_are_uniform_and_seeded() -> None:
    many = draws(90_000, pad=4)
    for offsets in (many.top, many.left):
        counts = np.bincount(offsets.numpy(), minlength=9)
        assert counts.size == 9
        assert abs(counts - 10_000).max() < 500
    assert abs(float(many.flip.float().mean()) - 0.5) < 0.01
    assert torch.equal(draws(10, pad=4).top, draws(10, pad=4).top)
    assert not torch.equal(draws(100, pad=4).top, draws(100, pad=4, epoch=4).top)


def test_normalization_is_numpys() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(3000, 5, 4, 3), dtype=np.uint8)
    rows = np.arange(0, 3000, 2)
    mean, std = measure_normalization(images, rows)
    np.testing.assert_allclose(mean, images[rows].mean(axis=(0, 1, 2), dtype=np.float64), rtol=1e-9)
    np.testing.assert_allclose(std, images[rows].std(axis=(0, 1, 2), dtype=np.float64), rtol=1e-9)
