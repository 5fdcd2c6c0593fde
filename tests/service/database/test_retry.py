from __future__ import annotations

import errno
import itertools
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DatabaseError, DBAPIError, IntegrityError, OperationalError

from search.states import RunState, Scope
from service.database import SqlStore
from service.database.engine import check_writable, make_driver_engine, make_engine
from service.database.errors import DatabaseFileError, DatabaseUnavailableError
from service.database.retry import (
    REQUEST,
    RetryPolicy,
    call,
    in_short,
    is_transient,
    lacks_descriptors,
    may_have_committed,
    reason,
)
from service.database.schema import prepare
from service.database.tokens import create_token, find_bearer
from tests.chaos.outages import can_mount, full, small_disk
from tests.machine import PATIENCE_S
from tests.service.database.fill import complete, curve, definition, leased, run


def sqlite_error(message: str, code: int = sqlite3.SQLITE_ERROR) -> OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return OperationalError("SELECT 1", {}, error)


def postgres_error(kind: type[psycopg.Error], message: str = "") -> DBAPIError:
    return DBAPIError.instance("SELECT 1", {}, kind(message), psycopg.Error)


def no_more_files() -> OSError:
    return OSError(errno.EMFILE, "Too many open files")


def disconnect() -> OperationalError:
    return OperationalError("COMMIT", {}, psycopg.OperationalError("server closed"), connection_invalidated=True)


@pytest.mark.parametrize(
    ("error", "transient", "ambiguous"),
    [
        (sqlite_error("database is locked", sqlite3.SQLITE_BUSY), True, False),
        (sqlite_error("database is locked", sqlite3.SQLITE_BUSY_SNAPSHOT), True, False),
        (sqlite_error("database or disk is full", sqlite3.SQLITE_FULL), True, False),
        (sqlite_error("attempt to write a readonly database", sqlite3.SQLITE_READONLY), True, False),
        (sqlite_error("attempt to write a readonly database", sqlite3.SQLITE_READONLY_DIRECTORY), True, False),
        (sqlite_error("disk I/O error", sqlite3.SQLITE_IOERR_WRITE), True, True),
        (sqlite_error("unable to open database file", sqlite3.SQLITE_CANTOPEN), True, True),
        (sqlite_error("no such table: x"), False, True),
        (DatabaseError("SELECT 1", {}, sqlite3.DatabaseError("file is not a database")), False, True),
        (no_more_files(), True, False),
        (OSError(errno.ENOENT, "No such file or directory"), False, False),
        (disconnect(), True, True),
        (postgres_error(psycopg.OperationalError, "connection refused"), True, True),
        (postgres_error(psycopg.OperationalError, 'password authentication failed for user "x"'), False, True),
        (postgres_error(psycopg.OperationalError, 'database "x" does not exist'), False, True),
        (postgres_error(psycopg.errors.AdminShutdown), True, True),
        (postgres_error(psycopg.errors.CannotConnectNow), True, True),
        (postgres_error(psycopg.errors.DeadlockDetected), True, False),
        (postgres_error(psycopg.errors.SerializationFailure), True, False),
        (postgres_error(psycopg.errors.TooManyConnections), True, False),
        (postgres_error(psycopg.errors.DiskFull), True, False),
        (postgres_error(psycopg.errors.ReadOnlySqlTransaction), True, False),
        (postgres_error(psycopg.errors.IoError), True, True),
        (postgres_error(psycopg.errors.UndefinedTable), False, True),
        (IntegrityError("INSERT", {}, psycopg.errors.UniqueViolation()), False, True),
        (ValueError("database is locked"), False, False),
    ],
)
def test_which_errors_pass(error: Exception, transient: bool, ambiguous: bool) -> None:
    assert is_transient(error) is transient
    assert may_have_committed(error) is ambiguous


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_waits_grow_until_it_works() -> None:
    clock, calls, seen = Clock(), [], []

    def flaky() -> str:
        calls.append(clock.now)
        if len(calls) < 6:
            raise sqlite_error("database is locked", sqlite3.SQLITE_BUSY)
        return "done"

    policy = RetryPolicy(deadline_s=100, first_delay_s=1, max_delay_s=4)
    assert call(flaky, policy, sleep=clock.sleep, clock=clock, on_retry=seen.append) == "done"
    waits = [b - a for a, b in itertools.pairwise(calls)]
    assert [low <= w <= 2 * low for w, low in zip(waits, [0.5, 1, 2, 2, 2], strict=True)] == [True] * 5
    assert len(seen) == 5


def test_gives_up_at_the_deadline_and_says_so() -> None:
    clock = Clock()

    def never() -> None:
        raise disconnect()

    with pytest.raises(DatabaseUnavailableError, match=r"could not be used for \d+ s: server closed") as error:
        call(never, RetryPolicy(deadline_s=10), sleep=clock.sleep, clock=clock)
    assert isinstance(error.value.__cause__, DBAPIError)
    assert clock.now <= 10


def test_other_errors_are_not_repeated() -> None:
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise sqlite_error("no such table: x")

    with pytest.raises(OperationalError):
        call(broken, REQUEST)
    assert len(calls) == 1


def test_what_is_said_of_an_error_has_no_sql() -> None:
    full = sqlite_error("database or disk is full", sqlite3.SQLITE_FULL)
    wrapped = RuntimeError("cannot write")
    wrapped.__cause__ = postgres_error(psycopg.errors.ReadOnlySqlTransaction, "cannot execute UPDATE\nLINE 1: x")
    assert (in_short(full), reason(full)) == ("database or disk is full", "the disk is full")
    assert (in_short(wrapped), reason(wrapped)) == ("cannot execute UPDATE", "it is read-only")
    away = postgres_error(psycopg.OperationalError, 'connection to "db.internal" failed: password of user "x"')
    assert reason(away) == "it does not answer"
    assert (
        reason(DatabaseFileError("/home/x/a.sqlite3 is gone", hint="")) == "its file was deleted, replaced or damaged"
    )
    assert reason(no_more_files()) == "the process has no file descriptor left"
    assert in_short(KeyError()) == "KeyError"
    assert lacks_descriptors(RuntimeError("[Errno 24] Too many open files: '/x'"))
    assert not lacks_descriptors(full)


def test_a_damaged_file_is_not_waited_for() -> None:
    error = sqlite3.DatabaseError("file is not a database")
    error.sqlite_errorcode = sqlite3.SQLITE_NOTADB

    def read() -> None:
        raise DatabaseError("SELECT 1", {}, error)

    with pytest.raises(DatabaseFileError, match=r"damaged: file is not a database\. .*put a backup"):
        call(read, REQUEST)


@pytest.mark.skipif(not can_mount(), reason="only root can mount a disk")
def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=8) as disk:
        url = f"sqlite:///{disk / 'admeta.sqlite3'}"
        prepare(url)
        engine = make_engine(url)
        store = SqlStore(engine)
        lease, (search, _) = leased(store, definition())
        token = create_token(engine, name="reader", scope=Scope.READ).token
        with full(disk):
            with pytest.raises(OperationalError, match="full"):
                check_writable(engine)
            assert find_bearer(engine, token) is not None  # that its use cannot be recorded refuses nobody
            store.policy = RetryPolicy(deadline_s=0.2)
            with pytest.raises(DatabaseUnavailableError, match="disk is full"):
                run(store, lease, search, 0, complete(0.5), points=curve(0.1))
            store.policy = RetryPolicy(deadline_s=PATIENCE_S)
            thread = threading.Thread(target=run, args=(store, lease, search, 0, complete(0.5)))
            thread.start()
            thread.join(0.5)
            assert thread.is_alive()
        thread.join()
        assert [record.state for record in store.runs(lease.study_id)] == [RunState.COMPLETE]
        check_writable(engine)
        engine.dispose()


def test_a_connection_opened_while_the_file_was_read_only_is_replaced(
    tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite keeps such a connection read-only when the file's permissions are back."""
    path = tmp_path / "admeta.sqlite3"
    shutil.copy(prepared_database, path)
    is_read_only = True
    connect = sqlite3.connect

    def connect_so(database: str, **options: Any) -> sqlite3.Connection:
        return connect(database.replace("mode=rw", "mode=ro") if is_read_only else database, **options)

    monkeypatch.setattr("sqlite3.dbapi2.connect", connect_so)
    engine = make_engine(f"sqlite:///{path}")
    with pytest.raises(OperationalError, match="readonly"):
        check_writable(engine)
    is_read_only = False
    check_writable(engine)
    engine.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_read_only_server_is_waited_for(url: str, store: SqlStore, engine: Engine, server: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    name = engine.url.database
    engine.dispose()
    with server.connect() as connection:
        connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
        with pytest.raises(DBAPIError, match="read-only"):
            check_writable(engine)

        def write_again() -> None:
            connection.execute(text(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'))
            cut_connections(server, engine)

        back = threading.Timer(1, write_again)
        back.start()
        record = run(store, lease, search, 0, complete(0.5))
        back.join()
    assert store.runs(lease.study_id)[0].id == record.id


def cut_connections(server: Engine, engine: Engine) -> int:
    """End every session in the engine's database, as a restart of the server would."""
    query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = :name"
    with server.connect() as connection:
        return connection.execute(text(query), {"name": engine.url.database}).scalar_one()


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_store_survives_lost_connections(store: SqlStore, engine: Engine, server: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    for number in range(5):
        assert cut_connections(server, engine) > 0
        run(store, lease, search, number, complete(0.5), points=curve(0.1))
    assert len(store.runs(lease.study_id)) == 5


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_driver_survives_lost_connections_without_asking_first(url: str, engine: Engine, server: Engine) -> None:
    store = SqlStore(make_driver_engine(url))
    lease, (search, _) = leased(store, definition())
    for number in range(3):
        assert cut_connections(server, engine) > 0
        run(store, lease, search, number, complete(0.5), points=curve(0.1))
    assert len(store.runs(lease.study_id)) == 3
    store.engine.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_store_survives_a_server_that_is_away(store: SqlStore, engine: Engine, server: Engine) -> None:
    """No connection is let in for two seconds."""
    lease, (search, _) = leased(store, definition())
    name = engine.url.database
    with server.connect() as connection:
        connection.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'))
        cut_connections(server, engine)
        back = threading.Timer(
            2, lambda: server.connect().execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'))
        )
        back.start()
        record = run(store, lease, search, 0, complete(0.5))
        back.join()
    assert store.runs(lease.study_id)[0].id == record.id
