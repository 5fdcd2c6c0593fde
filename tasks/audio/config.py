"""The configurations of the audio tasks: models, rates, lengths, the paper's budgets. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tasks.config import (
    Accumulation,
    BatchSize,
    Epochs,
    Flag,
    GradClip,
    NamedSchedule,
    Number,
    RelativePath,
    Schedule,
    TaskConfig,
    ValFraction,
    WeightDecayOn,
)
from tasks.text.config import CHECKPOINT_NAME, TRANSFORMERS

WAV2VEC2 = "facebook/wav2vec2-base"
SPECTROGRAM = "spectrogram"
TINY = "tiny"


SampleRate = Annotated[
    int, Field(strict=True, ge=4_000, le=48_000, description="Hz; recordings of other rates are resampled")
]
ClipSeconds = Annotated[
    float,
    Field(
        strict=True,
        ge=0.1,
        le=60.0,
        description="seconds; training uses a random part of longer recordings, evaluation the middle",
    ),
]


class AudioConfig(TaskConfig):
    """What every task on recordings has besides the common fields.

    The defaults are the paper's for wav2vec 2.0, with what its authors' configurations add: linear decay after a
    warm-up over a tenth of the run, four batches of 32 in a step, the convolutional feature encoder not trained.

    Source: Chen et al., ICML 2023, appendix, Audio Classification.
    """

    models: ClassVar[tuple[str, ...]] = (SPECTROGRAM, TINY, WAV2VEC2)
    open_models: ClassVar[str | None] = CHECKPOINT_NAME

    model: str = Field(
        WAV2VEC2,
        description="spectrogram: a small convolutional net on log-mel spectrograms; tiny: a small wav2vec 2.0 with "
        "random weights; or a wav2vec 2.0, HuBERT or WavLM checkpoint: its hub name, or its folder in the data folder",
    )
    batch_size: BatchSize = 32
    accumulation: Accumulation = 4
    schedule: NamedSchedule = Schedule(name="linear", warmup=0.1)
    grad_clip: GradClip = 1.0
    weight_decay_on: WeightDecayOn = "matrices"
    sample_rate: SampleRate = 16_000
    max_length_s: ClipSeconds = 16.0
    freeze_features: Flag = Field(
        default=True, description="checkpoints: their convolutional feature encoder is not trained"
    )
    augment: Literal["none", "spec"] = Field(
        "spec",
        description="spec: spans of time and of frequency are masked in training, as a checkpoint's config has it",
    )
    on_bad_audio: Literal["refuse", "skip"] = Field("refuse", description="a file that cannot be read, or is truncated")

    def libraries(self) -> tuple[str, ...]:
        return (*super().libraries(), *(() if self.model == SPECTROGRAM else TRANSFORMERS))


class SuperbKsConfig(AudioConfig):
    """SUPERB keyword spotting: Speech Commands v0.01: ten words, silence and all other words, a second each;
    51,094 / 6,798 / 3,081.
    """

    name: Literal["superb_ks"] = "superb_ks"
    epochs: Epochs = 5
    max_length_s: ClipSeconds = 1.0


class CommonLanguageConfig(AudioConfig):
    """Common Language: which of 45 languages is spoken; 22,194 / 5,888 / 5,963 recordings."""

    name: Literal["common_language"] = "common_language"
    epochs: Epochs = 10


class SplitAudioConfig(AudioConfig):
    """Tasks whose validation set is split off the training set."""

    val_fraction: ValFraction = 0.1


class FsddConfig(SplitAudioConfig):
    """Spoken digits: 3,000 recordings of the ten digits by six speakers, 2,430 / 270 / 300; minutes on one core."""

    name: Literal["fsdd"] = "fsdd"
    model: str = Field(SPECTROGRAM, description="as in audio_folder")
    epochs: Epochs = 30
    accumulation: Accumulation = 1
    schedule: NamedSchedule = Schedule(name="cosine", warmup=0.1)
    sample_rate: SampleRate = 8_000
    max_length_s: ClipSeconds = 1.0


class AudioFolderConfig(SplitAudioConfig):
    """Own recordings: your recordings in class folders, with or without a test folder, a folder or a tar archive."""

    name: Literal["audio_folder"] = "audio_folder"
    data_dir: RelativePath = Field(description="inside the data folder: a folder, or a .tar, .tar.gz or .tar.xz file")
    epochs: Epochs = 10
    accumulation: Accumulation = 1
    test_fraction: Number = Field(
        0.1, gt=0.0, lt=1.0, description="where there is no test folder: of all recordings, held out for the test"
    )
