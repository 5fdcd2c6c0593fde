"""A home in pieces of a few MiB, to be carried to another machine: what is still needed of it, and nothing else.

That is the database, the records of the calls, what runs printed, and the newest checkpoint of each run that is not
finished. Where these are too much, the smallest go along; a run without one starts from its beginning.
"""

from __future__ import annotations

import io
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from benchmarks.reproduction.work import SESSIONS, database_url
from search.records import RunRecord, run_folder
from search.states import RunState
from service.database.engine import make_engine, reading
from service.database.models import Run, Search
from service.database.schema import prepare
from tasks.engine.folders import LocalFolder, find_checkpoints

MIB = 2**20
DATABASE = "admeta.sqlite3"


def pack(home: Path, target: Path, *, piece_mib: float = 14.0, at_most_mib: float = 56.0) -> list[Path]:
    """Write TARGET.00, TARGET.01, …; the pieces.

    Args:
        at_most_mib: of all pieces; checkpoints that do not fit are left out.
    """
    for old in target.parent.glob(f"{target.name}.[0-9][0-9]"):
        old.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoints = _needed(home)
    with (
        tempfile.TemporaryDirectory() as scratch,
        closing(_Pieces(target, round(piece_mib * MIB))) as pieces,
        tarfile.open(fileobj=pieces, mode="w|gz") as archive,
    ):
        archive.add(_copy_of_database(home, Path(scratch)), arcname=DATABASE)
        for path in [home / SESSIONS, *sorted((home / "checkpoints").rglob("*.log"))]:
            if path.is_file():
                archive.add(path, arcname=str(path.relative_to(home)))
        left = at_most_mib * MIB - pieces.n_bytes
        fitting = [path for path in checkpoints if (left := left - path.stat().st_size) >= 0]
        for path in fitting:
            archive.add(path, arcname=str(path.relative_to(home)))
    size = sum(path.stat().st_size for path in pieces.paths) / MIB
    print(
        f"packed {len(pieces.paths)} pieces, {size:.1f} MiB, with {len(fitting)} of {len(checkpoints)} checkpoints "
        "that unfinished runs go on from"
    )
    return pieces.paths


def unpack(pieces: Sequence[Path], home: Path) -> None:
    """Put the pieces together again in a home that has no database yet; its tables are brought to this version."""
    if (home / DATABASE).exists():
        raise SystemExit(f"{home / DATABASE} is there already; unpack into another folder")
    home.mkdir(parents=True, exist_ok=True)
    joined = io.BufferedReader(_Joined(sorted(pieces)), 1 << 20)
    with tarfile.open(fileobj=joined, mode="r|gz") as archive:
        archive.extractall(home, filter="data")
    prepare(database_url(home))


def _copy_of_database(home: Path, scratch: Path) -> Path:
    """One file, also of what is still in the write-ahead log."""
    target = scratch / DATABASE
    with closing(sqlite3.connect(home / DATABASE)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
        copy.execute("VACUUM")
    return target


def _needed(home: Path) -> list[Path]:
    """The newest checkpoint of each unfinished run; small ones first."""
    engine = make_engine(database_url(home))
    try:
        found = list(_of_unfinished_runs(engine, home / "checkpoints"))
    finally:
        engine.dispose()
    return sorted(found, key=lambda path: (path.stat().st_size, path))


def _of_unfinished_runs(engine: Engine, storage: Path) -> Iterator[Path]:
    query = select(Run, Search.label, Search.study_id).join(Search, Search.id == Run.search_id)
    with reading(engine) as session:
        for run, label, study_id in session.execute(
            query.where(Run.state.in_([RunState.WAITING, RunState.RUNNING]))
        ).all():
            folder = storage / run_folder(study_id, label, run.record(RunRecord))
            if found := find_checkpoints(LocalFolder(folder).names()):
                yield folder / max(found)[1]


class _Pieces(io.RawIOBase):
    """A stream that is written to one file after another."""

    def __init__(self, target: Path, piece_bytes: int) -> None:
        self._target = target
        self._piece_bytes = piece_bytes
        self._file: io.BufferedWriter | None = None
        self.paths: list[Path] = []
        self.n_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        total = len(left)
        while left:
            room = self._piece_bytes - (self.n_bytes % self._piece_bytes)
            if room == self._piece_bytes:
                self._next()
            assert self._file is not None
            self._file.write(left[:room])
            self.n_bytes += len(left[:room])
            left = left[room:]
        return total

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
        self.paths.append(self._target.with_name(f"{self._target.name}.{len(self.paths):02d}"))
        self._file = self.paths[-1].open("wb")


class _Joined(io.RawIOBase):
    """The pieces as one stream."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [path.open("rb") for path in paths]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._files:
            n = self._files[0].readinto(buffer)
            if n:
                return n
            self._files.pop(0).close()
        return 0
