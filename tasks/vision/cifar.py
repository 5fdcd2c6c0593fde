"""CIFAR-10 and CIFAR-100: from torchvision's files, from class folders, or downloaded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from tasks.errors import DataError
from tasks.paths import resolve_inside
from tasks.trees import ARCHIVES
from tasks.vision.config import Cifar10Config, Cifar100Config
from tasks.vision.data import ImageData
from tasks.vision.images import Decoded, DecodedTree, read_tree
from tasks.vision.named import NamedModelTask
from tasks.vision.split import split_tree

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
        if data_dir is None:
            raise DataError(f"{config.name} needs a data folder: set ADMETA_DATA or --data")
        folder = data_dir if config.data_dir is None else resolve_inside(data_dir, config.data_dir)
        return split_tree(cls._find(folder, config.name), config=config, device=device)

    @classmethod
    def _find(cls, folder: Path, name: str) -> DecodedTree:
        if (folder / "train").is_dir() or folder.is_file():
            return _checked(read_tree(folder, image_size=32, on_bad_image="refuse"), cls.dataset, folder)
        if not (folder / cls.extracted).is_dir():
            for stem in (name, f"{name}-jpeg", f"{name}-png"):
                for candidate in (folder / stem, *(folder / f"{stem}{suffix}" for suffix in ARCHIVES)):
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
