"""The fingerprint of a task's data: the same wherever they are, another where they changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tasks.registry
from tasks.data import trees
from tasks.runs import data_fingerprint


def of(data_dir: Path | None, *, inner: str = "pets") -> str | None:
    config = {"name": "image_folder", "data_dir": inner}
    return data_fingerprint(tasks.registry.parse_config(config), data_dir=data_dir)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("cats/1.png", "cats/2.png", "dogs/1.png"):
        file = tmp_path / "data" / "pets" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    return tmp_path / "data"


def test_the_same_data_elsewhere_have_the_same_fingerprint(data: Path, tmp_path: Path) -> None:
    found = of(data)
    assert found is not None
    assert len(found) == 64
    shutil.copytree(data / "pets", tmp_path / "other" / "animals")
    os.utime(tmp_path / "other" / "animals" / "cats" / "1.png", (0, 0))
    (tmp_path / "other" / "animals" / ".hidden").write_text("ignored")
    assert of(tmp_path / "other", inner="animals") == found


@pytest.mark.parametrize(
    "change",
    [
        lambda pets: (pets / "cats" / "1.png").write_bytes(b"CATS/1.png"),
        lambda pets: (pets / "cats" / "1.png").unlink(),
        lambda pets: (pets / "cats" / "3.png").write_bytes(b""),
        lambda pets: (pets / "cats" / "1.png").rename(pets / "dogs" / "2.png"),
    ],
    ids=["content", "removed", "added", "moved"],
)
def test_changed_data_have_another(data: Path, change: Callable[[Path], Any]) -> None:
    before = of(data)
    change(data / "pets")
    assert of(data) not in (None, before)


def test_a_large_file_is_not_read_as_a_whole(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_SAMPLE", 8)
    file = data / "pets" / "cats" / "1.png"
    found = {}
    for name, content in {
        "a": b"0123xx6789",
        "middle": b"0123yy6789",
        "end": b"0123xx678-",
        "begin": b"-123xx6789",
    }.items():
        file.write_bytes(content)
        found[name] = of(data)
    assert found["a"] == found["middle"]
    assert len(set(found.values())) == 3


def test_many_files_count_by_name_and_size(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_SAMPLED", 2)
    before = of(data)
    (data / "pets" / "cats" / "1.png").write_bytes(b"CATS/1.png")
    assert of(data) == before
    (data / "pets" / "cats" / "1.png").write_bytes(b"cats")
    assert of(data) != before


def test_an_archive_is_known_by_its_content(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        (tmp_path / name).write_bytes(b"content")
    assert of(tmp_path, inner="a.tar") == of(tmp_path, inner="b.tar")
    (tmp_path / "b.tar").write_bytes(b"Content")
    assert of(tmp_path, inner="a.tar") != of(tmp_path, inner="b.tar")


def test_of_named_files_others_in_the_folder_do_not_count(tmp_path: Path) -> None:
    def found() -> str | None:
        return data_fingerprint(tasks.registry.parse_config({"name": "gpt"}), data_dir=tmp_path)

    assert found() is None
    (tmp_path / "train.txt").write_text("to be or not to be")
    before = found()
    assert before is not None
    (tmp_path / "notes.txt").write_text("something else")
    assert found() == before
    (tmp_path / "train.txt").write_text("to be or not to bee")
    assert found() != before


def test_a_data_set_known_by_its_name_has_none(tmp_path: Path) -> None:
    for name in ("digits", "cifar10", "synthetic"):
        assert data_fingerprint(tasks.registry.parse_config({"name": name}), data_dir=tmp_path) is None
    assert of(None) is None
    assert of(tmp_path) is None  # there is no such folder


def test_changed_code_is_another_recipe(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a module that the named one imports; data count beside it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_run.py").write_text("import own_part\n")
    (tmp_path / "own_part.py").write_text("X = 1\n")

    def of_code(folder: Path | None, **fields: str) -> str | None:
        task = {"name": "python", "run": "own_run:train", **fields}
        return data_fingerprint(tasks.registry.parse_config(task), data_dir=folder)

    first, with_data = of_code(data), of_code(data, data_dir="pets")
    assert first == of_code(None)
    assert len({first, with_data, None}) == 3
    (tmp_path / "own_other.py").write_text("")
    assert of_code(data) == first
    (tmp_path / "own_part.py").write_text("X = 2\n")
    assert of_code(data) != first
    assert of_code(data, data_dir="pets") != with_data
