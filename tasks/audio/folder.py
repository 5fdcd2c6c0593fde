"""Anyone's own recordings in class folders, with a test folder or without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from tasks.audio.config import AudioFolderConfig
from tasks.audio.data import Part, Place
from tasks.audio.store import Recordings, read_recordings
from tasks.audio.task import AudioTask
from tasks.errors import DataError
from tasks.trees import open_tree

SPLITS: Mapping[str, str] = {"train": "train", "test": "test", "val": "val", "validation": "val", "dev": "val"}


class AudioFolderTask(AudioTask[AudioFolderConfig]):
    """`data_dir` holds train/<class>/…, test/<class>/… and perhaps val/<class>/…, or <class>/… alone.

    Either may stand under one folder of its own, as archives have it. Without split folders a tenth of each class is
    the test set, the same for every study.
    """

    @classmethod
    def parts(cls, config: AudioFolderConfig, folder: Path) -> Sequence[Part]:
        recordings = read_recordings(
            open_tree(folder), sample_rate=config.sample_rate, on_bad_audio=config.on_bad_audio
        )
        place = _layout(recordings)
        return [
            Part(
                recordings=recordings,
                place_file=lambda name: place(str(PurePosixPath(name).parent)),
                place_folder=place,
            )
        ]


def _layout(recordings: Recordings) -> Callable[[str], Place | None]:
    """Where the files of a folder belong.

    Raises:
        DataError: one of train/ and test/ is there without the other.
    """
    found = {place[0] for folder in recordings.folders if (place := _in_split(folder)) is not None}
    found |= {
        place[0] for name in recordings.names if (place := _in_split(str(PurePosixPath(name).parent))) is not None
    }
    if "train" in found or "test" in found:
        if missing := sorted({"train", "test"} - found):
            raise DataError(
                f"there are class folders in {', '.join(sorted(found))}/ but none in {missing[0]}/; add it, or leave "
                "split folders out altogether"
            )
        return _in_split
    tops = {PurePosixPath(name).parts[0] for name in recordings.names}
    nested = all(len(PurePosixPath(name).parts) > 2 for name in recordings.names)
    return partial(_in_class, n_above=1 if len(tops) == 1 and nested else 0)


def _in_split(folder: str) -> Place | None:
    parts = PurePosixPath(folder).parts
    for tail in (parts, parts[1:]):
        if len(tail) >= 2 and tail[0] in SPLITS:
            return SPLITS[tail[0]], tail[1]
    return None


def _in_class(folder: str, *, n_above: int) -> Place | None:
    parts = PurePosixPath(folder).parts[n_above:]
    return ("all", parts[0]) if parts else None
