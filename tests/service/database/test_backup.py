"""docs/cluster.md's backup and restore: a copy made while a driver writes holds whole studies, and the work goes on."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
from optuna.study import StudyDirection
from sqlalchemy import Engine, text

from search.records import Lease, SearchRecord
from service.database import SqlStore, make_engine, prepare
from service.database.engine import parse_url, sqlite_path
from tests.service.database.conftest import _database
from tests.service.database.fill import complete, curve, definition, leased, run

COUNTS = ("admeta_studies", "admeta_runs", "admeta_points", "trials", "trial_params")


def test_a_backup_is_restored_and_the_study_goes_on(
    url: str, engine: Engine, store: SqlStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lease, (first, *_) = leased(store, definition())
    for number in range(3):
        run(store, lease, first, number, complete(0.2), points=curve(0.1, 0.2))
    store.optuna_storage().create_new_trial(_optuna_study(store, first))
    before = _counts(engine)
    file = sqlite_path(parse_url(url))
    dump = tmp_path / ("backup.sqlite3" if file is not None else "backup.dump")
    if file is not None:
        _backup_sqlite(file, dump)
    else:
        _postgres("pg_dump", "--format=custom", f"--file={dump}", _plain(url))
    run(store, lease, first, 3, complete(0.5), points=curve(0.5))  # after the backup: to be run again
    if file is not None:
        _goes_on(f"sqlite:///{dump}", lease, first, before)
        return
    with _database(request.getfixturevalue("server")) as restored:
        _postgres("pg_restore", "--clean", "--if-exists", f"--dbname={_plain(restored)}", str(dump))
        _goes_on(restored, lease, first, before)


def _goes_on(url: str, lease: Lease, search: SearchRecord, before: dict[str, int]) -> None:
    """The service starts on it, and the next driver adds the run that is missing."""
    prepare(url)
    engine = make_engine(url)
    assert _counts(engine) == before
    store = SqlStore(engine)
    store.release_lease(lease)
    own = store.acquire_lease(lease.study_id, owner="next", ttl_s=60)
    assert own is not None
    assert [record.trial_number for record in store.runs(lease.study_id)] == [0, 1, 2]
    assert [point.value for point in store.points(store.runs(lease.study_id)[0].id)] == [0.1, 0.2]
    again = run(store, own, search, 3, complete(0.5), points=curve(0.5))
    assert again.id not in {record.id for record in store.runs(lease.study_id)[:3]}
    engine.dispose()


def _optuna_study(store: SqlStore, search: SearchRecord) -> int:
    return store.optuna_storage().create_new_study([StudyDirection.MAXIMIZE], search.optuna_name)


def _backup_sqlite(file: Path, backup: Path) -> None:
    """What the shell's `.backup` does."""
    with sqlite3.connect(file) as source, sqlite3.connect(backup) as target:
        source.backup(target)


def _postgres(program: str, *arguments: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    subprocess.run([program, *arguments], check=True, capture_output=True)


def _plain(url: str) -> str:
    """The address as PostgreSQL's own programs read it, without SQLAlchemy's driver."""
    return url.replace("postgresql+psycopg://", "postgresql://")


def _counts(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return {table: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() for table in COUNTS}
