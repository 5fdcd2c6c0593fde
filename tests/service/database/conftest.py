"""Databases for tests: each test its own, on SQLite and on PostgreSQL.

PostgreSQL is looked for at ADMETA_TEST_POSTGRES_URL, or else on this machine. Without a server those tests are skipped,
except under CI, where that is a failure.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
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
    """URL of a database with empty tables, copied from one that was prepared once."""
    if request.param == "sqlite":
        path = tmp_path / "admeta.sqlite3"
        shutil.copy(request.getfixturevalue("prepared_file"), path)
        yield f"sqlite:///{path}"
        return
    with _database(request.getfixturevalue("server"), template=request.getfixturevalue("prepared_database")) as url:
        yield url


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
def prepared_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prepared") / "admeta.sqlite3"
    prepare(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def prepared_database(server: Engine) -> Iterator[str]:
    with _database(server) as url:
        prepare(url)
        yield str(parse_url(url).database)


class _database:  # noqa: N801  (reads as the context manager it is)
    """A database on the server, dropped at the end with whatever still uses it."""

    def __init__(self, server: Engine, *, template: str = "template1") -> None:
        self.server, self.template = server, template
        self.name = f"admeta_test_{uuid.uuid4().hex[:12]}"

    def __enter__(self) -> str:
        with self.server.connect() as connection:
            connection.execute(text(f'CREATE DATABASE "{self.name}" TEMPLATE "{self.template}"'))
        return self.server.url.set(database=self.name).render_as_string(hide_password=False)

    def __exit__(self, *_exc: object) -> None:
        with self.server.connect() as connection:
            connection.execute(text(f'DROP DATABASE "{self.name}" WITH (FORCE)'))
