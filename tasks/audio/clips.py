"""Recordings on a device, and batches of them by length: cut to the longest allowed, padded with silence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.audio.store import Recordings
from tasks.engine.batches import Rows
from tasks.engine.seeds import derive_seed
from tasks.text.batches import bucket_widths, plan_epoch

N_BUCKETS = 32  # lengths that a batch may have: one captured graph each
CHUNK_SAMPLES = 2**22  # gathered at once: few large kernels instead of many small ones
SHORTEST = 400  # samples; wav2vec 2.0's feature encoder makes no frame of fewer
EVAL_SAMPLES = 2**21  # in a batch of an evaluation, padding included
DEVICE_SHARE = 0.4  # of the device's free memory that recordings may take; beyond it they stay on the host


def place_samples(samples: NDArray[np.int16], *, device: torch.device) -> Tensor:
    """Samples as a tensor: on the device where `DEVICE_SHARE` of its free memory allows, or else on the host."""
    tensor = torch.from_numpy(samples)
    if device.type == "cuda" and samples.nbytes <= DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]:
        return tensor.to(device)
    return tensor


@dataclass(frozen=True, kw_only=True)
class ClipSplit:
    """n recordings of a split.

    Attributes:
        samples: int16, of all recordings that share the tensor, on the device or the host.
        starts, lengths: int64 (n,), where each recording lies in it.
        labels: int64 (n,).
    """

    samples: Tensor
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    labels: Rows

    @classmethod
    def of(cls, samples: Tensor, recordings: Recordings, rows: Rows, labels: Rows) -> ClipSplit:
        """Some rows of recordings whose samples are in place, with the labels of those rows."""
        lengths = np.diff(recordings.starts)
        return cls(samples=samples, starts=recordings.starts[rows], lengths=lengths[rows], labels=labels)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Rows) -> ClipSplit:
        """Some of them."""
        return ClipSplit(
            samples=self.samples, starts=self.starts[rows], lengths=self.lengths[rows], labels=self.labels[rows]
        )


class Clips:
    """A split's batches on a device: {"waves": int16 (b, width), "lengths": int64 (b,), "labels": int64 (b,)}.

    Args:
        longest: samples that a clip has at most.
    """

    def __init__(self, split: ClipSplit, *, longest: int, device: torch.device) -> None:
        self._split = split
        self._longest = longest
        self._bucket = -(-longest // N_BUCKETS)
        self._device = device
        self._kept = np.minimum(split.lengths, longest)
        self._surplus = split.lengths - self._kept

    def train_batches(
        self, *, batch_size: int, accumulation: int, seed: int, epoch: int
    ) -> Iterator[dict[str, Tensor]]:
        """One epoch: batches of clips of about one length in random order; of longer recordings a random part.

        A function of its arguments alone; recordings beyond whole steps are left out, others each epoch.
        """
        plan = plan_epoch(
            self._kept, samples_per_step=batch_size * accumulation, seed=seed, epoch=epoch, bucket=self._bucket
        )
        draws = np.random.Generator(np.random.PCG64(derive_seed(seed, "crops", epoch))).random(len(self._split))
        begins = self._split.starts + np.floor(draws * (self._surplus + 1)).astype(np.int64)
        for rows, width in zip(plan.rows, self._widths(plan.widths), strict=True):
            step = self._gather(rows, begins[rows], int(width))
            for start in range(0, len(rows), batch_size):
                yield {name: column[start : start + batch_size] for name, column in step.items()}

    def eval_batches(self) -> Iterator[tuple[Rows, dict[str, Tensor]]]:
        """Every recording once, longest first, its middle where it is too long; with the rows that a batch holds."""
        begins = self._split.starts + self._surplus // 2
        order = np.argsort(-self._kept, kind="stable")
        place = 0
        while place < len(order):
            width = int(self._widths(bucket_widths(self._kept[order[place : place + 1]], bucket=self._bucket))[0])
            rows = order[place : place + max(1, EVAL_SAMPLES // width)]
            yield rows, self._gather(rows, begins[rows], width)
            place += len(rows)

    def _widths(self, widths: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.clip(widths, SHORTEST, max(SHORTEST, self._longest))

    def _gather(self, rows: Rows, begins: NDArray[np.int64], width: int) -> dict[str, Tensor]:
        source = self._split.samples
        lengths = torch.from_numpy(self._kept[rows])
        parts = []
        at_once = max(1, CHUNK_SAMPLES // width)
        place = torch.arange(width, device=source.device)
        for begin in range(0, len(rows), at_once):
            part = slice(begin, begin + at_once)
            inside = place < lengths[part].to(source.device)[:, None]
            first = torch.from_numpy(begins[part]).to(source.device)
            index = torch.where(inside, first[:, None] + place, 0)
            parts.append(source[index].masked_fill_(~inside, 0).to(self._device, non_blocking=True))
        return {
            "waves": torch.cat(parts),
            "lengths": lengths.to(self._device),
            "labels": torch.from_numpy(self._split.labels[rows]).to(self._device),
        }
