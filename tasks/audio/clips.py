"""Recordings on a device in three splits, and batches of them by length, cut or padded with silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.audio.recordings import Recordings
from tasks.data.hold_out import Rows, hold_out
from tasks.data.pretrained import ModelSource
from tasks.engine.device import place_array
from tasks.engine.seeds import random_stream
from tasks.errors import DataError
from tasks.text.tokens import bucket_widths, plan_epoch

N_BUCKETS = 32  # lengths that a batch may have: one captured graph each
CHUNK_SAMPLES = 2**22  # gathered at once: few large kernels instead of many small ones
SHORTEST = 400  # samples; wav2vec 2.0's feature encoder makes no frame of fewer
EVAL_SAMPLES = 2**21  # in a batch of an evaluation, padding included


@dataclass(frozen=True, kw_only=True)
class ClipSplit:
    """n recordings of a split.

    Attributes:
        samples: int16, of all recordings that share the tensor, on the device or the host.
        starts, lengths: int64 (n,), where each recording is in it.
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
        draws = random_stream(seed, "crops", epoch).random(len(self._split))
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


Place = tuple[str, str]
"""(split, class); the split "all" where a data set has none of its own."""

TEST_SEED = 20240229  # the test set never moves, whatever split_seed says


@dataclass(frozen=True, kw_only=True)
class Part:
    """Recordings, and the place of each by its name (None: not used).

    Attributes:
        place_file, place_folder: of a name in the tree; a folder that has a place must hold a recording.
    """

    recordings: Recordings
    place_file: Callable[[str], Place | None]
    place_folder: Callable[[str], Place | None] = lambda name: None


@dataclass(frozen=True, kw_only=True)
class AudioData:
    """The three splits, the class names, the checkpoint (None: a net of our own), and recordings left out."""

    train: ClipSplit
    val: ClipSplit
    test: ClipSplit
    classes: tuple[str, ...]
    source: ModelSource | None
    n_skipped: int = 0
    n_others: int = 0


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Shares held out where a data set has no such split: of all for the test, of what trains for validation."""

    val_fraction: float
    split_seed: int
    test_fraction: float = 0.0


def assemble(
    parts: Sequence[Part],
    *,
    shares: HoldOut,
    classes: tuple[str, ...] | None,
    source: ModelSource | None,
    device: torch.device,
) -> AudioData:
    """Put the recordings on the device and split them.

    Args:
        classes: in order; None: those of the training set, sorted.

    Raises:
        DataError: fewer than two classes, a class that training does not know or that has too few recordings, an empty
            class folder, or an empty split.
    """
    for part in parts:
        _check_folders(part)
    placed = [[part.place_file(name) for name in part.recordings.names] for part in parts]
    known = classes or _classes(place for places in placed for place in places if place is not None)
    splits: dict[str, ClipSplit] = {}
    for part, places in zip(parts, placed, strict=True):
        samples = place_array(part.recordings.samples, device=device)
        for split in sorted({place[0] for place in places if place is not None}):
            rows = np.array([i for i, place in enumerate(places) if place and place[0] == split], dtype=np.int64)
            names = [place[1] for place in places if place and place[0] == split]
            splits[split] = ClipSplit.of(samples, part.recordings, rows, _numbered(names, known, split=split))
    held = _hold_out(splits, shares, classes=known)
    return AudioData(
        train=held["train"],
        val=held["val"],
        test=held["test"],
        classes=known,
        source=source,
        n_skipped=sum(part.recordings.n_skipped for part in parts),
        n_others=sum(part.recordings.n_others for part in parts),
    )


def _check_folders(part: Part) -> None:
    filled = {part.place_file(name) for name in part.recordings.names}
    for folder in sorted(part.recordings.folders):
        place = part.place_folder(folder)
        if place is not None and place not in filled:
            raise DataError(f"class folder {folder} holds no readable recording; fill it or remove it")


def _classes(places: Iterable[Place]) -> tuple[str, ...]:
    found = sorted({klass for split, klass in places if split in ("train", "all")})
    if len(found) < 2:
        raise DataError(
            f"the training set has {len(found)} class(es), {', '.join(map(repr, found)) or 'none'}; a classification "
            "needs at least two: add a folder for each"
        )
    return tuple(found)


def _numbered(names: list[str], classes: tuple[str, ...], *, split: str) -> Rows:
    number = {klass: index for index, klass in enumerate(classes)}
    if strange := sorted(set(names) - set(classes)):
        raise DataError(f"class {strange[0]!r} is in {split} but not in train; the two must have the same classes")
    return np.array([number[name] for name in names], dtype=np.int64)


def _hold_out(splits: Mapping[str, ClipSplit], shares: HoldOut, *, classes: tuple[str, ...]) -> Mapping[str, ClipSplit]:
    held = dict(splits)
    if "all" in held:
        whole = held.pop("all")
        rest, test = hold_out(
            whole.labels,
            fraction=shares.test_fraction,
            seed=TEST_SEED,
            what="recording",
            classes=classes,
            field="test_fraction",
            purpose="test",
        )
        held |= {"train": whole.take(rest), "test": whole.take(test)}
    # Where nothing is to be held out, the data set says itself what to validate on.
    for split in ("train", "test") if shares.val_fraction else ("train", "val", "test"):
        if split not in held:
            raise DataError(
                f"no recording is in {split}; its folders or its list must name existing sound files (where each "
                "task's files are: docs/tasks.md)"
            )
    if "val" not in held:
        train = held["train"]
        rest, val = hold_out(
            train.labels, fraction=shares.val_fraction, seed=shares.split_seed, what="recording", classes=classes
        )
        held |= {"train": train.take(rest), "val": train.take(val)}
    return held
