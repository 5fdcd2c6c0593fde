"""Cursors of lists: where the last page ended, as opaque text.

Pages continue after a row's sort key, not after a count of rows, so that rows added meanwhile shift nothing.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from service.database.errors import InvalidCursorError


def encode_cursor(*key: str | float | int | None) -> str:
    """A cursor after the row with this sort key."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, *types: type | tuple[type, ...]) -> list[Any]:
    """The sort key that a cursor stands for.

    Raises:
        InvalidCursorError: it is no cursor, or one of another list.
    """
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        key = None
    good = isinstance(key, list) and len(key) == len(types)
    if not good or not all(_fits(part, kind) for part, kind in zip(key, types, strict=True)):
        raise InvalidCursorError(
            f"cursor {cursor[:100]!r} was not given out by this list.",
            hint="Pass 'next_cursor' of the page before unchanged, with the same filters and order; "
            "leave it out for the first page.",
        )
    return list(key)


def _fits(part: Any, kind: type | tuple[type, ...]) -> bool:
    if isinstance(part, bool) or not isinstance(part, kind):
        return False
    if isinstance(part, int):
        return abs(part) < 2**63
    return not (isinstance(part, str) and "\0" in part) and part == part
