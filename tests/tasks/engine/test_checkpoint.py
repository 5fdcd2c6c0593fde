"""Checkpoint files: whole or absent, checked, pruned."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.engine import checkpoint
from tasks.engine.folders import LocalFolder, find_unneeded
from tasks.errors import CheckpointError
from tests.tasks.shared_data import shared_case

STATE = {"weights": torch.arange(1000.0), "note": "x", "history": [1, 2.5]}


def test_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path / "none") is None
    checkpoint.save(tmp_path, {"epoch": 1}, epoch=1)
    checkpoint.save(tmp_path, {"epoch": 2}, epoch=2, best={"model": {"w": torch.ones(2)}})
    checkpoint.save(tmp_path, {"epoch": 3}, epoch=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "epoch-000003.pt"]
    assert checkpoint.load_latest(tmp_path) == {"epoch": 3}
    best = checkpoint.fetch_best(tmp_path, into=tmp_path)
    assert best == tmp_path / "best.pt"
    assert checkpoint.read_weights(best)["w"].tolist() == [1.0, 1.0]


def test_no_best_means_the_newest(tmp_path: Path) -> None:
    name = checkpoint.save(tmp_path, {"epoch": 1}, epoch=1)
    assert checkpoint.fetch_best(tmp_path, into=tmp_path) == tmp_path / name


def test_the_best_is_whole_before_the_state_that_knows_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    whole = LocalFolder.write
    monkeypatch.setattr(LocalFolder, "write", lambda *args: (written.append(args[1]), whole(*args)))
    checkpoint.save(tmp_path, {"best": 0.9}, epoch=4, best={"model": {}})
    assert written == ["best.pt", "epoch-000004.pt"]


PARTS = [".epoch-000003.pt-k2_x.tmp", ".best.pt-abc.tmp"]  # of writes that were killed


@pytest.mark.parametrize(
    ("files", "with_best", "without"),
    [
        ([], [], []),
        (["attempt-1.log", "notes.pt.txt"], [], []),
        (["epoch-000003.pt", "best.pt"], ["epoch-000003.pt"], ["epoch-000003.pt", "best.pt"]),
        (["epoch-000003.pt"], [], ["epoch-000003.pt"]),  # written before there was a best of its own
        (["epoch-000003.pt", "epoch-000012.pt"], ["epoch-000003.pt"], ["epoch-000003.pt", "epoch-000012.pt"]),
        (["best.pt", *PARTS], PARTS, ["best.pt", *PARTS]),
    ],
)
def test_what_an_ended_run_needs_no_longer(files: list[str], with_best: list[str], without: list[str]) -> None:
    assert sorted(find_unneeded(files, keep_best=True)) == sorted(with_best)
    assert sorted(find_unneeded(files, keep_best=False)) == sorted(without)


def test_the_parts_of_killed_writes_are_told_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder names them; where it names them otherwise one day, they must still be found."""
    parts: list[str] = []
    monkeypatch.setattr(os, "replace", lambda part, _: parts.append(Path(part).name))
    for name in ("epoch-000001.pt", "best.pt"):
        LocalFolder(tmp_path).write(name, [b"x"])
    assert find_unneeded(parts, keep_best=True) == parts
    assert len(parts) == 2


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
    with pytest.raises(CheckpointError, match=r"is damaged|not a checkpoint"):
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


def archive_of_text(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "x")


FOREIGN: dict[str, Any] = {
    "nothing": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_bytes(b"hello world\n"),
    "header of safetensors": lambda path: path.write_bytes(b'\x09\0\0\0\0\0\0\0{"a": {}}'),
    "zip": archive_of_text,
}


@pytest.mark.parametrize("kind", sorted(FOREIGN))
def test_foreign_bytes_to_start_from_are_told(tmp_path: Path, kind: str) -> None:
    FOREIGN[kind](tmp_path / "foreign.pt")
    with pytest.raises(
        CheckpointError,
        match=r"foreign\.pt (cannot be loaded: it is damaged, or not a file|is not a whole)",
    ):
        checkpoint.read_weights(tmp_path / "foreign.pt")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_no_damage_to_a_file_of_torch_escapes(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"a": torch.zeros(3, 3)}, path, _use_new_zipfile_serialization=zipped)
    good = path.read_bytes()
    draw = np.random.default_rng(0)
    n_told = 0
    for _ in range(300):
        damaged = bytearray(good[: draw.integers(len(good) // 2, len(good))])
        damaged[draw.integers(len(damaged))] ^= 0xFF
        path.write_bytes(damaged)
        try:
            checkpoint.read_weights(path)
        except CheckpointError:
            n_told += 1
    assert n_told > 100


UNFIT: list[tuple[object, str]] = [
    ({"weight": torch.tensor([1.0, float("nan")])}, "'weight' holds NaN"),
    ({"weight": torch.ones(2, dtype=torch.complex64)}, "'weight' is sparse, complex or without values"),
    ({"weight": torch.eye(2).to_sparse()}, "'weight' is sparse"),
    ({"weight": torch.empty(2, device="meta")}, "'weight' is sparse, complex or without values"),
    (torch.nn.Linear(2, 2), r"it holds a torch\.nn\.modules\.linear\.Linear; .* torch\.save\(model\.state_dict\(\)"),
    ([torch.ones(2)], "holds a list; a checkpoint is a dictionary"),
]


@pytest.mark.parametrize(("content", "message"), UNFIT, ids=[message for _, message in UNFIT])
def test_what_nothing_could_start_from_is_told(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read_weights(tmp_path / "weights.pt")


def test_numbered_weights_are_another_models(tmp_path: Path) -> None:
    torch.save({1: torch.ones(2)}, tmp_path / "weights.pt")
    weights = checkpoint.read_weights(tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match="is of another model: 'weight' is missing there"):
        checkpoint.load_weights(torch.nn.Linear(2, 2), weights, source="weights.pt")


def test_a_torn_file_to_start_from_is_to_be_copied_again(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.save(tmp_path, STATE, epoch=7)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"init_from: .* is damaged .*copy it again, or start without it"):
        checkpoint.read_weights(path)


OWN = {"0.weight": torch.arange(4.0).reshape(2, 2), "0.bias": torch.ones(2)}


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod.", "model.module.", "net.body."]
)
@pytest.mark.parametrize("key", [None, "state_dict", "model_state_dict", "model"])
def test_weights_of_other_programs_are_loaded(tmp_path: Path, prefix: str, key: str | None) -> None:
    state = {f"{prefix}{name}": value for name, value in OWN.items()}
    torch.save(state if key is None else {"epoch": 3, key: state}, tmp_path / "weights.pt")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    checkpoint.load_weights(model, checkpoint.read_weights(tmp_path / "weights.pt"), source="weights.pt")
    assert torch.equal(model[0].weight, OWN["0.weight"])


def test_a_prefix_inside_names_is_removed_too() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    inside = {name.replace("0.", "0._orig_mod."): value for name, value in OWN.items()}
    checkpoint.load_weights(model, inside, source="weights.pt")
    assert torch.equal(model[0].weight, OWN["0.weight"])


def test_a_models_own_name_is_no_prefix() -> None:
    model = torch.nn.ModuleDict({"module": torch.nn.Linear(2, 2)})
    checkpoint.load_weights(model, {f"module.{k[2:]}": v for k, v in OWN.items()}, source="weights.pt")
    assert torch.equal(model["module"].weight, OWN["0.weight"])  # type: ignore[arg-type]


def test_a_prefix_that_does_not_help_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"'0.weight' is missing there, where all names begin with 'encoder'"):
        checkpoint.load_weights(torch.nn.Sequential(torch.nn.Linear(2, 2)), {"encoder.w": torch.ones(2)}, source="x")


def test_safetensors_are_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "weights.safetensors"
    save_file({f"module.{name}": value for name, value in OWN.items()}, path)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    checkpoint.load_weights(model, checkpoint.read_weights(path), source="weights")
    assert torch.equal(model[0].weight, OWN["0.weight"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        checkpoint.read_weights(path)


def test_a_real_file_of_data_parallel_is_loaded() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    weights = checkpoint.read_weights(shared_case("dataparallel.pt"))
    checkpoint.load_weights(model, weights, source="dataparallel.pt")
    assert torch.equal(model[1].weight, weights["module.1.weight"])
