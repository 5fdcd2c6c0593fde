"""The audio data sets: Spoken Digits, SUPERB's keywords, Common Language, and own recordings in folders."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from tasks.audio.clips import Part, Place
from tasks.audio.config import AudioFolderConfig, CommonLanguageConfig, FsddConfig, SuperbKsConfig
from tasks.audio.recordings import Recordings, read_recordings
from tasks.audio.task import AudioTask
from tasks.data.find import find_tree
from tasks.data.trees import find_class, normalize_name, open_tree
from tasks.errors import DataError


class AudioFolderTask(AudioTask[AudioFolderConfig]):
    """`data_dir` holds train/<class>/…, test/<class>/… and perhaps val/<class>/…, or <class>/… alone.

    Either may be under one folder of its own, as archives have it. Without split folders a tenth of each class is
    the test set, the same for every study.
    """

    @classmethod
    def parts(cls, config: AudioFolderConfig, folder: Path) -> Sequence[Part]:
        recordings = read_recordings(
            open_tree(folder), sample_rate=config.sample_rate, on_bad_audio=config.on_bad_audio
        )
        place = _layout(recordings)

        def place_file(name: str) -> Place | None:
            return place(str(PurePosixPath(name).parent))

        n_outside = sum(place_file(name) is None for name in recordings.names)
        counted = replace(recordings, n_others=recordings.n_others + n_outside)
        return [Part(recordings=counted, place_file=place_file, place_folder=place)]


def _layout(recordings: Recordings) -> Callable[[str], Place | None]:
    """Where the files of a folder belong.

    Raises:
        DataError: one of train/ and test/ is there without the other.
    """
    found = {place[0] for folder in recordings.folders if (place := find_class(folder)) is not None}
    found |= {
        place[0] for name in recordings.names if (place := find_class(str(PurePosixPath(name).parent))) is not None
    }
    if "train" in found or "test" in found:
        if missing := sorted({"train", "test"} - found):
            raise DataError(
                f"there are class folders in {', '.join(sorted(found))}/ but none in {missing[0]}/; add it, or leave "
                "split folders out altogether"
            )
        return find_class
    tops = {PurePosixPath(name).parts[0] for name in recordings.names}
    nested = all(len(PurePosixPath(name).parts) > 2 for name in recordings.names)
    return partial(_in_class, n_above=1 if len(tops) == 1 and nested else 0)


def _in_class(folder: str, *, n_above: int) -> Place | None:
    parts = PurePosixPath(folder).parts[n_above:]
    return ("all", normalize_name(parts[0])) if parts else None


FSDD_URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/heads/master.tar.gz"
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
            url=FSDD_URL if config.data_dir is None else None,
            file="fsdd.tar.gz",
            expected="fsdd.tar.xz, or a folder fsdd/ that holds recordings/0_george_0.wav and so on",
        )
        recordings = read_recordings(tree, sample_rate=config.sample_rate, on_bad_audio=config.on_bad_audio)
        return [Part(recordings=recordings, place_file=_place_take)]


def _place_take(name: str) -> Place | None:
    match = _NAME.fullmatch(PurePosixPath(name).name)
    if match is None:
        return None
    return "test" if int(match[2]) < N_TEST_TAKES else "train", match[1]


WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
SILENCE, UNKNOWN = "_silence_", "_unknown_"
NOISE = "_background_noise_"
STEM, TEST_STEM = "speech_commands_v0.01", "speech_commands_test_set_v0.01"
HOST = "https://storage.googleapis.com/download.tensorflow.org/data"


class SuperbKsTask(AudioTask[SuperbKsConfig]):
    """Ten words, silence, and every other word: 51,094 / 6,798 / 3,081 recordings of a second.

    Validation is what `validation_list.txt` names; what `testing_list.txt` names is left out, as the test set is an
    archive of its own. Silence in training is six long recordings of noise, of which each epoch uses a second.

    Source: Yang et al., "SUPERB" (2021), section 3.1; Warden, "Speech Commands" (2018).
    """

    classes = (*WORDS, SILENCE, UNKNOWN)

    @classmethod
    def parts(cls, config: SuperbKsConfig, folder: Path) -> Sequence[Part]:
        train, test = (
            read_recordings(
                find_tree(
                    folder,
                    (stem,),
                    url=f"{HOST}/{stem}.tar.gz" if config.data_dir is None else None,
                    file=f"{stem}.tar.gz",
                    expected=f"{stem}.tar.gz, or a folder {stem}/ with its content",
                ),
                sample_rate=config.sample_rate,
                on_bad_audio=config.on_bad_audio,
            )
            for stem in (STEM, TEST_STEM)
        )
        validation, testing = (_listed(train, file) for file in ("validation_list.txt", "testing_list.txt"))
        place_train = partial(_place_train, validation=validation, testing=testing)
        return [
            Part(recordings=train, place_file=place_train),
            Part(recordings=test, place_file=lambda name: ("test", _label(name))),
        ]


def _place_train(name: str, *, validation: frozenset[str], testing: frozenset[str]) -> Place | None:
    short = "/".join(PurePosixPath(name).parts[-2:])
    if short in testing:
        return None
    return "val" if short in validation else "train", _label(name)


def _label(name: str) -> str:
    word = PurePosixPath(name).parent.name
    if word in WORDS:
        return word
    return SILENCE if word in (SILENCE, NOISE) else UNKNOWN


def _listed(recordings: Recordings, file: str) -> frozenset[str]:
    """The names in one of the archive's lists, as <word>/<file>."""
    for name, text in recordings.texts.items():
        if PurePosixPath(name).name == file:
            return frozenset(text.split())
    raise DataError(f"{STEM} has no {file}, which says what to validate on; unpack or copy the archive again")


COMMON_LANGUAGE_URL = "https://zenodo.org/record/5036977/files/CommonLanguage.tar.gz?download=1"
COMMON_LANGUAGE_SPLITS: Mapping[str, str] = {"train": "train", "dev": "val", "test": "test"}


class CommonLanguageTask(AudioTask[CommonLanguageConfig]):
    """45 languages from Common Voice, 22,194 / 5,888 / 5,963 recordings, split by their authors by speaker.

    Files are at <language>/<train, dev or test>/<speaker>/<file>.wav.

    Source: Sinisetty et al., "CommonLanguage", 0.1 (2021), doi 10.5281/zenodo.5036977.
    """

    @classmethod
    def parts(cls, config: CommonLanguageConfig, folder: Path) -> Sequence[Part]:
        tree = find_tree(
            folder,
            ("CommonLanguage", "common_voice_kpd"),
            inside="Arabic",
            url=COMMON_LANGUAGE_URL if config.data_dir is None else None,
            file="CommonLanguage.tar.gz",
            expected="CommonLanguage.tar.gz, or a folder CommonLanguage/ with its content",
        )
        recordings = read_recordings(tree, sample_rate=config.sample_rate, on_bad_audio=config.on_bad_audio)
        return [Part(recordings=recordings, place_file=_place_by_language, place_folder=_place_by_language)]


def _place_by_language(name: str) -> Place | None:
    parts = PurePosixPath(name).parts
    for language, folder in itertools.pairwise(parts):
        if folder in COMMON_LANGUAGE_SPLITS:
            return COMMON_LANGUAGE_SPLITS[folder], normalize_name(language)
    return None
