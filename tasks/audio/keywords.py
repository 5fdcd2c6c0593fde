"""SUPERB's keyword spotting on Speech Commands v0.01."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from tasks.audio.config import SuperbKsConfig
from tasks.audio.data import Part, Place
from tasks.audio.sources import find_tree
from tasks.audio.store import Recordings, read_recordings
from tasks.audio.task import AudioTask
from tasks.errors import DataError

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
SILENCE, UNKNOWN = "_silence_", "_unknown_"
NOISE = "_background_noise_"
STEM, TEST_STEM = "speech_commands_v0.01", "speech_commands_test_set_v0.01"
HOST = "https://storage.googleapis.com/download.tensorflow.org/data"


class SuperbKsTask(AudioTask[SuperbKsConfig]):
    """Ten words, silence, and every other word: 51,094 / 6,798 / 3,081 recordings of a second.

    Validation is what `validation_list.txt` names; what `testing_list.txt` names is left out, as the test set is an
    archive of its own. Silence in training is six long recordings of noise, of which each epoch hears a second.

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
