"""scikit-learn's handwritten digits, with three small models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from tasks.digits.config import DigitsConfig
from tasks.engine.batches import epoch_order, stratified_split
from tasks.engine.task import Batch, Task
from tasks.errors import ConfigError
from tasks.vision.scoring import classification_metrics

N_VAL = 300
N_TEST = 300
TEST_SEED = 20240229  # the test set never moves, whatever split_seed says


class DigitsTask(Task[DigitsConfig]):
    """1,797 images of 8×8 pixels in 17 grey levels, ten classes: 1,197 train, 300 validation, 300 test, stratified.

    Source: Alpaydin & Kaynak, "Optical Recognition of Handwritten Digits", UCI (1998), the test part, as in
    `sklearn.datasets.load_digits`.
    """

    def __init__(self, device: torch.device, *, images: Tensor, labels: Tensor, split: dict[str, Tensor]) -> None:
        super().__init__(device)
        self._images = {name: images[index].to(device) for name, index in split.items()}
        self._labels = {name: labels[index].to(device) for name, index in split.items()}

    @classmethod
    def load(cls, config: DigitsConfig, *, data_dir: Path | None, device: torch.device) -> Self:
        del data_dir
        from sklearn.datasets import load_digits

        pixels, classes = load_digits(return_X_y=True)
        labels = np.asarray(classes, dtype=np.int64)
        rest, test = stratified_split(labels, n_held_out=N_TEST, seed=TEST_SEED)
        train, val = stratified_split(labels[rest], n_held_out=N_VAL, seed=config.split_seed)
        images = torch.from_numpy(np.asarray(pixels, dtype=np.float32)).reshape(-1, 1, 8, 8) / 16.0
        index = {"train": rest[train], "val": rest[val], "test": test}
        split = {name: torch.from_numpy(rows) for name, rows in index.items()}
        mean, std = images[split["train"]].mean(), images[split["train"]].std()
        return cls(device, images=(images - mean) / std, labels=torch.from_numpy(labels), split=split)

    def check_fit(self, config: DigitsConfig) -> None:
        if (need := config.batch_size * config.accumulation) > self.n_train(config):
            raise ConfigError(
                f"batch_size × accumulation is {need}, more than the {self.n_train(config)} training images of digits; "
                "lower it"
            )

    def n_train(self, config: DigitsConfig) -> int:
        return len(self._labels["train"])

    def batches_per_epoch(self, config: DigitsConfig) -> int:
        return self.n_train(config) // config.batch_size

    def build_model(self, config: DigitsConfig) -> nn.Module:
        match config.model:
            case "convnet":
                return _convnet()
            case "mlp":
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
            case _:
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def train_batches(self, config: DigitsConfig, *, seed: int, epoch: int) -> Iterator[Batch]:
        order = epoch_order(self.n_train(config), seed=seed, epoch=epoch).to(self.device)
        for rows in order[: self.batches_per_epoch(config) * config.batch_size].split(config.batch_size):
            yield {"images": self._images["train"][rows], "labels": self._labels["train"][rows]}

    def loss(self, model: nn.Module, batch: Batch, config: DigitsConfig) -> Tensor:
        logits = model(batch["images"])
        return nn.functional.cross_entropy(logits.float(), batch["labels"], label_smoothing=config.label_smoothing)

    def evaluate(self, model: nn.Module, split: str, config: DigitsConfig) -> dict[str, float]:
        return classification_metrics(model(self._images[split]), self._labels[split])


def _convnet() -> nn.Module:
    """Two 3×3 convolutions with batch norm, one pooling: 11,466 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(512, 10),
    )
