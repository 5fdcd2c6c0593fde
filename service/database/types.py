"""Column types that hide what SQLite and PostgreSQL do differently: times, numbers, JSON and text.

Whatever is written through them can be written to both databases and reads back the same from both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, Double, Integer, String, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only INTEGER PRIMARY KEY columns
Count = BigInteger()

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class UtcDateTime(TypeDecorator[datetime]):
    """A time with its zone, always UTC. SQLite has no zones and stores the bare UTC time."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"time {value} has no zone; pass datetime.now(UTC)")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class FiniteFloat(TypeDecorator[float]):
    """A double; NaN and infinities are stored as NULL, so that none is ever the best or breaks a mean."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        return None if value is None or not math.isfinite(value) else float(value)


class PlainText(TypeDecorator[str]):
    """Text from outside, such as error messages. What a database refuses (NUL, lone surrogates) becomes U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else _storable(value)


class Name(TypeDecorator[str]):
    """A short text. Searching for one that could not be stored finds nothing and is not an error."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else _storable(value)


class JsonText(TypeDecorator[Any]):
    """Strict JSON as text: keys keep their order (JSONB would sort them, and a space's order is a fact)."""

    impl = Text
    cache_ok = True

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        return self

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


class MetricsText(TypeDecorator[Mapping[str, float]]):
    """Metrics by name as strict JSON; NaN and infinities go in as strings and come back as floats."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, float] | None, dialect: Dialect) -> str:
        return json.dumps({name: _encode(number) for name, number in (value or {}).items()}, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> dict[str, float]:
        return {} if value is None else {name: _decode(number) for name, number in json.loads(value).items()}


def _storable(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _encode(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")


def _decode(number: float | str) -> float:
    return _NON_FINITE[number] if isinstance(number, str) else number
