"""From recordings whose class and split are known by name to the three splits on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tasks.audio.clips import ClipSplit, place_samples
from tasks.audio.store import Recordings
from tasks.engine.batches import Rows, stratified_split
from tasks.errors import DataError
from tasks.text.models import ModelSource

Place = tuple[str, str]
"""(split, class); the split "all" where a data set has none of its own."""

TEST_SEED = 20240229  # the test set never moves, whatever split_seed says


@dataclass(frozen=True, kw_only=True)
class Part:
    """Recordings, and where those of a name belong (None: nowhere).

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


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Shares held out where a data set does not say: of all for the test, of what trains for validation."""

    val_fraction: float
    split_seed: int
    test_fraction: float = 0.0


def assemble(
    parts: Sequence[Part],
    *,
    hold_out: HoldOut,
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
        samples = place_samples(part.recordings.samples, device=device)
        for split in sorted({place[0] for place in places if place is not None}):
            rows = np.array([i for i, place in enumerate(places) if place and place[0] == split], dtype=np.int64)
            names = [place[1] for place in places if place and place[0] == split]
            splits[split] = ClipSplit.of(samples, part.recordings, rows, _numbered(names, known, split=split))
    held = _hold_out(splits, hold_out, classes=known)
    return AudioData(
        train=held["train"],
        val=held["val"],
        test=held["test"],
        classes=known,
        source=source,
        n_skipped=sum(part.recordings.n_skipped for part in parts),
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


def _hold_out(
    splits: Mapping[str, ClipSplit], hold_out: HoldOut, *, classes: tuple[str, ...]
) -> Mapping[str, ClipSplit]:
    held = dict(splits)
    if "all" in held:
        whole = held.pop("all")
        rest, test = _split(whole, hold_out.test_fraction, seed=TEST_SEED, classes=classes, what="test")
        held |= {"train": rest, "test": test}
    # Where nothing is to be held out, the data set says itself what to validate on.
    for split in ("train", "test") if hold_out.val_fraction else ("train", "val", "test"):
        if split not in held:
            raise DataError(
                f"no recording is of {split}; its folders or its list must name sound files that are there (where each "
                "task's files lie: docs/tasks.md)"
            )
    if "val" not in held:
        held["train"], held["val"] = _split(
            held["train"], hold_out.val_fraction, seed=hold_out.split_seed, classes=classes, what="validation"
        )
    return held


def _split(
    part: ClipSplit, fraction: float, *, seed: int, classes: tuple[str, ...], what: str
) -> tuple[ClipSplit, ClipSplit]:
    """(kept, held out), every class in both."""
    n_held_out = round(fraction * len(part))
    if not 0 < n_held_out < len(part):
        raise DataError(
            f"a {what} share of {fraction} of {len(part)} recordings leaves nothing to hold out or to train on; "
            "add recordings or change it"
        )
    kept, held_out = stratified_split(part.labels, n_held_out=n_held_out, seed=seed)
    for rows in (kept, held_out):
        counts = np.bincount(part.labels[rows], minlength=len(classes))
        if counts.min() == 0:
            klass = int(counts.argmin())
            n = int((part.labels == klass).sum())
            raise DataError(
                f"class {classes[klass]!r} has {n} recording(s), too few for training and {what} at a share of "
                f"{fraction}; add recordings or change the share"
            )
    return part.take(kept), part.take(held_out)
