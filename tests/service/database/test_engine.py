from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import IntegrityError

from service.database import make_engine, prepare
from service.database.engine import parse_url, reading, writing
from service.database.errors import DatabaseUrlError


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


def test_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DatabaseUrlError, match="not installed") as error:
        make_engine("postgresql://u@h/d")
    assert "admeta-search[postgres]" in error.value.hint


def test_foreign_keys_are_on(engine: Engine) -> None:
    insert = "INSERT INTO admeta_points VALUES (999, 1, 1, NULL, '{}', NULL, 0, 0, 0, 0, 0)"
    with pytest.raises(IntegrityError), writing(engine) as session:
        session.execute(text(insert))


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
