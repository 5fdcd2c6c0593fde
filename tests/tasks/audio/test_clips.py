"""Batches of recordings: padding, parts of long ones, and that seed and epoch decide everything."""

from __future__ import annotations

import numpy as np
import torch

from tasks.audio.clips import SHORTEST, Clips, ClipSplit

LENGTHS = np.array([500, 900, 2500, 5000, 400, 450, 3000, 700])


def split() -> ClipSplit:
    """Recording i consists of the values i·1000, i·1000 + 1, …, all above 0, modulo what 16 bits hold."""
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    values = np.concatenate([np.arange(n) + 1 for n in LENGTHS]).astype(np.int16)
    return ClipSplit(
        samples=torch.from_numpy(values), starts=starts[:-1], lengths=LENGTHS, labels=np.arange(8, dtype=np.int64)
    )


def clips(longest: int = 2000) -> Clips:
    return Clips(split(), longest=longest, device=torch.device("cpu"))


def test_an_epoch_holds_each_recording_once_padded_with_silence() -> None:
    batches = list(clips().train_batches(batch_size=2, accumulation=2, seed=0, epoch=0))
    assert len(batches) == 4
    labels = torch.cat([batch["labels"] for batch in batches])
    assert sorted(labels.tolist()) == list(range(8))
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        assert first["waves"].shape == second["waves"].shape  # micro-batches of one step share a graph
    for batch in batches:
        for wave, length, label in zip(batch["waves"], batch["lengths"], batch["labels"], strict=True):
            assert length == min(2000, LENGTHS[label])
            assert wave[length:].abs().sum() == 0
            assert (wave[:length].diff() == 1).all()  # a part in one piece
            if LENGTHS[label] <= 2000:
                assert wave[0] == 1


def test_seed_and_epoch_decide_order_and_parts() -> None:
    def epoch(seed: int, number: int) -> list[torch.Tensor]:
        return [b["waves"] for b in clips().train_batches(batch_size=4, accumulation=1, seed=seed, epoch=number)]

    same = zip(epoch(0, 1), epoch(0, 1), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    for other in (epoch(1, 1), epoch(0, 2)):
        assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(epoch(0, 1), other, strict=True))


def test_evaluation_hears_the_middle_of_long_ones_and_all_once() -> None:
    rows, waves = [], {}
    for part, batch in clips().eval_batches():
        rows += part.tolist()
        assert batch["waves"].shape[1] >= SHORTEST
        for row, wave, length in zip(part.tolist(), batch["waves"], batch["lengths"].tolist(), strict=True):
            waves[row] = wave[:length]
    assert sorted(rows) == list(range(8))
    assert waves[3][0] == 1501  # of 5,000 the middle 2,000
    assert len(waves[3]) == 2000
    assert waves[4].tolist() == list(range(1, 401))
