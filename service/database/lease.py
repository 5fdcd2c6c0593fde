"""When a study's lease is free and until when a new one lasts, by the clock that all its drivers share.

That is the server's clock on PostgreSQL, where drivers live on several hosts, and the host's own with SQLite.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, DateTime, Engine, func, literal, or_

from service.database.models import Study
from service.database.types import UtcDateTime


def lease_is_free(engine: Engine) -> ColumnElement[bool]:
    """SQL: nobody holds the study, or who held it let the lease run out."""
    return or_(Study.lease_owner.is_(None), Study.lease_expires_at < _in(engine, timedelta()))


def lease_end(engine: Engine, ttl_s: float) -> ColumnElement[datetime]:
    """SQL: the end of a lease taken now."""
    return _in(engine, timedelta(seconds=ttl_s))


def _in(engine: Engine, delay: timedelta) -> ColumnElement[datetime]:
    if engine.dialect.name == "postgresql":
        clock = func.clock_timestamp(type_=DateTime(timezone=True))  # now() would be when the transaction began
        return clock + delay
    return literal(datetime.now(UTC) + delay, UtcDateTime)
