"""Classification of recordings: batches, loss and scores of every audio task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tasks.audio.clips import AudioData, Clips, ClipSplit, HoldOut, Part, assemble
from tasks.audio.config import SPECTROGRAM, TINY, AudioConfig
from tasks.audio.models import CheckpointNet, SpectrogramNet, check_checkpoint, tiny_source, to_waves
from tasks.data.find import open_data_folder
from tasks.data.pretrained import ModelSource, find_model
from tasks.engine.task import Batch, Split, Task, find_longest_stack
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
