from __future__ import annotations

import itertools
import sqlite3
import threading

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from service.database import SqlStore
from service.database.engine import make_driver_engine
from service.database.errors import DatabaseUnavailableError
from service.database.retry import REQUEST, RetryPolicy, call, is_transient, may_have_committed
from tests.service.database.fill import complete, curve, definition, leased, run


def sqlite_error(message: str) -> OperationalError:
    return OperationalError("SELECT 1", {}, sqlite3.OperationalError(message))


def postgres_error(kind: type[psycopg.Error], message: str = "") -> OperationalError:
    return OperationalError("SELECT 1", {}, kind(message))


def disconnect() -> OperationalError:
    return OperationalError("COMMIT", {}, psycopg.OperationalError("server closed"), connection_invalidated=True)


@pytest.mark.parametrize(
    ("error", "transient", "ambiguous"),
    [
        (sqlite_error("database is locked"), True, False),
        (sqlite_error("disk I/O error"), False, True),
        (sqlite_error("no such table: x"), False, True),
        (disconnect(), True, True),
        (postgres_error(psycopg.OperationalError, "connection refused"), True, True),
        (postgres_error(psycopg.OperationalError, 'password authentication failed for user "x"'), False, True),
        (postgres_error(psycopg.OperationalError, 'database "x" does not exist'), False, True),
        (postgres_error(psycopg.errors.AdminShutdown), True, True),
        (postgres_error(psycopg.errors.CannotConnectNow), True, True),
        (postgres_error(psycopg.errors.DeadlockDetected), True, False),
        (postgres_error(psycopg.errors.SerializationFailure), True, False),
        (postgres_error(psycopg.errors.TooManyConnections), True, False),
        (postgres_error(psycopg.errors.DiskFull), False, True),
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
            raise sqlite_error("database is locked")
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
