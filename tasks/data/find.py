"""Where a data set's files are: in the data folder, or fetched once a node and kept in its cache.

The cache holds folders that one process builds while the others wait. A folder gets its name when it is complete, so
one that exists can be used. Keys are digests of the content: no folder becomes stale, and any may be deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from tasks.config import resolve_inside
from tasks.data.trees import ARCHIVES, Tree, open_tree
from tasks.errors import DataError

log = logging.getLogger(__name__)

TIMEOUT_S = 30.0  # without a byte
N_TRIES = 3
PAUSE_S = 5.0
PARQUET = "refs/convert/parquet"
"""The hub's own conversion of data sets that are programs, which `datasets` no longer runs."""

Fail = Callable[[str], DataError]
"""From the reason why nothing was fetched to the error: what is missing, and what to put where."""

FetchInto = Callable[[Path, Fail], None]
"""Writes the data set's files into a folder, or raises the error that it is given."""


def open_data_folder(name: str, *, data_dir: Path | None, inner: str | None) -> Path:
    """The data folder of this machine, or the folder or file `inner` in it.

    Raises:
        DataError: there is no data folder, or nothing of that name in it.
    """
    if data_dir is None:
        raise DataError(f"{name} needs a data folder: set ADMETA_DATA or --data")
    return data_dir if inner is None else resolve_inside(data_dir, inner)


def find_or_fetch(
    name: str,
    *,
    data_dir: Path | None,
    inner: str | None,
    folders: Sequence[str],
    layouts: Sequence[Mapping[str, str]],
    optional: Set[str] = frozenset(),
    advice: str,
    fetch: FetchInto,
    fetched: Mapping[str, str],
    version: int,
) -> Mapping[str, Path]:
    """The files of a data set by split.

    Args:
        inner: the folder of the data folder that the configuration names: nothing is looked for elsewhere, or fetched.
        folders: where to look within the data folder; within `inner`, there and in `inner` itself.
        layouts: the file names that are looked for, by split; "train" decides which of them it is.
        optional: splits whose file may be missing.
        advice: what to put into the data folder instead: "Put a and b there".
        fetch, fetched: writes files of these names, where none are found.
        version: of the fetched files.

    Raises:
        DataError: a file is missing from the set, or none is found and none could be fetched.
    """
    root = None if data_dir is None else data_dir if inner is None else resolve_inside(data_dir, inner)
    for folder in () if root is None else (root / place for place in ((".", *folders) if inner else folders)):
        for layout in layouts:
            if (folder / layout["train"]).is_file():
                return _check_complete(name, {split: folder / file for split, file in layout.items()}, optional)
    where = root if root is not None else "the data folder (set ADMETA_DATA or --data)"

    def fail(reason: str) -> DataError:
        return DataError(f"{name} is not in {where} and could not be fetched ({reason}). {advice}")

    if inner is not None:
        raise fail("data_dir is given, so nothing else is searched")
    cached = build_once("datasets", f"{name}-{version}", lambda folder: fetch(folder, fail))
    return _check_complete(name, {split: cached / file for split, file in fetched.items()}, optional)


def _check_complete(name: str, paths: Mapping[str, Path], optional: Set[str]) -> Mapping[str, Path]:
    found = {split: path for split, path in paths.items() if path.is_file()}
    if missing := sorted(paths.keys() - found.keys() - optional):
        needed = ", ".join(path.name for split, path in paths.items() if split not in optional)
        raise DataError(f"{paths[missing[0]]} is missing; {name} needs {needed} in one folder")
    return found


def list_candidates(folder: Path, stems: Sequence[str]) -> Iterator[Path]:
    """What a data set may be called in a folder: <stem>/, <stem>.tar, <stem>.tar.gz, …"""
    for stem in stems:
        yield folder / stem
        yield from (folder / f"{stem}{suffix}" for suffix in ARCHIVES)


def find_tree(
    folder: Path, stems: Sequence[str], *, url: str | None, file: str, expected: str, inside: str | None = None
) -> Tree:
    """The tree of a data set, as a folder or an archive.

    Args:
        folder: where to look: for <stem>/ and for archives <stem>.tar and so on.
        inside: a folder that shows that `folder` is the data set's own.
        url, file: the address to fetch it from where it is not found (None: nowhere), and the archive's name.
        expected: what may be put into the folder instead, for the error.

    Raises:
        DataError: nothing found and nothing fetched; the message names the folder and the files expected.
    """
    if inside is not None and (folder / inside).is_dir():
        return open_tree(folder)
    for candidate in list_candidates(folder, stems):
        if candidate.exists():
            return open_tree(candidate)

    def fail(reason: str) -> DataError:
        return DataError(f"{stems[0]} is not in {folder} and could not be fetched ({reason}). Put there: {expected}")

    if url is None:
        raise fail("data_dir is given, so nothing else is searched")
    key = hashlib.blake2b(url.encode(), digest_size=16).hexdigest()
    return open_tree(build_once("downloads", key, lambda cache: _download(url, cache / file, fail)) / file)


def _download(url: str, path: Path, fail: Fail) -> None:
    """Fetch a file; begun again where the connection broke, or nothing came for a while."""
    import httpx

    log.info("fetching %s", url)
    for n_left in reversed(range(N_TRIES)):
        try:
            with (
                httpx.stream("GET", url, follow_redirects=True, timeout=TIMEOUT_S) as answer,
                path.open("wb") as file,
            ):
                answer.raise_for_status()
                for block in answer.iter_bytes():
                    file.write(block)
            return
        except (httpx.HTTPError, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            if not n_left or not isinstance(error, httpx.ReadTimeout | httpx.ReadError | httpx.RemoteProtocolError):
                raise fail(f"{url}: {reason}") from error
            log.warning("%s: %s; trying again", url, reason)
            time.sleep(PAUSE_S)


def load_from_hub(name: str, part: str | None = None, *, revision: str | None = None, fail: Fail) -> Any:
    """The splits of a data set of the Hugging Face hub by name, each a table of rows.

    Args:
        part: of a data set that has several (GLUE's tasks).
        fail: makes the error where it cannot be fetched.
    """
    import httpx
    from datasets import disable_progress_bars, load_dataset
    from datasets.exceptions import DatasetsError

    log.info("fetching %s %s from the hub", name, part or "")
    disable_progress_bars()
    try:
        return load_dataset(name, part, revision=revision)
    except (OSError, ValueError, KeyError, RuntimeError, DatasetsError, httpx.HTTPError) as error:
        raise fail(f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}") from error


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def cache_root() -> Path:
    """$XDG_CACHE_HOME or ~/.cache, under admeta-search."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "admeta-search"


@contextlib.contextmanager
def node_lock(name: str) -> Iterator[None]:
    """Hold the node's lock of that name (a path under the cache root); the system frees it if the process dies.

    Raises:
        DataError: the cache folder cannot be written.
    """
    path = cache_root() / f"{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise DataError(
            f"the cache folder {path.parent} cannot be written ({error.strerror}); set XDG_CACHE_HOME to one that can"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_once(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder <cache>/<kind>/<key>, built by the first process that asks.

    Args:
        kind: what it is: "tokens", "glue".
        key: a file name that changes whenever the content would.
        build: fills the empty folder that it is given; if it raises, the folder is removed.

    Raises:
        DataError: the cache folder cannot be written or has no room, or what `build` raises.
    """
    folder = cache_root() / kind / key
    if folder.is_dir():
        return folder
    with node_lock(f"{kind}/{key}"):
        if not folder.is_dir():
            temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{key}-"))
            try:
                build(temporary)
                _flush(temporary)
                os.rename(temporary, folder)
            except BaseException as error:
                shutil.rmtree(temporary, ignore_errors=True)
                if isinstance(error, OSError) and error.errno in _NO_ROOM:
                    raise DataError(
                        f"the cache folder {folder.parent} has no room ({error.strerror}); make room there, or set "
                        "XDG_CACHE_HOME to a folder that has"
                    ) from error
                raise
    return folder


def _flush(folder: Path) -> None:
    """Write a folder's files to disk before it is renamed: a power cut must not leave a name without its content."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
