"""Where a run keeps its files: a folder of this machine or a network file system, or a place of S3 or GCS.

Owns how files are listed, read, written whole and removed there; what is in them is their writers' business. Remote
places go through pyarrow's file systems, which are imported only where one is named. Needs no torch, so that a worker
finds out that there is no checkpoint without it.


The files of a run's checkpoints, by name. Needs no torch: who counts or clears them need not read them.

epoch-000012.pt    the newest: everything that an exact resume needs
best.pt            the weights of the best evaluation that was saved
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, urlsplit, urlunsplit

from tasks.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEMES = ("s3", "gs", "gcs")


class Folder(Protocol):
    """A folder that need not exist before something is written into it. What fails raises OSError."""

    def names(self) -> list[str]:
        """Names of the files in it, not of those in folders within; none where it does not exist."""
        ...

    def all_names(self) -> list[str]:
        """As `names`, with those in folders within, as paths from here: `a/b.pt`."""
        ...

    def read(self, name: str) -> bytes:
        """A file's content. Raises FileNotFoundError where there is none of that name."""
        ...

    def write(self, name: str, content: Sequence[bytes]) -> None:
        """Put a file there, whole or not at all, in place of one of that name. `name` may lead into folders within."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is fine."""
        ...

    def remove_all(self) -> None:
        """Remove the folder with everything in it; one that does not exist is fine."""
        ...


def open_folder(place: str | Path) -> Folder:
    """The folder at a path, or at an address such as s3://bucket/path.

    Raises:
        ConfigError: the address is of a kind that is not known.
    """
    if not is_remote(place):
        return LocalFolder(Path(place))
    file_system, path = _remote(str(place))
    return RemoteFolder(file_system, path)


def inside(place: str, name: str) -> str:
    """The place of a folder within another; an address keeps its options (`?endpoint_override=…`) at its end."""
    if not is_remote(place):
        return f"{place}/{name}"
    parts = urlsplit(place)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def is_remote(place: str | Path) -> bool:
    """Whether the place is an address, not a path."""
    return isinstance(place, str) and "://" in place


class LocalFolder:
    """A folder of this machine's file systems. A file is complete on disk (fsync) before it takes its name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        if not self.path.is_dir():
            return []
        return [entry.name for entry in os.scandir(self.path) if entry.is_file()]

    def all_names(self) -> list[str]:
        return [
            Path(root, name).relative_to(self.path).as_posix()
            for root, _, names in os.walk(self.path)
            for name in names
        ]

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, content: Sequence[bytes]) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove_all(self) -> None:
        while self.path.exists():
            with contextlib.suppress(FileNotFoundError):  # somebody else removes a file of it too
                shutil.rmtree(self.path)


class RemoteFolder:
    """A prefix of an object store. An object appears when its upload is complete, so a write is whole by itself."""

    def __init__(self, file_system: FileSystem, path: str) -> None:
        self._files = file_system
        self._path = path.rstrip("/")

    def names(self) -> list[str]:
        return self._found(recursive=False)

    def all_names(self) -> list[str]:
        return self._found(recursive=True)

    def read(self, name: str) -> bytes:
        with self._files.open_input_stream(self._at(name), compression=None) as stream:
            content: bytes = stream.read()
        return content

    def write(self, name: str, content: Sequence[bytes]) -> None:
        stream = self._files.open_output_stream(self._at(name), compression=None)
        try:
            for part in content:
                stream.write(part)
        except BaseException:
            stream.close()  # completes what was sent
            self.remove(name)
            raise
        stream.close()

    def remove(self, name: str) -> None:
        try:
            self._files.delete_file(self._at(name))
        except FileNotFoundError:
            return

    def remove_all(self) -> None:
        try:
            self._files.delete_dir(self._path)
        except FileNotFoundError:
            return

    def _found(self, *, recursive: bool) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        found = self._files.get_file_info(FileSelector(self._path, allow_not_found=True, recursive=recursive))
        return [info.path.removeprefix(f"{self._path}/") for info in found if info.type is FileType.File]

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"


def check_address(address: str) -> SplitResult:
    """The parts of an address, if it is one that may be opened; nothing is asked of the store.

    Raises:
        ConfigError: it is of a kind that is not known, names no bucket, or holds credentials.
    """
    parts = urlsplit(address)
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ConfigError(f"'{parts.scheme}://…' is an address of an unknown kind; name a folder, or one of {known}")
    if parts.username or parts.password:
        raise ConfigError(
            f"'{parts.scheme}://…' holds credentials, which an address must not: logs and records show it. Give them "
            "by the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS) or a role"
        )
    if not parts.netloc:
        raise ConfigError(f"'{address}' names no bucket; write {parts.scheme}://bucket/path")
    return parts


def _remote(address: str) -> tuple[Any, str]:
    parts = check_address(address)
    base = urlunsplit((parts.scheme, parts.netloc, "", parts.query, ""))
    return _file_system(base), parts.netloc + parts.path


@lru_cache(maxsize=8)
def _file_system(address: str) -> Any:
    """One for a bucket: making it asks for the bucket's region."""
    from pyarrow.fs import FileSystem

    return FileSystem.from_uri(address)[0]


BEST_CHECKPOINT = "best.pt"
_EPOCH = re.compile(r"epoch-(\d{6,})\.pt")
_PART = re.compile(r"\.(?:epoch-\d{6,}|best)\.pt-.*\.tmp")  # what a process left that was killed while it wrote


def checkpoint_name(epoch: int) -> str:
    """The name of the checkpoint after so many epochs."""
    return f"epoch-{epoch:06d}.pt"


def find_checkpoints(names: Iterable[str]) -> list[tuple[int, str]]:
    """Of a folder's files, those to go on from, with how many epochs each had completed."""
    matches = [(_EPOCH.fullmatch(name), name) for name in names]
    return [(int(match[1]), name) for match, name in matches if match]


def find_best_checkpoint(names: Iterable[str]) -> str | None:
    """Of a folder's files, the one to start another run from: the best, or the newest where none is; or None."""
    names = list(names)
    return BEST_CHECKPOINT if BEST_CHECKPOINT in names else max(find_checkpoints(names), default=(0, None))[1]


def find_unneeded(names: Iterable[str], *, keep_best: bool) -> list[str]:
    """Of an ended run's files, those that nobody will read again; logs and files that are not ours stay."""
    found = list(names)
    gone = [name for name in found if _EPOCH.fullmatch(name) or _PART.fullmatch(name)]
    if keep_best and BEST_CHECKPOINT not in found and (newest := find_best_checkpoint(found)) is not None:
        gone.remove(newest)
    return gone if keep_best or BEST_CHECKPOINT not in found else [*gone, BEST_CHECKPOINT]
