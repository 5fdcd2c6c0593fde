"""The Free Spoken Digit Dataset: small enough for a CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from tasks.audio.config import FsddConfig
from tasks.audio.data import Part, Place
from tasks.audio.sources import find_tree
from tasks.audio.store import read_recordings
from tasks.audio.task import AudioTask

URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/heads/master.tar.gz"
N_TEST_TAKES = 5
_NAME = re.compile(r"(\d)_[^_]+_(\d+)\.wav")  # {digit}_{speaker}_{take}


class FsddTask(AudioTask[FsddConfig]):
    """3,000 recordings of the digits by six speakers, fifty takes each; takes 0 to 4 are the test set.

    Source: Jackson, "Free Spoken Digit Dataset", v1.0.10, whose readme fixes the test takes.
    """

    classes = tuple("0123456789")

    @classmethod
    def parts(cls, config: FsddConfig, folder: Path) -> Sequence[Part]:
        tree = find_tree(
            folder,
            ("fsdd", "free-spoken-digit-dataset"),
            inside="recordings",
            url=URL if config.data_dir is None else None,
            file="fsdd.tar.gz",
            expected="fsdd.tar.xz, or a folder fsdd/ that holds recordings/0_george_0.wav and so on",
        )
        recordings = read_recordings(tree, sample_rate=config.sample_rate, on_bad_audio=config.on_bad_audio)
        return [Part(recordings=recordings, place_file=_place)]


def _place(name: str) -> Place | None:
    match = _NAME.fullmatch(PurePosixPath(name).name)
    if match is None:
        return None
    return "test" if int(match[2]) < N_TEST_TAKES else "train", match[1]
