"""The audio data sets (Spoken Digits, SUPERB, Common Language, own recordings), their batches, loss and scores."""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tasks.audio.clips import AudioData, Clips, ClipSplit, HoldOut, Part, Place, assemble
from tasks.audio.config import (
    SPECTROGRAM,
    TINY,
    AudioConfig,
    AudioFolderConfig,
    CommonLanguageConfig,
    FsddConfig,
    SuperbKsConfig,
)
from tasks.audio.models import CheckpointNet, SpectrogramNet, check_checkpoint, tiny_source, to_waves
from tasks.audio.recordings import Recordings, read_recordings
from tasks.data.find import find_tree, open_data_folder
from tasks.data.pretrained import ModelSource, find_model
from tasks.data.trees import find_class, normalize_name, open_tree
from tasks.engine.task import Batch, Split, Task, find_longest_stack
from tasks.errors import DataError
from tasks.metrics import classification_metrics

AudioConfigT = TypeVar("AudioConfigT", bound=AudioConfig)


class AudioTask(Task[AudioConfigT, AudioData], Generic[AudioConfigT]):
    """Subclasses say where recordings are and what their names mean; samples are 16 bits until inside the step."""

    classes: ClassVar[tuple[str, ...] | None] = None
    """The classes in order; None: those of the training set, sorted."""

    def __init__(self, config: AudioConfigT, data: AudioData, *, device: torch.device) -> None:
        super().__init__(config, data, device=device)
        self._longest = round(config.max_length_s * config.sample_rate)

    @classmethod
    @abstractmethod
    def parts(cls, config: AudioConfigT, folder: Path) -> Sequence[Part]:
        """The recordings, from the data folder or `config.data_dir` in it."""

    @classmethod
    def cache_key(cls, config: AudioConfigT) -> Hashable:
        fractions = (getattr(config, "val_fraction", None), getattr(config, "test_fraction", None))
        return (super().cache_key(config), config.model, config.sample_rate, config.on_bad_audio, fractions)

    @classmethod
    def load(cls, config: AudioConfigT, *, data_dir: Path | None, device: torch.device) -> AudioData:
        folder = open_data_folder(config.name, data_dir=data_dir, inner=config.data_dir)
        return assemble(
            cls.parts(config, folder),
            shares=HoldOut(
                val_fraction=getattr(config, "val_fraction", 0.0),
                test_fraction=getattr(config, "test_fraction", 0.0),
                split_seed=config.split_seed,
            ),
            classes=cls.classes,
            source=_source(config.model, data_dir=data_dir),
            device=device,
        )

    @property
    def n_train(self) -> int:
        return len(self.data.train)

    def build_model(self) -> nn.Module:
        n_classes, augment = len(self.data.classes), self.config.augment
        source = self.data.source
        if source is None:
            return SpectrogramNet(n_classes=n_classes, sample_rate=self.config.sample_rate, augment=augment)
        frozen = self.config.freeze_features and source.weights == "pretrained"
        return CheckpointNet(source, n_classes=n_classes, augment=augment, freeze="features" if frozen else "nothing")

    def compile_regions(self, model: nn.Module) -> Sequence[nn.Module]:
        return find_longest_stack(model)

    def train_batches(self, *, seed: int, epoch: int) -> Iterator[Batch]:
        """Batches {"waves": (batch, width) int16, "lengths": (batch,), "labels": (batch,)}."""
        return self._clips(self.data.train).train_batches(
            batch_size=self.config.batch_size, accumulation=self.config.accumulation, seed=seed, epoch=epoch
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(to_waves(batch["waves"]), batch["lengths"])
        return nn.functional.cross_entropy(logits.float(), batch["labels"], label_smoothing=self.config.label_smoothing)

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        part: ClipSplit = getattr(self.data, split)
        logits, order = [], []
        for rows, batch in self._clips(part).eval_batches():
            logits.append(model(to_waves(batch["waves"]), batch["lengths"]).float())
            order.append(rows)
        labels = torch.from_numpy(part.labels[np.concatenate(order)]).to(self.device)
        return classification_metrics(torch.cat(logits), labels)

    def record(self) -> dict[str, Any]:
        data = self.data
        sizes = {"n_val": len(data.val), "n_test": len(data.test)}
        left_out = {"n_skipped_recordings": data.n_skipped, "n_other_files": data.n_others}
        seconds = float(data.train.lengths.sum()) / self.config.sample_rate
        model = {} if data.source is None else data.source.record
        return {**super().record(), **sizes, **left_out, "train_seconds": round(seconds, 1), **model}

    def check_fit(self) -> None:
        super().check_fit()
        if self.data.source is not None:
            check_checkpoint(self.data.source, sample_rate=self.config.sample_rate)

    def _clips(self, split: ClipSplit) -> Clips:
        return Clips(split, longest=self._longest, device=self.device)


def _source(model: str, *, data_dir: Path | None) -> ModelSource | None:
    if model == SPECTROGRAM:
        return None
    return tiny_source() if model == TINY else find_model(model, data_dir=data_dir)


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
