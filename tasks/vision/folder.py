"""Anyone's own images in class folders."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import torch

from tasks.errors import DataError
from tasks.paths import resolve_inside
from tasks.vision.config import ImageFolderConfig
from tasks.vision.data import ImageData
from tasks.vision.images import read_tree
from tasks.vision.named import NamedModelTask
from tasks.vision.split import split_tree


class ImageFolderTask(NamedModelTask[ImageFolderConfig]):
    """`data_dir` holds train/<class>/… and test/<class>/…; any image size and format that Pillow reads."""

    @classmethod
    def cache_key(cls, config: ImageFolderConfig) -> Hashable:
        return (super().cache_key(config), config.image_size, config.on_bad_image)

    @classmethod
    def load(cls, config: ImageFolderConfig, *, data_dir: Path | None, device: torch.device) -> ImageData:
        if data_dir is None:
            raise DataError("image_folder needs a data folder: set ADMETA_DATA or --data")
        path = resolve_inside(data_dir, config.data_dir)
        tree = read_tree(path, image_size=config.image_size, on_bad_image=config.on_bad_image)
        return split_tree(tree, config=config, device=device)
