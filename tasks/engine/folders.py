"""Where a run keeps its files: a folder of this machine or of a network file system, or a prefix of S3 or GCS.

Lists, reads, writes and removes files, and knows the names of checkpoints:

epoch-000012.pt    the newest: everything that an exact resume needs
best.pt            the weights of the best evaluation that was saved

Object stores are reached through pyarrow, imported only when one is used. Imports no torch, so that a worker can look
for a checkpoint without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, urlsplit, urlunsplit

from tasks.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEMES = ("s3", "gs", "gcs")


class Folder(Protocol):
    """A folder, created by the first write. Failures raise OSError."""

    def names(self) -> list[str]:
        """Names of the files directly in it; empty if it does not exist."""
        ...

    def all_names(self) -> list[str]:
        """Paths of all files below it, relative to it: `a/b.pt`."""
        ...

    def read(self, name: str) -> bytes:
        """A file's content. Raises FileNotFoundError where there is none of that name."""
        ...

    def write(self, name: str, content: Sequence[bytes]) -> None:
        """Write or replace a file atomically. `name` may be a path below this folder."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        ...

    def remove_all(self) -> None:
        """Remove the folder with everything in it, if it exists."""
        ...


def open_folder(place: str | Path) -> Folder:
    """The folder at a path, or at an address such as s3://bucket/path.

    Raises:
        ConfigError: the scheme of the address is unknown.
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
            with contextlib.suppress(FileNotFoundError):  # another process removes files of it too
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
_PART = re.compile(r"\.(?:epoch-\d{6,}|best)\.pt-.*\.tmp")  # left by a process that was killed while writing


def checkpoint_name(epoch: int) -> str:
    """The name of the checkpoint after so many epochs."""
    return f"epoch-{epoch:06d}.pt"


def find_checkpoints(names: Iterable[str]) -> list[tuple[int, str]]:
    """Of a folder's files, those to continue from, with how many epochs each had completed."""
    matches = [(_EPOCH.fullmatch(name), name) for name in names]
    return [(int(match[1]), name) for match, name in matches if match]


def find_best_checkpoint(names: Iterable[str]) -> str | None:
    """Of a folder's files, the one to start another run from: the best, or the newest where none is; or None."""
    names = list(names)
    return BEST_CHECKPOINT if BEST_CHECKPOINT in names else max(find_checkpoints(names), default=(0, None))[1]


def find_unneeded(names: Iterable[str], *, keep_best: bool) -> list[str]:
    """The files of a finished run that will not be read again; logs and other programs' files are not among them."""
    found = list(names)
    gone = [name for name in found if _EPOCH.fullmatch(name) or _PART.fullmatch(name)]
    if keep_best and BEST_CHECKPOINT not in found and (newest := find_best_checkpoint(found)) is not None:
        gone.remove(newest)
    return gone if keep_best or BEST_CHECKPOINT not in found else [*gone, BEST_CHECKPOINT]


def make_private_folder(prefix: str, *, parent: str | None = None) -> Path:
    """Make a temporary folder that no other user can open, and remove those of the prefix whose processes have ended.

    Args:
        prefix: the beginning of the folder's name; this process's id follows.
        parent: by default the system's folder for temporary files.
    """
    import psutil

    parent = tempfile.gettempdir() if parent is None else parent
    for left in Path(parent).glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))


@contextlib.contextmanager
def private_folder(prefix: str, *, parent: str | None = None) -> Iterator[Path]:
    """As `make_private_folder`; removed at the end of the block."""
    folder = make_private_folder(prefix, parent=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
