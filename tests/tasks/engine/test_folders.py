"""Folders of this machine and of object stores behave alike; pyarrow's own store in memory stands for a bucket.

With ADMETA_TEST_STORAGE, an address such as s3://bucket/path?endpoint_override=…, the same is asked of that store.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import fs

from tasks.engine import checkpoint, folders
from tasks.engine.folders import Folder, LocalFolder, RemoteFolder, inside, open_folder
from tasks.errors import CheckpointError, ConfigError


class Bucket:
    """pyarrow's mock file system, which unlike an object store wants folders to be made."""

    def __init__(self) -> None:
        self._files = fs._MockFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open_output_stream(self, path: str, **options: Any) -> Any:
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        return self._files.open_output_stream(path, **options)


@pytest.fixture(params=["path", "bucket", "address"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    match request.param:
        case "path":
            yield LocalFolder(tmp_path / "run")
        case "bucket":
            yield RemoteFolder(Bucket(), "bucket/run")  # type: ignore[arg-type]
        case _:
            address = os.environ.get("ADMETA_TEST_STORAGE")
            if address is None:
                pytest.skip("ADMETA_TEST_STORAGE names no object store")
            opened = open_folder(inside(address, f"test-{uuid.uuid4().hex}"))
            yield opened
            opened.remove_all()


def test_files_come_and_go(folder: Folder) -> None:
    assert folder.names() == folder.all_names() == []
    with pytest.raises(FileNotFoundError):
        folder.read("a.pt")
    folder.write("a.pt", [b"one", b"two"])
    folder.write("a.pt", [b"three"])
    folder.write("logs/b.log", [])
    assert folder.names() == ["a.pt"]
    assert sorted(folder.all_names()) == ["a.pt", "logs/b.log"]
    assert (folder.read("a.pt"), folder.read("logs/b.log")) == (b"three", b"")
    folder.remove("a.pt")
    folder.remove("a.pt")
    assert folder.names() == []
    folder.remove_all()
    folder.remove_all()
    with pytest.raises(FileNotFoundError):
        folder.read("logs/b.log")


def test_a_write_that_fails_leaves_no_part(folder: Folder) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half of it"
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        folder.write("a.pt", parts())  # type: ignore[arg-type]
    assert folder.names() == []


def test_checkpoints_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket()
    monkeypatch.setattr(folders, "_file_system", lambda address: bucket)
    address = inside("s3://bucket/admeta?endpoint_override=h:9000", "study/search-0")
    assert checkpoint.load_latest(address) is None
    assert checkpoint.fetch_best(address, into=tmp_path) is None
    for epoch in (1, 2, 3):
        state = {"model": {"w": torch.full((3,), float(epoch))}}
        checkpoint.save(address, state, epoch=epoch, best=state if epoch == 2 else None)
    assert open_folder(address).names() == ["best.pt", "epoch-000003.pt"]
    latest, best = checkpoint.load_latest(address), checkpoint.fetch_best(address, into=tmp_path)
    assert latest is not None
    assert latest["model"]["w"].tolist() == [3.0] * 3
    assert best == tmp_path / "best.pt"
    assert checkpoint.read_weights(best)["w"].tolist() == [2.0] * 3
    with bucket.open_output_stream("bucket/admeta/study/search-0/epoch-000004.pt") as stream:
        stream.write(b"ADMETA1\ntorn")
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoint.load_latest(address)


def test_a_folder_within_an_address_keeps_its_options() -> None:
    assert inside("/home/x", "study/run") == "/home/x/study/run"
    assert inside("s3://bucket", "study") == "s3://bucket/study"
    assert inside("s3://bucket/a/?region=eu&scheme=http", "study") == "s3://bucket/a/study?region=eu&scheme=http"


def test_the_store_is_opened_once_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(folders, "_file_system", lambda address: opened.append(address) or Bucket())
    open_folder("gs://bucket/a/b?anonymous=true")
    assert opened == ["gs://bucket?anonymous=true"]


@pytest.mark.parametrize("address", ["ftp://h/x", "s3://", "s3://key:word@bucket/x"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError):
        open_folder(address)
