"""What a node builds or fetches once: folders in the user's cache, built by one process while the others wait.

A folder gets its name when it is complete, so one that exists can be used. Keys are digests of the content, so nothing
in the cache becomes stale, and deleting any of it is safe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks.errors import DataError

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
