"""scikit-learn's handwritten digits, with three small models."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tasks.digits.config import DigitsConfig
from tasks.engine.batches import stratified_split
from tasks.errors import DataError
from tasks.vision.data import ImageData, ImageSplit, measure_normalization, place_images
from tasks.vision.task import ImageTask

N_VAL = 300
N_TEST = 300
TEST_SEED = 20240229  # the test set never moves, whatever split_seed says


class DigitsTask(ImageTask[DigitsConfig]):
    """1,797 images of 8×8 pixels in 17 grey levels, ten classes: 1,197 train, 300 validation, 300 test, stratified.

    Source: Alpaydin & Kaynak, "Optical Recognition of Handwritten Digits", UCI (1998), the test part, as in
    `sklearn.datasets.load_digits`.
    """

    @classmethod
    def load(cls, config: DigitsConfig, *, data_dir: Path | None, device: torch.device) -> ImageData:
        del data_dir  # scikit-learn carries the data
        table = np.loadtxt(_csv_path(), delimiter=",", dtype=np.int64)
        images = table[:, :-1].astype(np.uint8).reshape(-1, 8, 8, 1)
        labels = table[:, -1]
        rest, test = stratified_split(labels, n_held_out=N_TEST, seed=TEST_SEED)
        train, val = stratified_split(labels[rest], n_held_out=N_VAL, seed=config.split_seed)
        mean, std = measure_normalization(images, rest[train])
        placed = place_images(images, device=device)
        return ImageData(
            train=ImageSplit.of(placed, labels, rest[train], device=device),
            val=ImageSplit.of(placed, labels, rest[val], device=device),
            test=ImageSplit.of(placed, labels, test, device=device),
            classes=tuple("0123456789"),
            mean=mean,
            std=std,
        )

    def build_model(self) -> nn.Module:
        match self.config.model:
            case "convnet":
                return _convnet()
            case "mlp":
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
            case _:
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def _csv_path() -> Path:
    """scikit-learn's file, found without importing the package: that takes seconds and 100 MB in each worker."""
    spec = find_spec("sklearn")
    folders = spec.submodule_search_locations if spec is not None else None
    path = Path(folders[0]) / "datasets" / "data" / "digits.csv.gz" if folders else None
    if path is None or not path.is_file():
        raise DataError(f"scikit-learn's digits are not where they should be ({path}); reinstall scikit-learn")
    return path


def _convnet() -> nn.Module:
    """Two 3×3 convolutions with batch norm and one pooling: 9,978 parameters."""
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
