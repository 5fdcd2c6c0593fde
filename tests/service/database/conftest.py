"""Databases for tests, on SQLite and on PostgreSQL: each test its own, or one that is empty again.

PostgreSQL is looked for at ADMETA_TEST_POSTGRES_URL, or else on this machine. Without a server those tests are skipped,
except under CI, where that is a failure.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, Table, create_engine, inspect, select, text
from sqlalchemy.exc import OperationalError

from search.definition import StudyDefinition
from service.database import SqlStore, make_engine, prepare
from service.database.engine import parse_url
from tests.service.database.fill import definition

SERVER_URL = os.environ.get("ADMETA_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
BACKENDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def server() -> Iterator[Engine]:
    engine = create_engine(parse_url(SERVER_URL), isolation_level="AUTOCOMMIT")
    try:
        engine.connect().close()
    except OperationalError as error:
        message = f"no PostgreSQL server ({str(error.orig).splitlines()[0]}); set ADMETA_TEST_POSTGRES_URL"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    yield engine
    engine.dispose()


@pytest.fixture(params=BACKENDS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'admeta.sqlite3'}"
        return
    with _database(request.getfixturevalue("server")) as url:
        yield url


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database with empty tables, prepared once: copied on SQLite, emptied after each test on PostgreSQL."""
    if request.param == "sqlite":
        path = tmp_path / "admeta.sqlite3"
        shutil.copy(request.getfixturevalue("prepared_database"), path)
        yield f"sqlite:///{path}"
        return
    database = request.getfixturevalue("postgresql")
    yield database.url
    database.empty()


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = make_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> SqlStore:
    return SqlStore(engine)


@pytest.fixture
def two_searches() -> StudyDefinition:
    return definition()


@pytest.fixture(scope="session")
def postgresql(server: Engine) -> Iterator[_Prepared]:
    database = _Prepared(server)
    yield database
    database.drop()


class _Prepared:
    """A database for one test after the other: the server takes a second to make one, and another to drop it."""

    def __init__(self, server: Engine) -> None:
        self._server = server
        self._made: _database | None = None

    @property
    def url(self) -> str:
        """URL of the database, which is made where there is none; its tables are empty."""
        if self._made is None:
            self._made = _database(self._server)
            self._url = self._made.__enter__()
            prepare(self._url)
            self._engine = create_engine(parse_url(self._url))
            with self._engine.connect() as connection:
                metadata = MetaData()
                metadata.reflect(connection)
                rows = {table: connection.execute(select(table)).all() for table in reversed(metadata.sorted_tables)}
            self._empty = [table for table, found in rows.items() if not found]
            self._filled: dict[Table, Any] = {table: found for table, found in rows.items() if found}
        return self._url

    def empty(self) -> None:
        """End what still uses the database, and delete all rows; drop it if a test changed the schema."""
        with self._server.connect() as connection:
            others = text("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = :name")
            self._engine.dispose()
            connection.execute(others, {"name": self._engine.url.database})
        with self._engine.begin() as connection:
            names = {*inspect(connection).get_table_names()}
            is_same = names == {table.name for table in (*self._empty, *self._filled)} and all(
                connection.execute(select(table)).all() == rows for table, rows in self._filled.items()
            )
            if is_same:
                for table in self._empty:
                    connection.execute(table.delete())
                connection.execute(text("SELECT setval(seqrelid, seqstart, false) FROM pg_sequence"))
        if not is_same:
            self.drop()

    def drop(self) -> None:
        """Drop the database, if there is one."""
        if self._made is not None:
            self._engine.dispose()
            self._made.__exit__()
            self._made = None


class _database:  # noqa: N801  (reads as the context manager it is)
    """A database on the server, dropped at the end with whatever still uses it."""

    def __init__(self, server: Engine) -> None:
        self.server = server
        self.name = f"admeta_test_{uuid.uuid4().hex[:12]}"

    def __enter__(self) -> str:
        with self.server.connect() as connection:
            connection.execute(text(f'CREATE DATABASE "{self.name}"'))
            connection.execute(text(f'ALTER DATABASE "{self.name}" SET synchronous_commit = off'))  # no test kills it
        return self.server.url.set(database=self.name).render_as_string(hide_password=False)

    def __exit__(self, *_exc: object) -> None:
        with self.server.connect() as connection:
            connection.execute(text(f'DROP DATABASE "{self.name}" WITH (FORCE)'))
