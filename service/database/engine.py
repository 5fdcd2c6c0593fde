"""Connections to SQLite and PostgreSQL, set up so that both behave alike under many writers.

SQLite: write-ahead log, foreign keys on, 60 s of patience for a lock, and writers that take the lock when they begin
(`BEGIN IMMEDIATE`), because a reader that turns writer half-way cannot wait for a lock: it fails at once.
PostgreSQL: psycopg 3, connections tested before use, dead servers noticed within half a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session

from service.database.errors import DatabaseUrlError

BUSY_TIMEOUT_S = 60
POSTGRES_CONNECT_ARGS: dict[str, str | int] = {
    "application_name": "admeta",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms
}

_begin: ContextVar[str] = ContextVar("sqlite_begin", default="BEGIN")


def parse_url(url: str | URL) -> URL:
    """The URL with the driver we use.

    Raises:
        DatabaseUrlError: it cannot be parsed, names another kind of database, or an SQLite database in memory.
    """
    hint = "Use sqlite:////path/to/admeta.sqlite3 or postgresql://user:password@host:5432/database."
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # their messages repeat the URL, password and all
        raise DatabaseUrlError("The database URL cannot be parsed.", hint=hint) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise DatabaseUrlError("An SQLite database in memory cannot be shared between processes.", hint=hint)
        return parsed.set(drivername="sqlite+pysqlite")
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    raise DatabaseUrlError(f"The database URL names '{backend}'; known are sqlite and postgresql.", hint=hint)


def make_engine(url: str | URL, *, pool_size: int = 10) -> Engine:
    """An engine on the database; connects when first used.

    Args:
        url: sqlite:///path or postgresql://…; `postgres://` too.
        pool_size: connections kept open; twice as many more may be opened for a while.

    Raises:
        DatabaseUrlError: see `parse_url`; or the database's driver is not installed.
    """
    ask_first = parse_url(url).get_backend_name() == "postgresql"
    return _pooled(url, pool_size=pool_size, pool_pre_ping=ask_first)


def make_driver_engine(url: str | URL) -> Engine:
    """An engine for who repeats each call that a lost connection broke: connections are used without a question first.

    Raises:
        DatabaseUrlError: as `make_engine`.
    """
    return _pooled(url, pool_size=4, pool_pre_ping=False)


def _pooled(url: str | URL, *, pool_size: int, **options: Any) -> Engine:
    parsed = parse_url(url)
    engine = create_engine(
        parsed,
        creator=connector(parsed),
        pool_size=pool_size,
        max_overflow=2 * pool_size,
        pool_recycle=1800,
        **options,
    )
    begin_as_told(engine)
    return engine


def make_single_engine(url: str | URL) -> Engine:
    """An engine that keeps no connection open: for work done once, migrations say."""
    parsed = parse_url(url)
    engine = create_engine(parsed, creator=connector(parsed), poolclass=NullPool)
    begin_as_told(engine)
    return engine


def connector(url: URL) -> Callable[[], Any]:
    """A function that opens a DBAPI connection, set up. It keeps the password, so that engines that use it need not."""
    kind = url.get_dialect()
    dialect = kind()
    try:
        dialect.dbapi = kind.import_dbapi()
    except ImportError as error:
        raise DatabaseUrlError(
            f"{url.get_backend_name()} needs a driver that is not installed ({error}).",
            hint="Install it: pip install 'admeta-search[postgres]'.",
        ) from error
    args, kwargs = dialect.create_connect_args(url)
    if dialect.name == "postgresql":
        kwargs = {**POSTGRES_CONNECT_ARGS, **kwargs}
        return lambda: dialect.connect(*args, **kwargs)
    kwargs = {"timeout": BUSY_TIMEOUT_S, **kwargs}
    return lambda: _set_up_sqlite(dialect.connect(*args, **kwargs))


def _set_up_sqlite(connection: Any) -> Any:
    connection.isolation_level = None  # Python's sqlite3 must not begin transactions by itself
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")  # in WAL: a power cut may lose the last commits, not the file
    return connection


def begin_as_told(engine: Engine) -> None:
    """Make an SQLite engine begin its transactions by itself: deferred, or at once inside `immediate`."""
    if engine.dialect.name == "sqlite":
        event.listen(engine, "begin", _begin_sqlite)


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(_begin.get())


@contextmanager
def immediate() -> Iterator[None]:
    """Transactions begun inside take SQLite's write lock at once."""
    token = _begin.set("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        _begin.reset(token)


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """A session that sees one state of the database, however many queries it takes, and changes nothing."""
    if engine.dialect.name == "postgresql":
        engine = engine.execution_options(isolation_level="REPEATABLE READ")
    with Session(engine, expire_on_commit=False, autoflush=False) as session:
        yield session


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """A session that commits at the end, or rolls back on an error."""
    with immediate(), Session(engine, expire_on_commit=False) as session, session.begin():
        yield session


def one_statement(engine: Engine) -> Engine:
    """An engine for transactions of a single statement: PostgreSQL is not asked to begin and commit them."""
    return engine.execution_options(isolation_level="AUTOCOMMIT") if engine.dialect.name == "postgresql" else engine


def insert_for(dialect: str) -> Callable[[Any], Any]:
    """The dialect's INSERT, which can be told what to do where a row is there; both say it in the same words."""
    return postgresql.insert if dialect == "postgresql" else sqlite.insert


def sqlite_path(url: URL) -> Path | None:
    """The database file, or None where the database is a server."""
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None
