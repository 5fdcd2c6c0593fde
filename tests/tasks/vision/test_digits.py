"""The digits data: scikit-learn's, split once and for all."""

from __future__ import annotations

import numpy as np
import torch

from tasks.engine.task import load_task
from tasks.registry import parse_config
from tasks.vision.task import ImageData


def data(**fields: object) -> ImageData:
    config = parse_config({"name": "digits", **fields})
    loaded = load_task(config, data_dir=None, device=torch.device("cpu")).data
    assert isinstance(loaded, ImageData)
    return loaded


def test_split_is_fixed_stratified_and_whole() -> None:
    from sklearn.datasets import load_digits

    ours = data()
    parts = (ours.train, ours.val, ours.test)
    assert [len(part) for part in parts] == [1197, 300, 300]
    theirs = load_digits().images.astype(np.uint8).reshape(1797, -1)
    together = np.concatenate([part.images[part.rows].numpy().reshape(len(part), -1) for part in parts])
    assert sorted(map(bytes, theirs)) == sorted(map(bytes, together))
    for part in (ours.val, ours.test):
        counts = np.bincount(part.labels.numpy(), minlength=10)
        assert counts.min() >= 28
        assert counts.max() <= 32


def test_split_seed_moves_validation_but_never_the_test_set() -> None:
    assert torch.equal(data().test.rows, data(split_seed=1).test.rows)
    assert not torch.equal(data().val.rows, data(split_seed=1).val.rows)


def test_the_data_set_is_loaded_once() -> None:
    assert data() is data(epochs=3, batch_size=32)
