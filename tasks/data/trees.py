"""The files of a tree, which is a folder or a tar archive read from front to back, and its class folders.

Nothing is unpacked to disk. Files and folders whose names begin with a dot are ignored. Class folders are
<split>/<class>/…/<file>, at the top of the tree or in its only folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import pickle
import queue
import subprocess
import sys
import tarfile
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, TypeVar, cast

from tasks.errors import DataError

_MAX_FILE = 1 << 30  # bytes; a file is held in memory
_MAX_RATIO = 200  # of text; a bomb of zeros reaches 1,000
DECODED_AT_ONCE = 256  # files
PROCESSES_FROM = 8  # times as many: fewer are decoded sooner than processes start
MAX_PROCESSES = 8
MAX_SAMPLED = 256  # files
_SAMPLE = 1 << 20  # bytes
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")

KeyT = TypeVar("KeyT")
DecodedT = TypeVar("DecodedT")

Wanted = Callable[[str], bool]
"""Whether a file of that name is to be read."""
_Found = os.DirEntry[str]

Content = bytes | str
"""What a file holds; of a file in a folder its path, so that the process that decodes it reads it."""


class UnreadableFileError(DataError):
    """A file that the system does not let this process read, or that a link names and is not there."""


def read_content(content: Content) -> bytes:
    """The bytes; raises UnreadableFileError."""
    if isinstance(content, bytes):
        return content
    try:
        return Path(content).read_bytes()
    except OSError as error:
        raise UnreadableFileError(f"{_text(content)} cannot be read: {error.strerror}; repair or remove it") from error


@dataclass(frozen=True)
class Entry:
    """A folder or a file; `name` is relative to the tree, with forward slashes; `content` is of wanted files alone.

    Bytes of a name that are not UTF-8 are written as \\xff: classes and messages are text.
    """

    name: str
    is_folder: bool
    content: Content | None = None


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
        for name, found in _walk(self._root):
            lines.append(_text(name))
            if _is_file(found):
                status = found.stat()
                lines.append(f"{status.st_size} {status.st_mtime_ns}")
        return hashlib.blake2b("\n".join(lines).encode()).hexdigest()

    def entries(self, wanted: Wanted) -> Iterator[Entry]:
        for raw_name, found in _walk(self._root):
            name = _text(raw_name)
            leads_nowhere = found.is_symlink() and not os.path.exists(found.path)  # which is told when it is read
            is_read = (_is_file(found) or leads_nowhere) and wanted(name)
            yield Entry(name, _is_folder(found), found.path if is_read else None)


def _walk(folder: Path, *, prefix: str = "", above: frozenset[Path] = frozenset()) -> Iterator[tuple[str, _Found]]:
    """(name relative to the tree, what it is) of all in a folder and in those within it, by name; links are followed.

    Args:
        prefix: of the names.
        above: the folders that hold this one.
    """
    real = folder.resolve()
    if real in above:
        raise DataError(f"{_text(folder)} is a link to a folder that holds it; remove it")
    try:
        with os.scandir(folder) as inside:
            found = sorted(inside, key=lambda one: one.name)
    except OSError as error:
        raise DataError(f"{_text(folder)} cannot be read: {error.strerror}; let the worker read it") from error
    for one in found:
        if not one.name.startswith("."):
            yield prefix + one.name, one
            if _is_folder(one):
                yield from _walk(Path(one.path), prefix=f"{prefix}{one.name}/", above=above | {real})


def _is_folder(found: _Found) -> bool:
    """Whether it is a folder or a link to one. Of a link that names itself `DirEntry.is_dir` raises an error."""
    return os.path.isdir(found.path) if found.is_symlink() else found.is_dir()


def _is_file(found: _Found) -> bool:
    """Whether it is a file or a link to one: no pipe and no device, whose content would have no end."""
    return os.path.isfile(found.path) if found.is_symlink() else found.is_file()


def _text(path: Path | str) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


def fingerprint(root: Path, files: Mapping[str, Path] | None = None) -> str:
    """A digest of what files hold that is the same wherever they are, and does not read gigabytes.

    Of each file its name and size count, and its content: whole up to 1 MiB, else the first and the last half of one.
    In a folder with more than `MAX_SAMPLED` files names and sizes alone count.

    Args:
        root: a folder, with all that is in it, or a single file, whose name does not count.
        files: only these, by the names that count.

    Raises:
        DataError: a folder cannot be read.
        OSError: a file cannot be read.
    """
    if files is None and root.is_dir():
        files = {_text(name): Path(found.path) for name, found in _walk(root) if _is_file(found)}
    elif files is None:
        files = {"".join(root.suffixes): root}
    digest = hashlib.blake2b(digest_size=32)
    for name, path in sorted(files.items()):
        digest.update(f"{len(name)} {name} {path.stat().st_size}\n".encode())
        if len(files) <= MAX_SAMPLED:
            digest.update(_sample(path))
    return digest.hexdigest()


def _sample(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(_SAMPLE)
        if path.stat().st_size <= _SAMPLE:
            return head
        file.seek(-_SAMPLE // 2, os.SEEK_END)
        return head[: _SAMPLE // 2] + file.read()


class ArchiveTree:
    """A tar archive's files, in its order; links in it are not followed."""

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
            most = max(_MAX_RATIO * self._path.stat().st_size, _MAX_FILE)
            with tarfile.open(self._path, "r|*", tarinfo=_Header, errors="backslashreplace") as archive:
                for entry in archive:
                    most -= entry.size
                    if entry.size > _MAX_FILE or most < 0:
                        raise DataError(
                            f"archive {self._path} unpacks to too much at {entry.name!r}; a file may have {_MAX_FILE} "
                            f"bytes, all together {_MAX_RATIO} times the archive's size; unpack it into a folder"
                        )
                    name = entry.name.removeprefix("./")
                    if any(part.startswith(".") for part in name.split("/")):
                        continue
                    file = archive.extractfile(entry) if entry.isfile() and wanted(name) else None
                    yield Entry(name, entry.isdir(), None if file is None else file.read())
        except (tarfile.TarError, EOFError, OSError) as error:
            raise DataError(f"archive {self._path} cannot be read: {error}; copy it again") from error


class _Header(tarfile.TarInfo):
    """A member's header. By default tarfile takes a damaged or missing one for the end, and ignores the rest."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # zeros: the end
            raise tarfile.ReadError(f"{error} where a file or the archive's end should be") from error


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


SPLIT_FOLDERS: Mapping[str, str] = {
    "train": "train",
    "test": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
}
"""Names of split folders → the split."""


def normalize_name(name: str) -> str:
    """The name of a class, label or tag in one Unicode form (NFC): é may be one character, or e and an accent."""
    return unicodedata.normalize("NFC", name)


@functools.lru_cache(maxsize=4096)
def find_class(folder: str) -> tuple[str, str] | None:
    """(split, class) of a folder <split>/<class>/…, at the top or in one folder; None for any other."""
    parts = PurePosixPath(folder).parts
    for tail in (parts, parts[1:]):
        if len(tail) >= 2 and tail[0] in SPLIT_FOLDERS:
            return SPLIT_FOLDERS[tail[0]], normalize_name(tail[1])
    return None


def decode_in_order(
    files: Iterator[tuple[KeyT, Content]], decode: Callable[[bytes], DecodedT], *, threads_from_bytes: int = 0
) -> Iterator[tuple[KeyT, DecodedT | DataError]]:
    """Each file's content decoded by threads, in order; a DataError of `decode` is returned instead of raised.

    Args:
        decode: a function that can be pickled, if there are small files.
        threads_from_bytes: mean file size from which threads are used; small files mostly hold the interpreter's lock.
            Many of these are decoded by processes.

    Raises:
        UnreadableFileError: a file cannot be read.
    """
    for key, decoded in _decode_in_order(files, decode, threads_from_bytes):
        if isinstance(decoded, UnreadableFileError):
            raise decoded
        yield key, decoded


def _decode_in_order(
    files: Iterator[tuple[KeyT, Content]], decode: Callable[[bytes], DecodedT], threads_from_bytes: int
) -> Iterator[tuple[KeyT, DecodedT | DataError]]:
    blocks = iter(lambda: list(itertools.islice(files, DECODED_AT_ONCE)), [])
    head = list(itertools.islice(blocks, PROCESSES_FROM))
    n_processes = min(MAX_PROCESSES, usable_cpus())
    is_small = [_mean_bytes(block) < threads_from_bytes for block in head]
    if len(head) == PROCESSES_FROM and all(is_small) and n_processes > 1:
        yield from _decode_in_processes(itertools.chain(head, blocks), decode, n_processes)
        return
    with ThreadPoolExecutor() as pool:
        for block in itertools.chain(head, blocks):
            contents = [content for _, content in block]
            decode_one = partial(_decode_or_error, decode)
            in_threads = _mean_bytes(block) >= threads_from_bytes
            decoded = pool.map(decode_one, contents) if in_threads else map(decode_one, contents)
            yield from zip((key for key, _ in block), decoded, strict=True)


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mean_bytes(block: Sequence[tuple[Any, Content]]) -> float:
    return sum(_n_bytes(content) for _, content in block) / len(block)


def _n_bytes(content: Content) -> int:
    if isinstance(content, bytes):
        return len(content)
    with contextlib.suppress(OSError):  # told when it is read
        return os.stat(content).st_size
    return 0


def _decode_or_error(decode: Callable[[bytes], DecodedT], content: Content) -> DecodedT | DataError:
    try:
        return decode(read_content(content))
    except DataError as error:
        return error


def _decode_in_processes(
    blocks: Iterator[list[tuple[KeyT, Content]]], decode: Callable[[bytes], DecodedT], n_processes: int
) -> Iterator[tuple[KeyT, DecodedT | DataError]]:
    """As `decode_in_order`; each process decodes a block at a time."""
    free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()

    def decode_block(contents: list[Content]) -> list[DecodedT | DataError]:
        process = free.get()
        try:
            pickle.dump((decode, contents), cast(IO[bytes], process.stdin))
            cast(IO[bytes], process.stdin).flush()
            decoded: list[DecodedT | DataError] = pickle.load(cast(IO[bytes], process.stdout))
            return decoded
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise DataError(
                f"a process that decodes files ended with exit code {process.wait()}; a file may crash a library, or "
                "the machine may lack memory"
            ) from error
        finally:
            free.put(process)

    with contextlib.ExitStack() as stack:
        for _ in range(n_processes):
            free.put(stack.enter_context(_decoder()))
        pool = stack.enter_context(ThreadPoolExecutor(n_processes))
        waiting: deque[tuple[list[KeyT], Future[list[DecodedT | DataError]]]] = deque()
        for block in blocks:
            waiting.append(([key for key, _ in block], pool.submit(decode_block, [content for _, content in block])))
            if len(waiting) > 2 * n_processes:
                keys, decoded = waiting.popleft()
                yield from zip(keys, decoded.result(), strict=True)
        for keys, decoded in waiting:
            yield from zip(keys, decoded.result(), strict=True)


@contextlib.contextmanager
def _decoder() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs `decode_blocks`; unlike those of `multiprocessing` it does not import the caller's script."""
    command = [sys.executable, "-c", f"from {__name__} import decode_blocks; decode_blocks()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):  # of what it had not read
                cast(IO[bytes], process.stdin).close()


def decode_blocks() -> None:
    """Decode what comes at stdin, (function, contents) at a time, until it ends; the answers go to stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while True:
        try:
            decode, contents = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump([_decode_or_error(decode, content) for content in contents], answers, protocol=-1)
        answers.flush()


@dataclass(frozen=True)
class Member:
    """A file in a class folder."""

    split: str
    klass: str
    name: str


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


@dataclass
class ClassFolders:
    """What was found while a tree was read.

    Attributes:
        found: the class folders of each split, including empty ones.
        others: files that were not used: those outside class folders, and what the reader adds.
    """

    found: dict[str, set[str]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def read_members(self, tree: Tree) -> Iterator[tuple[Member, Content]]:
        """The files of the tree that are in a class folder."""
        for entry in tree.entries(lambda name: find_class(_parent(name)) is not None):
            place = find_class(entry.name if entry.is_folder else _parent(entry.name))
            if place is not None:
                self.found.setdefault(place[0], set()).add(place[1])
            if entry.content is not None and place is not None:
                yield Member(*place, entry.name), entry.content
            elif not entry.is_folder:
                self.others.append(entry.name)

    def check(self, labels: Mapping[str, list[str]], *, what: str) -> list[str]:
        """The classes, in alphabetical order.

        Args:
            labels: by split, the class of each file that could be read.
            what: what a file holds, in the singular: "image".

        Raises:
            DataError: fewer than two classes, a split or a class folder without a readable file, or a class that the
                training set does not have.
        """
        if not self.found:
            raise DataError(f"no {what} is in train/<class>/ or test/<class>/; the data set must have both folders")
        classes = sorted(self.found.get("train", ()))
        if len(classes) < 2:
            raise DataError(f"train holds {len(classes)} class folder(s); a classification needs at least two")
        for split, names in labels.items():
            if not names:
                raise DataError(f"{split} holds no {what}; its class folders must hold {what}s")
            if empty := sorted(self.found[split] - set(names)):
                raise DataError(f"class folder {split}/{empty[0]} holds no readable {what}; fill it or remove it")
            if unknown := sorted(set(names) - set(classes)):
                raise DataError(
                    f"class {unknown[0]!r} is in {split} but not in train; every class must have training {what}s"
                )
        return classes


def open_class_folders(path: Path) -> Tree:
    """The tree at a path whose top, or whose only folder, holds train/ and test/; an archive is checked when read.

    Raises:
        DataError: nothing there, or a folder without them.
    """
    if path.is_dir():
        inner = [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        if len(inner) == 1 and (inner[0] / "train").is_dir():
            path = inner[0]
        for split in ("train", "test"):
            if not (path / split).is_dir():
                raise DataError(f"{path} has no folder {split!r}; it must hold train/<class>/ and test/<class>/")
    return open_tree(path)
