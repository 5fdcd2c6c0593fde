"""Checkpoint files: whole or absent, checked, pruned."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from tasks.engine import checkpoint
from tasks.errors import CheckpointError

STATE = {"weights": torch.arange(1000.0), "note": "x", "history": [1, 2.5]}


def test_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path / "none") is None
    checkpoint.save(tmp_path, {"epoch": 1}, epoch=1)
    checkpoint.save(tmp_path, {"epoch": 2}, epoch=2, rank="best")
    checkpoint.save(tmp_path, {"epoch": 3}, epoch=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "epoch-000003.pt"]
    assert checkpoint.load_latest(tmp_path) == {"epoch": 3}
    assert checkpoint.load_best(tmp_path) == {"epoch": 2}


def test_no_best_means_the_newest(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, {"epoch": 1}, epoch=1)
    assert checkpoint.load_best(tmp_path) == {"epoch": 1}


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "torch"])
def test_a_torn_or_foreign_file_is_told(tmp_path: Path, damage: str) -> None:
    path = tmp_path / checkpoint.save(tmp_path, STATE, epoch=7)
    raw = bytearray(path.read_bytes())
    match damage:
        case "cut":
            path.write_bytes(raw[: len(raw) // 2])
        case "flip":
            raw[len(raw) // 2] ^= 1
            path.write_bytes(raw)
        case "empty":
            path.write_bytes(b"")
        case "foreign":
            path.write_bytes(b"PK\x03\x04 something else")
        case "torch":
            torch.save({"a": 1}, path)
    with pytest.raises(CheckpointError, match=r"torn or damaged|not a checkpoint"):
        checkpoint.load_latest(tmp_path)


def test_a_failed_write_leaves_the_former_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, {"epoch": 1}, epoch=1)

    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(CheckpointError, match=r"of epoch 2 \(0\.0 MiB\) could not be written .* No space left"):
        checkpoint.save(tmp_path, {"epoch": 2}, epoch=2)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-000001.pt"]
    assert checkpoint.load_latest(tmp_path) == {"epoch": 1}


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("true",))


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps({"model": Evil()}, protocol=2))
    with pytest.raises(CheckpointError):
        checkpoint.read_weights(path)
    torch.save({"model": Evil()}, path)
    with pytest.raises(CheckpointError):
        checkpoint.read_weights(path)


def test_a_file_without_weights_is_told(tmp_path: Path) -> None:
    path = tmp_path / "empty.pt"
    torch.save({"model": {}}, path)
    with pytest.raises(CheckpointError, match="holds no weights"):
        checkpoint.read_weights(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.read_weights(tmp_path / "absent.pt")
