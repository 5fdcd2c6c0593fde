from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert, inspect, text
from sqlalchemy.exc import IntegrityError

from service.database import make_engine, prepare
from service.database.engine import check_integrity, check_writable, parse_url, reading, writing
from service.database.errors import DatabaseFileError, DatabaseUrlError
from service.database.models import CurvePoint


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:////tmp/a.sqlite3", "sqlite+pysqlite"),
        ("postgresql://u:p@h/d", "postgresql+psycopg"),
        ("postgresql+psycopg://u:p@h/d", "postgresql+psycopg"),
        ("postgresql+psycopg2://u:p@h/d", "postgresql+psycopg"),
        ("postgres://u:p@h/d", "postgresql+psycopg"),
    ],
)
def test_url_gets_our_driver(url: str, driver: str) -> None:
    assert parse_url(url).drivername == driver


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://root:s3cret@h/d", "mysql"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("u:s3cret@nonsense", "cannot be parsed"),
        ("postgresql://u:s3cret@h:port/d", "cannot be parsed"),
        ("", "cannot be parsed"),
    ],
)
def test_bad_url_is_refused_without_its_password(url: str, says: str) -> None:
    with pytest.raises(DatabaseUrlError, match=says) as error:
        make_engine(url)
    assert "s3cret" not in str(error.value)
    assert error.value.__cause__ is None
    assert "sqlite:////" in error.value.hint


def test_an_at_sign_in_the_password_must_be_encoded() -> None:
    with pytest.raises(DatabaseUrlError, match="contains '@'") as error:
        make_engine("postgresql://u:half@s3cret@h/d")
    assert "%40" in error.value.hint
    assert "s3cret" not in str(error.value)
    assert parse_url("postgresql://u:half%40s3cret@h/d").password == "half@s3cret"


def test_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DatabaseUrlError, match="not installed") as error:
        make_engine("postgresql://u@h/d")
    assert "admeta-search[postgres]" in error.value.hint


def test_foreign_keys_are_on(engine: Engine) -> None:
    columns = CurvePoint.__table__.c
    row = {column.name: 0 for column in columns if not column.nullable} | {"run_id": 999, "metrics": {}}
    with pytest.raises(IntegrityError, match=r"(?i)foreign key"), writing(engine) as session:
        session.execute(insert(CurvePoint), row)


def test_sqlite_is_set_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'a {b} 100%.sqlite3'}"
    prepare(url)
    engine = make_engine(url)
    with engine.connect() as connection:
        pragma = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        }
    assert pragma == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 60_000, "synchronous": 1}


def test_writer_takes_sqlites_lock_when_it_begins(tmp_path: Path) -> None:
    """Two that read first and write then: a lock taken late would fail the second at once."""
    url = f"sqlite:///{tmp_path / 'a.sqlite3'}"
    prepare(url)
    engine = make_engine(url)
    with writing(engine) as session:
        session.execute(text("SELECT count(*) FROM admeta_studies"))
        other = engine.raw_connection().dbapi_connection
        assert other is not None
        other.execute("PRAGMA busy_timeout = 0")  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="database is locked"):
            other.execute("BEGIN IMMEDIATE")  # type: ignore[attr-defined]


def test_reader_sees_one_state(engine: Engine) -> None:
    count = text("SELECT count(*) FROM t")
    with writing(engine) as writer:
        writer.execute(text("CREATE TABLE t (x INTEGER)"))
    with reading(engine) as reader:
        assert reader.execute(count).scalar() == 0
        with writing(engine) as writer:
            writer.execute(text("INSERT INTO t VALUES (1)"))
        assert reader.execute(count).scalar() == 0


def test_failed_write_leaves_nothing(engine: Engine) -> None:
    def fail() -> None:
        with writing(engine) as session:
            session.execute(text("CREATE TABLE t (x INTEGER)"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not inspect(engine).has_table("t")


@pytest.fixture
def file(tmp_path: Path, prepared_database: Path) -> Path:
    path = tmp_path / "admeta.sqlite3"
    shutil.copy(prepared_database, path)
    return path


@pytest.fixture
def opened(file: Path) -> Iterator[Engine]:
    """An engine that has used the file."""
    engine = make_engine(f"sqlite:///{file}")
    check_writable(engine)
    check_integrity(engine)
    yield engine
    engine.dispose()


def deleted(file: Path, _another: Path) -> None:
    file.unlink()


def replaced(file: Path, another: Path) -> None:
    another.rename(file)


def log_deleted(file: Path, _another: Path) -> None:
    file.with_name(f"{file.name}-wal").unlink()


@pytest.mark.parametrize("change", [deleted, replaced, log_deleted])
def test_a_file_that_is_gone_is_neither_written_nor_read(
    opened: Engine, file: Path, tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    prepare(f"sqlite:///{tmp_path / 'another.sqlite3'}")
    change(file, tmp_path / "another.sqlite3")
    for attempt in (check_writable, check_integrity, check_writable):
        with pytest.raises(DatabaseFileError, match="was deleted or replaced while it was in use"):
            attempt(opened)
    for begin in (writing, reading):
        with pytest.raises(DatabaseFileError), begin(opened) as session:
            session.execute(text("SELECT 1"))
    if change is deleted:  # nor made anew, by another process that opens it
        with pytest.raises(DatabaseFileError, match="does not exist: it was deleted"):
            make_engine(f"sqlite:///{file}").connect()
        assert not file.exists()


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000], ids=["emptied", "overwritten"])
def test_a_file_that_is_overwritten_in_place_is_noticed(opened: Engine, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(DatabaseFileError, match="was damaged or overwritten while it was in use"):
        check_integrity(opened)
