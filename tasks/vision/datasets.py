"""The image data sets: scikit-learn's digits, CIFAR-10 and CIFAR-100, and own images in class folders."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from tasks.data.find import list_candidates, open_data_folder
from tasks.data.hold_out import stratified_split
from tasks.engine.device import place_array
from tasks.errors import DataError
from tasks.own.task import build_own, check_output
from tasks.vision.config import Cifar10Config, Cifar100Config, DigitsConfig, ImageFolderConfig
from tasks.vision.images import Decoded, DecodedTree, read_tree
from tasks.vision.task import ImageData, ImageSplit, ImageTask, NamedModelTask, measure_normalization, split_tree

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
        placed = place_array(images, device=device)
        return ImageData(
            train=ImageSplit.of(placed, labels, rest[train], device=device),
            val=ImageSplit.of(placed, labels, rest[val], device=device),
            test=ImageSplit.of(placed, labels, test, device=device),
            classes=tuple("0123456789"),
            mean=mean,
            std=std,
        )

    def check_model(self) -> None:
        if ":" in self.config.model:
            check_output(self.build_model(), torch.zeros(2, 1, 8, 8), want=(2, 10), name=self.config.model)

    def build_model(self) -> nn.Module:
        match self.config.model:
            case "convnet":
                return _convnet()
            case "mlp":
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
            case "linear":
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
            case own:
                return build_own(own, 10)


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


log = logging.getLogger(__name__)


class _CifarTask(NamedModelTask[Any]):
    """What the two have in common; the subclass names the data set."""

    dataset: ClassVar[str]
    extracted: ClassVar[str]

    @classmethod
    def load(cls, config: Any, *, data_dir: Path | None, device: torch.device) -> ImageData:
        """Look in the data folder (or `config.data_dir` in it), and download into it where nothing is found.

        Raises:
            DataError: nothing there and no network; the message names the folder and the files expected.
        """
        folder = open_data_folder(config.name, data_dir=data_dir, inner=config.data_dir)
        return split_tree(cls._find(folder, config.name), config=config, device=device)

    @classmethod
    def _find(cls, folder: Path, name: str) -> DecodedTree:
        if (folder / "train").is_dir() or folder.is_file():
            return _checked(read_tree(folder, image_size=32, on_bad_image="refuse"), cls.dataset, folder)
        if not (folder / cls.extracted).is_dir():
            for candidate in list_candidates(folder, (name, f"{name}-jpeg", f"{name}-png")):
                if candidate.is_file() or (candidate / "train").is_dir():
                    return _checked(read_tree(candidate, image_size=32, on_bad_image="refuse"), cls.dataset, folder)
        return cls._torchvision(folder)

    @classmethod
    def _torchvision(cls, folder: Path) -> DecodedTree:
        from torchvision import datasets

        make = getattr(datasets, cls.dataset)
        present = (folder / cls.extracted).is_dir()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            parts = [make(root=folder, train=train, download=not present) for train in (True, False)]
        except (OSError, RuntimeError) as error:
            if present:
                raise DataError(
                    f"{folder / cls.extracted} is incomplete or damaged: torchvision's digest of a file does not match "
                    f"({error}). Copy it again, or remove it to have it downloaded"
                ) from error
            raise DataError(
                f"{cls.dataset} is not in {folder} and could not be downloaded ({error}). Put torchvision's "
                f"{cls.extracted}/ there, or class folders train/<class>/ and test/<class>/, or a tar archive of them"
            ) from error
        train, test = (Decoded(part.data, np.asarray(part.targets, dtype=np.int64), 0) for part in parts)
        return DecodedTree(classes=tuple(parts[0].classes), train=train, test=test)


class Cifar10Task(_CifarTask):
    """Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009): ten classes."""

    config: Cifar10Config
    dataset = "CIFAR10"
    extracted = "cifar-10-batches-py"


class Cifar100Task(_CifarTask):
    """The same with a hundred fine classes."""

    config: Cifar100Config
    dataset = "CIFAR100"
    extracted = "cifar-100-python"


def _checked(tree: DecodedTree, dataset: str, folder: Path) -> DecodedTree:
    expected = 100 if dataset == "CIFAR100" else 10
    if len(tree.classes) != expected:
        raise DataError(
            f"{folder} holds {len(tree.classes)} classes; {dataset} has {expected}. Use image_folder for it"
        )
    return tree


class ImageFolderTask(NamedModelTask[ImageFolderConfig]):
    """`data_dir` holds train/<class>/… and test/<class>/…; any image size and format that Pillow reads."""

    @classmethod
    def cache_key(cls, config: ImageFolderConfig) -> Hashable:
        return (super().cache_key(config), config.image_size, config.on_bad_image)

    @classmethod
    def load(cls, config: ImageFolderConfig, *, data_dir: Path | None, device: torch.device) -> ImageData:
        path = open_data_folder(config.name, data_dir=data_dir, inner=config.data_dir)
        tree = read_tree(path, image_size=config.image_size, on_bad_image=config.on_bad_image)
        return split_tree(tree, config=config, device=device)
