"""A decoded tree made into a task's data: validation split off the training set, normalisation measured on the rest."""

from __future__ import annotations

import numpy as np
import torch

from tasks.engine.batches import stratified_split
from tasks.errors import DataError
from tasks.vision.config import SplitImageConfig
from tasks.vision.data import ImageData, ImageSplit, measure_normalization, place_images
from tasks.vision.images import DecodedTree


def split_tree(tree: DecodedTree, *, config: SplitImageConfig, device: torch.device) -> ImageData:
    """Split by `config.split_seed` and put the three parts on the device.

    Raises:
        DataError: a class would be missing from training or validation.
    """
    labels = tree.train.labels
    n_val = round(config.val_fraction * len(labels))
    if not 0 < n_val < len(labels):
        raise DataError(
            f"val_fraction {config.val_fraction} of {len(labels)} training images makes {n_val} for validation and "
            f"{len(labels) - n_val} for training; both must have some: add images or change it"
        )
    kept, held_out = stratified_split(labels, n_held_out=n_val, seed=config.split_seed)
    for rows, what, change in ((held_out, "validation", "raise"), (kept, "training", "lower")):
        counts = np.bincount(labels[rows], minlength=len(tree.classes))
        if counts.min() == 0:
            klass = int(counts.argmin())
            raise DataError(
                f"class {tree.classes[klass]!r} has {int((labels == klass).sum())} training image(s), too few to be in "
                f"{what} at val_fraction {config.val_fraction}; add images of it (two or more), or "
                f"{change} val_fraction"
            )
    mean, std = measure_normalization(tree.train.images, kept)
    images = place_images(tree.train.images, device=device)
    return ImageData(
        train=ImageSplit.of(images, labels, kept, device=device),
        val=ImageSplit.of(images, labels, held_out, device=device),
        test=ImageSplit.of(place_images(tree.test.images, device=device), tree.test.labels, device=device),
        classes=tree.classes,
        mean=mean,
        std=std,
        n_skipped=tree.train.n_skipped + tree.test.n_skipped,
    )
