"""Patience with a database that is away for a while: which errors pass, and how long to wait for them.

A driver waits minutes, because a training run costs more than the wait; a request waits seconds and then says so.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.database.errors import DatabaseUnavailableError

P = ParamSpec("P")
T = TypeVar("T")
_logger = logging.getLogger(__name__)

# SQLSTATE classes and codes of PostgreSQL that pass by themselves.
_RECONNECT = ("08", "57P")  # connection exceptions; server shutting down, crashed or starting
_ROLLED_BACK = ("40", "53300", "55P03")  # serialization, deadlock; too many connections; lock not available
_REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long to go on trying, in seconds. Waits double from `first_delay_s` to `max_delay_s`."""

    deadline_s: float
    first_delay_s: float = 0.05
    max_delay_s: float = 5.0


DRIVER = RetryPolicy(deadline_s=900)
REQUEST = RetryPolicy(deadline_s=5, max_delay_s=1)


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later: connection lost, server restarting, database locked, deadlock."""
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
    errors: tuple[type[Exception], ...] = (SQLAlchemyError,),
) -> T:
    """Call until it succeeds, fails for good, or the policy's time is over.

    Args:
        on_retry: told the error before each further try.
        errors: what to look at; any other error is the caller's.

    Raises:
        DatabaseUnavailableError: it still failed with a transient error at the deadline.
    """
    started = clock()
    delay = policy.first_delay_s
    while True:
        try:
            return function()
        except errors as error:
            if not is_transient(error):
                raise
            waited = clock() - started
            if waited + delay > policy.deadline_s:
                raise DatabaseUnavailableError(
                    f"The database could not be used for {waited:.0f} s: {in_short(error)}.",
                    hint="Check that it runs and can be reached, then repeat the request.",
                ) from error
            _logger.warning("database not usable, waiting %.2g s: %s", delay, in_short(error))
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


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, PoolTimeoutError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated or _is_rolled_back(error):
        return True
    if not isinstance(error, OperationalError):
        return False
    code = _sqlstate(error)
    if code is not None:
        return code.startswith(_RECONNECT)
    message = str(error.orig)
    if type(error.orig).__module__ == "sqlite3":
        return False
    return not any(words in message for words in _REFUSED)  # libpq names no code when it cannot connect


def _is_rolled_back(error: DBAPIError) -> bool:
    if type(error.orig).__module__ == "sqlite3":
        return "locked" in str(error.orig) or "busy" in str(error.orig)
    code = _sqlstate(error)
    return code is not None and code.startswith(_ROLLED_BACK)


def _sqlstate(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def in_short(error: BaseException) -> str:
    """The driver's own words, without the statement and its parameters."""
    for cause in _chain(error):
        if isinstance(cause, DBAPIError):
            return str(cause.orig).strip().partition("\n")[0]
    return str(error).partition("\n")[0]
