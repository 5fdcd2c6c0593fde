"""Common Language: which of 45 languages is spoken."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from tasks.audio.config import CommonLanguageConfig
from tasks.audio.data import Part, Place
from tasks.audio.sources import find_tree
from tasks.audio.store import read_recordings
from tasks.audio.task import AudioTask

URL = "https://zenodo.org/record/5036977/files/CommonLanguage.tar.gz?download=1"
SPLITS: Mapping[str, str] = {"train": "train", "dev": "val", "test": "test"}


class CommonLanguageTask(AudioTask[CommonLanguageConfig]):
    """45 languages from Common Voice, 22,194 / 5,888 / 5,963 recordings, split by their authors by speaker.

    Files lie as <language>/<train, dev or test>/<speaker>/<file>.wav.

    Source: Sinisetty et al., "CommonLanguage", 0.1 (2021), doi 10.5281/zenodo.5036977.
    """

    @classmethod
    def parts(cls, config: CommonLanguageConfig, folder: Path) -> Sequence[Part]:
        tree = find_tree(
            folder,
            ("CommonLanguage", "common_voice_kpd"),
            inside="Arabic",
            url=URL if config.data_dir is None else None,
            file="CommonLanguage.tar.gz",
            expected="CommonLanguage.tar.gz, or a folder CommonLanguage/ with its content",
        )
        recordings = read_recordings(tree, sample_rate=config.sample_rate, on_bad_audio=config.on_bad_audio)
        return [Part(recordings=recordings, place_file=_place, place_folder=_place)]


def _place(name: str) -> Place | None:
    parts = PurePosixPath(name).parts
    for language, folder in itertools.pairwise(parts):
        if folder in SPLITS:
            return SPLITS[folder], language
    return None
