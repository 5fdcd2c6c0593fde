"""CIFAR from its archive, from torchvision's files, and from nowhere."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.engine.task import load_task, release_data
from tasks.errors import DataError
from tasks.registry import parse_config
from tasks.runs import check, open_run
from tests.tasks.shared_data import shared_data


def load(name: str, data_dir: Path, **fields: Any) -> Any:
    config = parse_config({"name": name, **fields})
    return load_task(config, data_dir=data_dir, device=torch.device("cpu")).data


def write_batch(path: Path, *, n: int, keys: tuple[str, ...], n_classes: int) -> None:
    rng = np.random.default_rng(n)
    content: dict[str, Any] = {"data": rng.integers(0, 256, size=(n, 3072), dtype=np.uint8)}
    content |= {key: [index % n_classes for index in range(n)] for key in keys}
    path.write_bytes(pickle.dumps(content))


def test_torchvisions_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release_data()
    monkeypatch.setattr("torchvision.datasets.CIFAR100._check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *a: True)
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for part, n in (("train", 2000), ("test", 200)):
        write_batch(folder / part, n=n, keys=("fine_labels", "coarse_labels"), n_classes=100)
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"c{i:02d}" for i in range(100)]}))
    data = load("cifar100", tmp_path)
    assert len(data.classes) == 100
    assert [len(part) for part in (data.train, data.val, data.test)] == [1800, 200, 200]


def test_nothing_there_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", offline)
    with pytest.raises(DataError, match=r"CIFAR10 is not in .* could not be downloaded .*cifar-10-batches-py/ there"):
        check(parse_config({"name": "cifar10"}), data_dir=tmp_path)
    with pytest.raises(DataError, match="set ADMETA_DATA or --data"):
        check(parse_config({"name": "cifar10"}))


def test_torchvisions_files_that_are_damaged_are_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/data_batch_1").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"cifar-10-batches-py is incomplete or damaged.*Copy it again, or remove it"):
        check(parse_config({"name": "cifar10"}), data_dir=tmp_path)


def test_a_file_that_is_no_archive_is_told(tmp_path: Path) -> None:
    (tmp_path / "cifar.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"cifar\.zip is neither a folder nor a tar archive"):
        check(parse_config({"name": "cifar10", "data_dir": "cifar.zip"}), data_dir=tmp_path)


def test_another_number_of_classes_is_not_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    for split in ("train", "test"):
        for klass in "ab":
            folder = tmp_path / "data" / "cifar10" / split / klass
            folder.mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(folder / "x.png")
    with pytest.raises(DataError, match=r"holds 2 classes; CIFAR10 has 10\. Use image_folder"):
        check(parse_config({"name": "cifar10"}), data_dir=tmp_path / "data")


@pytest.mark.slow
def test_the_real_archive() -> None:
    data_dir = shared_data("cifar10-jpeg.tar.xz")
    data = load("cifar10", data_dir)
    assert data.classes[0] == "airplane"
    assert [len(part) for part in (data.train, data.val, data.test)] == [45_000, 5_000, 10_000]
    assert np.bincount(data.val.labels).tolist() == [500] * 10
    # Krizhevsky's means are 125.3, 123.0, 113.9; JPEG moves them little.
    assert data.mean == pytest.approx((125.3, 123.0, 113.9), abs=0.5)
    config = parse_config({"name": "cifar10", "epochs": 1, "batch_size": 4500, "accumulation": 10})
    run = open_run(config, optimizer="sgdm", params={"lr": 0.1}, seed=0, data_dir=data_dir, device="cpu")
    assert run.environment()["steps_per_epoch"] == 1
