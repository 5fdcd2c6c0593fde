"""The output of a run: a file for each attempt next to the checkpoints, written through file descriptors 1 and 2.

Used by the worker that writes and the service that reads. The kernel has every line as soon as it is printed, also by C
code and by processes that the run starts, so a worker that is killed loses none.

    <run's folder>/logs/attempt-0001.log    a head line that counts the bytes dropped, then the text

At about 2 MiB the file is cut to its last 1 MiB. Offsets count from the first byte ever printed, so that a cut does not
change them.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tasks.engine.folders import Folder, inside, is_remote, open_folder

KEEP_BYTES = 1 << 20
"""Bytes that are left after a cut."""
CUT_AT_BYTES = 2 << 20
CUT_EVERY_S = 1.0
COPY_EVERY_S = 10.0
_FOLDER = "logs"
_HEAD = "#admeta-log dropped={:015d}\n"
_HEAD_PATTERN = re.compile(rb"#admeta-log dropped=(\d{15})\n")
_N_HEAD = len(_HEAD.format(0))
_NO_LINE_BYTES = 16 << 10
"""A line longer than this is returned before it ends."""
_FILE_NAME = re.compile(r"attempt-(\d{4,})\.log")


def start_log(run_folder: str, attempt: int) -> RunLog:
    """Open the log of a new attempt: in the run's folder, or in a local folder if that one is remote."""
    name = _name(attempt)
    if not is_remote(run_folder):
        return RunLog(log_file(run_folder, attempt))
    return RunLog(Path(tempfile.mkdtemp(prefix="admeta-log-")) / name, copy_to=open_folder(inside(run_folder, _FOLDER)))


def log_file(run_folder: str | Path, attempt: int) -> Path:
    """The file of an attempt's output in a local folder."""
    return Path(run_folder) / _FOLDER / _name(attempt)


def logged_attempts(run_folder: str) -> list[int]:
    """The attempts of a run that have a log, oldest first."""
    with suppress(OSError):
        names = open_folder(inside(run_folder, _FOLDER)).names()
        return sorted(int(found[1]) for name in names if (found := _FILE_NAME.fullmatch(name)))
    return []


def read_log(run_folder: str, attempt: int, *, offset: int = 0, tail: int | None = None, whole: bool) -> Excerpt:
    """A part of an attempt's log; see `excerpt`.

    Raises:
        FileNotFoundError: the attempt has no log.
    """
    raw = open_folder(inside(run_folder, _FOLDER)).read(_name(attempt))
    return excerpt(raw, offset=offset, tail=tail, whole=whole)


def _name(attempt: int) -> str:
    return f"attempt-{attempt:04d}.log"


class RunLog:
    """An attempt's log, open for writing. If the folder cannot be written, the run continues without a log.

    Args:
        path: the file; an existing one is continued.
        copy_to: where `publish` copies it; the file itself is then removed by `close`.
    """

    def __init__(self, path: Path, *, copy_to: Folder | None = None) -> None:
        self._path = path
        self._copy_to = copy_to
        self._copied_at = -COPY_EVERY_S
        self._fd: int | None = None
        self._dropped = 0
        self._cutting = threading.Lock()
        self._closed = threading.Event()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._begin(self._fd)
        except OSError as error:
            print(f"this run has no log: {path} cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
            return
        threading.Thread(target=self._keep_short, name="run-log", daemon=True).start()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Send this process's stdout and stderr to the log, and the traceback of an exception that is raised inside."""
        if self._fd is None:
            yield
            return
        saved = [(number, os.dup(number)) for number in (1, 2)]
        _flush()
        for number, _ in saved:
            os.dup2(self._fd, number)
        try:
            yield
        except BaseException:
            self._write(traceback.format_exc())
            raise
        finally:
            _flush()
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)
            self.cut()

    def say(self, text: str) -> None:
        """Add a line with the time."""
        self._write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {text}\n")

    def cut(self) -> None:
        """If the file is long, keep its last part. Output that is written during the cut may be lost."""
        with self._cutting, suppress(OSError):
            if self._fd is None or (size := os.fstat(self._fd).st_size) <= CUT_AT_BYTES:
                return
            tail = os.pread(self._fd, KEEP_BYTES, size - KEEP_BYTES)
            tail = tail[tail.find(b"\n", 0, _NO_LINE_BYTES) + 1 :]
            self._dropped += size - _N_HEAD - len(tail)
            os.ftruncate(self._fd, 0)  # in place, since processes that the run started have this file open
            os.write(self._fd, _HEAD.format(self._dropped).encode() + tail)

    def publish(self) -> None:
        """Copy the log to where the service reads it, if that is another folder and the last copy is old enough."""
        if self._copy_to is not None and time.monotonic() - self._copied_at >= COPY_EVERY_S:
            self._copied_at = time.monotonic()
            self._copy(self._copy_to)

    def _copy(self, folder: Folder) -> None:
        with suppress(OSError):
            folder.write(self._path.name, [self._path.read_bytes()])

    def close(self) -> None:
        """End the log of this attempt."""
        if self._copy_to is not None and not self._closed.is_set():
            self._copy(self._copy_to)
            shutil.rmtree(self._path.parent, ignore_errors=True)
        self._closed.set()
        with self._cutting:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _begin(self, fd: int) -> None:
        head = _HEAD_PATTERN.match(os.pread(fd, _N_HEAD, 0))
        if head is None:
            os.ftruncate(fd, 0)
            os.write(fd, _HEAD.format(0).encode())
        else:
            self._dropped = int(head[1])

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a full disk, for example
            if self._fd is not None:
                os.write(self._fd, text.encode("utf-8", "backslashreplace"))

    def _keep_short(self) -> None:
        while not self._closed.wait(CUT_EVERY_S):
            self.cut()


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """A part of a log.

    Attributes:
        text: whole lines, unless the log ends within one.
        start, end: offsets of the text, in bytes since the first ever printed; the next part begins at `end`.
    """

    text: str
    start: int
    end: int


def excerpt(raw: bytes, *, offset: int = 0, tail: int | None = None, whole: bool) -> Excerpt:
    """A part of a log.

    Args:
        raw: the file's content.
        offset: the start, in bytes since the first ever printed; a later one if that part was dropped.
        tail: only this number of last lines.
        whole: include a last line that has no end yet.
    """
    head = _HEAD_PATTERN.match(raw)
    if head is None:  # the file is being cut
        return Excerpt(text="", start=offset, end=offset)
    dropped, kept = int(head[1]), raw[_N_HEAD:]
    skipped = min(max(offset - dropped, 0), len(kept))
    kept = kept[skipped:]
    end = len(kept) if whole else max(kept.rfind(b"\n"), kept.rfind(b"\r")) + 1
    if len(kept) - end > _NO_LINE_BYTES:
        end = len(kept)
    first = 0 if tail is None else _start_of_last(kept[:end], tail)
    start = dropped + skipped
    return Excerpt(text=kept[first:end].decode("utf-8", "replace"), start=start + first, end=start + end)


def _start_of_last(text: bytes, n_lines: int) -> int:
    """Where the last `n_lines` lines of the text begin."""
    place = len(text) - 1 if text.endswith(b"\n") else len(text)
    for _ in range(n_lines):
        place = text.rfind(b"\n", 0, max(place, 0))
        if place < 0:
            return 0
    return place + 1 if n_lines else len(text)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
