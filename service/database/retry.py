"""Repeats database calls that failed for a passing reason: which errors pass, and how long to retry.

A driver waits minutes, because a training run costs more than the wait; a request waits seconds and then is refused.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.database.errors import RESTORE_HINT, DatabaseFileError, DatabaseUnavailableError

P = ParamSpec("P")
T = TypeVar("T")
_logger = logging.getLogger(__name__)

# PostgreSQL: SQLSTATE classes and codes, https://www.postgresql.org/docs/current/errcodes-appendix.html.
_CONNECTION_LOST = ("08", "57P", "58030")  # also: the server shuts down, crashed or starts; I/O error
# Serialization, deadlock; disk full, out of memory, too many connections; lock not available; read-only.
_ROLLED_BACK = ("40", "53", "55P03", "25006")
_REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")
# SQLite: primary result codes, https://www.sqlite.org/rescode.html.
_SQLITE_ROLLED_BACK = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
_SQLITE_UNKNOWN = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM}
_SQLITE_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_REASONS: dict[object, str] = {
    **dict.fromkeys((sqlite3.SQLITE_FULL, "53100"), "the disk is full"),
    **dict.fromkeys((sqlite3.SQLITE_READONLY, "25006"), "it is read-only"),
    **dict.fromkeys((sqlite3.SQLITE_IOERR, "58030"), "I/O error"),
    **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, "55P03"), "it is locked"),
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened",
    "53300": "it has too many connections",
}
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_PASSING = (*_NO_DESCRIPTORS, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long calls are repeated, in seconds. The waits double from `first_delay_s` to `max_delay_s`."""

    deadline_s: float
    first_delay_s: float = 0.05
    max_delay_s: float = 5.0


DRIVER = RetryPolicy(deadline_s=900)
REQUEST = RetryPolicy(deadline_s=5, max_delay_s=1)


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later.

    It may when the connection was lost, the server restarts, the database is locked or read-only, the disk is full,
    there was an I/O error or a deadlock, or the process may open no further file.
    """
    return any(_is_transient(e) for e in _chain(error))


def may_have_committed(error: BaseException) -> bool:
    """Whether the failed call may have taken effect: the connection broke, perhaps after the commit."""
    return any(isinstance(e, DBAPIError) and not _is_rolled_back(e) for e in _chain(error))


def call(
    function: Callable[[], T],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    on_retry: Callable[[BaseException], None] | None = None,
    errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError),
) -> T:
    """Call until it succeeds, fails for good, or the policy's time is over.

    Args:
        on_retry: receives the error before each repetition.
        errors: what may be repeated; any other error is raised as it is.

    Raises:
        DatabaseUnavailableError: it still failed with a transient error at the deadline.
        DatabaseFileError: the database file was deleted, replaced or damaged.
    """
    started = clock()
    delay = policy.first_delay_s
    while True:
        try:
            return function()
        except errors as error:
            if is_damaged(error):
                raise _damaged(error) from error
            if not is_transient(error):
                raise
            waited = clock() - started
            if waited + delay > policy.deadline_s:
                raise DatabaseUnavailableError(
                    f"The database could not be used for {waited:.0f} s: {in_short(error)}.",
                    hint="Check that it runs, can be reached and has room, then repeat the request.",
                ) from error
            _logger.warning("the database cannot be used: %s; trying again", in_short(error))
            if on_retry is not None:
                on_retry(error)
        sleep(delay * random.uniform(0.5, 1.0))
        delay = min(2 * delay, policy.max_delay_s)


def retried(policy: RetryPolicy) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: repeat the function as the policy says. The function must be idempotent."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            return call(lambda: function(*args, **kwargs), policy)

        return wrapper

    return decorate


def in_short(error: BaseException) -> str:
    """What went wrong, in the database's words: without the SQL statement, its parameters and tracebacks."""
    for cause in _chain(error):
        if isinstance(cause, DBAPIError):
            return str(cause.orig).strip().partition("\n")[0]
    return str(error).strip().partition("\n")[0] or type(error).__name__


def reason(error: BaseException) -> str:
    """Why the database cannot be used, for anyone who asks: without addresses, names, paths and SQL."""
    for cause in _chain(error):
        if isinstance(cause, DatabaseFileError):
            return "its file was deleted, replaced or damaged"
        if isinstance(cause, DBAPIError):
            code = _sqlite_code(cause) or getattr(cause.orig, "sqlstate", None)
            if code in _REASONS:
                return _REASONS[code]
    return "the process has no file descriptor left" if lacks_descriptors(error) else "it does not answer"


def lacks_descriptors(error: BaseException) -> bool:
    """Whether the process, or the whole machine, could open no further file or connection."""
    words = os.strerror(errno.EMFILE), os.strerror(errno.ENFILE)
    return any(
        (isinstance(e, OSError) and e.errno in _NO_DESCRIPTORS) or any(word in str(e) for word in words)
        for e in _chain(error)
    )


def is_damaged(error: BaseException) -> bool:
    """Whether SQLite found that the file holds no intact database."""
    return any(isinstance(e, DBAPIError) and _sqlite_code(e) in _SQLITE_DAMAGED for e in _chain(error))


def _damaged(error: Exception) -> DatabaseFileError:
    return DatabaseFileError(
        f"The database file is damaged: {in_short(error)}.",
        hint=RESTORE_HINT,
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, PoolTimeoutError):
        return True
    if isinstance(error, OSError):
        return error.errno in _PASSING
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated or _is_rolled_back(error):
        return True
    if (sqlite_code := _sqlite_code(error)) is not None:
        return sqlite_code in _SQLITE_UNKNOWN
    if (state := getattr(error.orig, "sqlstate", None)) is not None:
        return str(state).startswith(_CONNECTION_LOST)
    # libpq gives no code when it cannot connect
    return isinstance(error, OperationalError) and not any(words in str(error.orig) for words in _REFUSED)


def _is_rolled_back(error: DBAPIError) -> bool:
    if (sqlite_code := _sqlite_code(error)) is not None:
        return sqlite_code in _SQLITE_ROLLED_BACK
    return str(getattr(error.orig, "sqlstate", None)).startswith(_ROLLED_BACK)


def _sqlite_code(error: DBAPIError) -> int | None:
    """SQLite's primary result code, the low byte of the extended one; None for an error of another database."""
    if not isinstance(error.orig, sqlite3.Error):
        return None
    return getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
