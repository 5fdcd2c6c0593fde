"""The tables' versions: make them, upgrade them, refuse what does not fit.

Owns the one moment when tables are made, ours by Alembic and Optuna's by Optuna, under a lock that all processes
respect: two services that start on an empty database must not both make them.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import alembic.command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, func, not_, select, text
from sqlalchemy.exc import DBAPIError

from service.database.engine import immediate, make_single_engine, sqlite_path
from service.database.errors import DatabaseUnavailableError, DatabaseVersionError
from service.database.retry import REQUEST, call, in_short
from service.settings import keep_private

TABLE_PREFIX = "admeta_"
VERSION_TABLE = "admeta_alembic_version"
_LOCK_KEY = 0x61646D657461  # "admeta": the advisory lock on PostgreSQL


def prepare(url: str | URL) -> None:
    """Make the database ready: create or upgrade our tables and Optuna's. Safe to call from several processes at once.

    Args:
        url: sqlite:///path (file and folder are created) or postgresql://… (the database must exist).

    Raises:
        DatabaseUrlError: the URL cannot be used.
        DatabaseUnavailableError: the server does not answer or refuses the login; the file cannot be used.
        DatabaseVersionError: the database was made by a newer version of this program, or of Optuna.
    """
    from service.database.optuna_storage import upgrade_optuna_tables  # Optuna takes 0.4 s, and `inspect` needs none

    engine = make_single_engine(url)
    try:
        with _sole_user(engine):
            if _known_revision(engine) != head_revision():
                upgrade(engine)
            upgrade_optuna_tables(engine)
    except (DBAPIError, OSError) as error:
        raise _unusable(engine, error) from error
    finally:
        engine.dispose()


def inspect(url: str | URL) -> str | None:
    """The revision of the tables there; None without tables or without the file. Changes nothing.

    Raises:
        DatabaseUrlError, DatabaseUnavailableError: as `prepare`.
    """
    engine = make_single_engine(url)
    path = sqlite_path(engine.url)
    if path is not None and not path.exists():
        return None
    try:
        return current_revision(engine)
    except DBAPIError as error:
        raise _unusable(engine, error) from error
    finally:
        engine.dispose()


def step_back(url: str | URL, revision: str) -> None:
    """Take our tables back to an older revision, for an older version of this program. What is newer in them is lost.

    Args:
        revision: as 0001; base removes the tables. Optuna's stay as they are.

    Raises:
        DatabaseVersionError: there are no tables, the revision is not older than theirs, or studies are being driven.
        DatabaseUrlError, DatabaseUnavailableError: as `prepare`.
    """
    before = inspect(url)
    engine = make_single_engine(url)
    try:
        if before is None:
            raise DatabaseVersionError("The database has no tables of admeta-search.", hint="See `admeta db current`.")
        with _sole_user(engine):
            _known_revision(engine)
            _check_older(revision, than=before)
            _check_idle(engine)
            downgrade(engine, revision)
    except (DBAPIError, OSError) as error:
        raise _unusable(engine, error) from error
    finally:
        engine.dispose()


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Bring our tables forward to a revision."""
    with _migrating(engine) as config:
        alembic.command.upgrade(config, revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Take our tables back to a revision; "base" removes them."""
    with _migrating(engine) as config:
        alembic.command.downgrade(config, revision)


def current_revision(engine: Engine) -> str | None:
    """The revision of our tables; None without tables."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def head_revision() -> str | None:
    """The revision that this code needs."""
    return _scripts().get_current_head()


@cache
def _scripts() -> ScriptDirectory:
    """The revisions that this code knows; to read them takes a tenth of a second."""
    return ScriptDirectory.from_config(_config(None))


def _unusable(engine: Engine, error: DBAPIError | OSError) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"The database {engine.url.render_as_string(hide_password=True)} cannot be used: {in_short(error)}.",
        hint="Check the URL, that the server runs and has this database, and who may read and write it.",
    )


def _known_revision(engine: Engine) -> str | None:
    """The revision of our tables, None without tables. Raises DatabaseVersionError where this code does not know it."""
    found = current_revision(engine)
    if found is not None and found not in {script.revision for script in _scripts().walk_revisions()}:
        raise DatabaseVersionError(
            f"The database's tables are at revision {found}; the newest that this version knows is {head_revision()}.",
            hint="A newer admeta-search upgraded this database; install that version, or use another database.",
        )
    return found


def _check_older(revision: str, *, than: str) -> None:
    older = ["base", *sorted(script.revision for script in _scripts().iterate_revisions(than, "base"))][:-1]
    if revision not in older:
        raise DatabaseVersionError(
            f"'{revision}' is not an older revision than that of the tables, {than}.",
            hint=f"Choose one of: {', '.join(older)}.",
        )


def _check_idle(engine: Engine) -> None:
    """Refuse while a driver holds a study, as it would lose its tables. Leases are in the first revision."""
    from service.database.lease import lease_is_free
    from service.database.models import Study

    with engine.connect() as connection:
        driven = select(func.count()).select_from(Study).where(not_(lease_is_free(engine)))
        n = connection.execute(driven).scalar_one()
    if n:
        raise DatabaseVersionError(
            f"{n} studies have a driver now.",
            hint="Pause or cancel them, stop every service on this database, and try again in a minute.",
        )


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", "service.database:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@contextmanager
def _migrating(engine: Engine) -> Iterator[Config]:
    """One transaction around all revisions: on both databases a revision that fails leaves nothing behind."""
    logging.getLogger("alembic.runtime").setLevel(logging.WARNING)
    with immediate(), engine.begin() as connection:
        yield _config(connection)


@contextmanager
def _sole_user(engine: Engine) -> Iterator[None]:
    path = sqlite_path(engine.url)
    if path is None:
        with _advisory_lock(engine):
            yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)
    keep_private(path)  # SQLite gives its own other files the rights of this one
    with _file_lock(path.with_name(path.name + ".lock")):
        with engine.connect() as connection:
            # Kept in the file from then on. Not at every connect: the switch itself fails when others are reading.
            connection.connection.dbapi_connection.execute("PRAGMA journal_mode = WAL")  # type: ignore[union-attr]
        yield


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back


@contextmanager
def _advisory_lock(engine: Engine) -> Iterator[None]:
    connection = call(engine.connect, REQUEST).execution_options(isolation_level="AUTOCOMMIT")
    with connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK_KEY})
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK_KEY})
