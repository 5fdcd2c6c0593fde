"""The files of a tree: a folder, or a tar archive that is read from front to back; nothing is unpacked to disk.

Owns where files come from. What their paths mean (splits, classes) and what they hold is the tasks' matter.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tasks.errors import DataError

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")

Wanted = Callable[[str], bool]
"""Whether a file of that name is to be read."""


@dataclass(frozen=True)
class Entry:
    """A folder or a file; `name` is relative to the tree, with forward slashes; `content` is of wanted files alone."""

    name: str
    is_folder: bool
    content: bytes | None = None


class Tree(Protocol):
    """Where files come from."""

    def fingerprint(self) -> str:
        """A digest that changes whenever a file does."""

    def entries(self, wanted: Wanted) -> Iterator[Entry]:
        """Every folder and file, the same order each time.

        Raises:
            DataError: the tree cannot be read.
        """


class FolderTree:
    """A folder's files, by name."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def fingerprint(self) -> str:
        """Of names, sizes and times of change: the content is not read."""
        lines = []
        for path in self._paths():
            if path.is_file():
                status = path.stat()
                lines.append(f"{path.relative_to(self._root)} {status.st_size} {status.st_mtime_ns}")
        return hashlib.blake2b("\n".join(lines).encode()).hexdigest()

    def entries(self, wanted: Wanted) -> Iterator[Entry]:
        for path in self._paths():
            name = path.relative_to(self._root).as_posix()
            try:
                content = path.read_bytes() if path.is_file() and wanted(name) else None
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}") from error
            yield Entry(name, path.is_dir(), content)

    def _paths(self) -> list[Path]:
        return sorted(self._root.rglob("*"))


class ArchiveTree:
    """A tar archive's files, in its order; links in it lead nowhere."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fingerprint(self) -> str:
        """Of the whole archive."""
        digest = hashlib.blake2b()
        with self._path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def entries(self, wanted: Wanted) -> Iterator[Entry]:
        try:
            with tarfile.open(self._path, "r|*") as archive:
                for entry in archive:
                    name = entry.name.removeprefix("./")
                    file = archive.extractfile(entry) if entry.isfile() and wanted(name) else None
                    yield Entry(name, entry.isdir(), None if file is None else file.read())
        except (tarfile.TarError, EOFError, OSError) as error:
            raise DataError(f"archive {self._path} cannot be read: {error}; copy it again") from error


def open_tree(path: Path) -> Tree:
    """The tree at a path.

    Raises:
        DataError: there is neither a folder nor a tar archive.
    """
    if path.is_file() and path.name.endswith(ARCHIVES):
        return ArchiveTree(path)
    if path.is_dir():
        return FolderTree(path)
    raise DataError(f"{path} is neither a folder nor a tar archive ({', '.join(ARCHIVES)})")
