"""Connections to SQLite and PostgreSQL, configured so that both behave in the same way with many writers.

SQLite: write-ahead log, foreign keys, up to 60 s of waiting for a lock. Writers take the lock when they begin (`BEGIN
IMMEDIATE`): a reader that turns into a writer would fail at once instead of waiting. Each transaction first checks that
the file is still the one that was opened.
PostgreSQL: psycopg 3; connections are tested before use, and a dead server is detected within half a minute.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, inspect, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError
from sqlalchemy.orm import Session

from service.database.errors import RESTORE_HINT, DatabaseFileError, DatabaseUrlError

BUSY_TIMEOUT_S = 60
POSTGRES_CONNECT_ARGS: dict[str, str | int] = {
    "application_name": "admeta",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms
}

_WRITE_NOTHING = text("UPDATE admeta_alembic_version SET version_num = version_num")
_begin: ContextVar[str] = ContextVar("sqlite_begin", default="BEGIN")


def parse_url(url: str | URL) -> URL:
    """The URL with the driver we use.

    Raises:
        DatabaseUrlError: it cannot be parsed, names another kind of database, or an SQLite database in memory.
    """
    hint = "Use sqlite:////path/to/admeta.sqlite3 or postgresql://user@host:5432/database."
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # their messages repeat the URL with its password
        raise DatabaseUrlError("The database URL cannot be parsed.", hint=hint) from None
    if "@" in (parsed.host or ""):  # a part of the password, which the driver would print as the host
        detail = "The user or the password in the database URL contains '@'."
        raise DatabaseUrlError(detail, hint="Write it as %40, or put the password into ADMETA_DATABASE_PASSWORD_FILE.")
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
    is_server = parse_url(url).get_backend_name() == "postgresql"
    return _engine(url, pool_size=pool_size, max_overflow=2 * pool_size, pool_recycle=1800, pool_pre_ping=is_server)


def make_driver_engine(url: str | URL) -> Engine:
    """As `make_engine`, for a caller that repeats failed calls: connections are not tested before use."""
    return _engine(url, pool_size=4, max_overflow=8, pool_recycle=1800)


def make_single_engine(url: str | URL) -> Engine:
    """As `make_engine`, for work that is done once, such as migrations: no connection is kept open."""
    return _engine(url, poolclass=NullPool)


def _engine(url: str | URL, **options: Any) -> Engine:
    parsed = parse_url(url)
    engine = create_engine(parsed, creator=connector(parsed), **options)
    set_up_transactions(engine)
    return engine


def connector(url: URL) -> Callable[[], Any]:
    """A function that opens a configured DBAPI connection. It holds the password, so that its engines need not.

    An SQLite file must exist; `prepare` creates it.
    """
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
    kwargs = {"timeout": BUSY_TIMEOUT_S, **kwargs, "uri": True}
    path = Path(args[0]).absolute()
    address = f"{path.as_uri()}?mode=rw"  # by default SQLite would create a deleted file again, empty

    def connect() -> Any:
        try:
            return _set_up_sqlite(dialect.connect(address, **kwargs))
        except sqlite3.OperationalError:
            if _identity(str(path)) is not None:
                raise
            detail = f"The database file {path} does not exist: it was deleted, or never created."
            raise DatabaseFileError(detail, hint=RESTORE_HINT) from None

    return connect


def _set_up_sqlite(connection: Any) -> Any:
    connection.isolation_level = None  # Python's sqlite3 must not begin transactions
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")  # in WAL: a power cut may lose the last commits, not the file
    connection.execute("PRAGMA schema_version").fetchone()  # the first read opens the write-ahead log
    return connection


def set_up_transactions(engine: Engine) -> None:
    """Make an SQLite engine begin its transactions itself: deferred, or with the write lock inside `immediate`.

    Every transaction of such an engine raises DatabaseFileError where the file is no longer the one it opened.
    """
    path = sqlite_path(engine.url)
    if path is not None:
        file = _SqliteFile(path)
        event.listen(engine, "begin", file.begin)
        event.listen(engine, "handle_error", _open_anew)


def _open_anew(context: ExceptionContext) -> None:
    """Close a connection after these errors: one that was opened while the file was read-only stays read-only."""
    code = getattr(context.original_exception, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        context.is_disconnect = True


class _SqliteFile:
    """The file of one engine, and each connection's write-ahead log: neither may be deleted or replaced while in use.

    A connection keeps the file that it opened, also when that was deleted; what it writes then is lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._opened: tuple[int, int] | None = None
        self._is_lost = False

    def begin(self, connection: Connection) -> None:
        known, found, wal = connection.info, _identity(self._path), _identity(f"{self._path}-wal")
        if "wal" not in known:  # a new connection; its log stays for as long as it is open
            self._opened, known["wal"] = self._opened or found, wal
        if self._is_lost or found != self._opened or known["wal"] not in (None, wal):
            self._is_lost = True  # for good: a new connection would find a new log, without what the old one held
            raise _gone(self._path)
        connection.exec_driver_sql(_begin.get())


def _gone(path: str) -> DatabaseFileError:
    return DatabaseFileError(
        f"The database file {path} or its write-ahead log was deleted or replaced while it was in use; "
        "nothing more is written to it.",
        hint=RESTORE_HINT,
    )


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a file; None where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def check_writable(engine: Engine) -> None:
    """Commit a write that changes nothing. Where another process is writing, there is no need to.

    Raises:
        DBAPIError, OSError, DatabaseFileError: it cannot be written; the disk is full, for example.
    """
    with immediate(), engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        is_sqlite = engine.dialect.name == "sqlite"
        try:
            if is_sqlite:
                raw.execute("PRAGMA busy_timeout = 1000")
            connection.execute(_WRITE_NOTHING)
            connection.commit()
        except OperationalError as error:
            if not is_sqlite or "locked" not in str(error.orig):
                raise
        finally:
            if is_sqlite and not connection.invalidated:
                raw.execute(f"PRAGMA busy_timeout = {1000 * BUSY_TIMEOUT_S}")


def check_integrity(engine: Engine) -> None:
    """Check that an SQLite file is intact and has our tables; reads all of it. A server checks its own files.

    Raises:
        DatabaseFileError: it was deleted, replaced or damaged.
        DBAPIError, OSError: it cannot be read now.
    """
    if (path := sqlite_path(engine.url)) is None:
        return
    with engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        try:
            raw.execute("PRAGMA shrink_memory")  # pages in memory would be checked instead of the file's
            found = connection.execute(text("PRAGMA quick_check(1)")).scalar_one()
            known = inspect(connection).has_table("admeta_alembic_version")
        except DatabaseError as error:
            if isinstance(error, OperationalError):
                raise
            found, known = str(error.orig), True
    if found != "ok" or not known:
        raise DatabaseFileError(
            f"The database file {path} was damaged or overwritten while it was in use: "
            f"{'its tables are gone' if found == 'ok' else ' '.join(found.split())}.",
            hint=RESTORE_HINT,
        )


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
    """A session for reading, in which all queries see the same state of the database."""
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
    """An engine for transactions of one statement: PostgreSQL need not begin and commit them."""
    return engine.execution_options(isolation_level="AUTOCOMMIT") if engine.dialect.name == "postgresql" else engine


def insert_for(dialect: str) -> Callable[[Any], Any]:
    """The dialect's INSERT, which has ON CONFLICT; both dialects have the same methods."""
    return postgresql.insert if dialect == "postgresql" else sqlite.insert


def sqlite_path(url: URL) -> Path | None:
    """The database file, or None where the database is a server."""
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None
