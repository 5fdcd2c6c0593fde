"""Reading a JSON body strictly: what JSON, the database and every reader of the answer can hold, and no more.

Owns the limits of a body. Python's own parser takes NaN, integers of any length, lone surrogates and repeated keys;
each of these would come back later as a broken answer or a database error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import ApiError, answer, invalid_definition
from service.api.invalid import shorten
from service.models import FieldError

MAX_BODY_BYTES = 1 << 20
MAX_VALUES = 20_000
MAX_LENGTH = 20_000
MAX_DEPTH = 32
MAX_INT = 2**63 - 1
N_CHECKS = 2
"""Bodies that are parsed and checked at a time; the others wait."""
Result = TypeVar("Result")
_JSON_HINT = "Send one JSON object in UTF-8; `python -m json.tool FILE` shows where a file goes wrong."


class BodyLimit:
    """ASGI middleware: a body over `max_bytes` gets 413, announced or not."""

    def __init__(self, app: ASGIApp, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > self._max_bytes:
            error = _too_large(self._max_bytes)
            await answer(error.status, error.view, headers={"Connection": "close"})(scope, receive, send)
            return
        n_bytes = 0

        async def counted() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > self._max_bytes:
                raise _too_large(self._max_bytes)
            return message

        await self._app(scope, counted, send)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        "body_too_large",
        f"the body is larger than {max_bytes} bytes ({max_bytes / 2**20:.3g} MiB).",
        hint="A study definition is a few kilobytes: shorten its choices and descriptions.",
    )


async def read_json(request: Request) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        ApiError: 413 too large, 415 not sent as JSON, 400 not JSON, 422 a value that cannot be stored.
    """
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError(
            415,
            "unsupported_media_type",
            f"content type '{shorten(content_type)}' must be 'application/json'.",
            hint="With curl: -H 'Content-Type: application/json'.",
        )
    return await check_in_thread(request, parse_object, await request.body())


async def check_in_thread(request: Request, check: Callable[..., Result], *args: Any) -> Result:
    """Run a check of a body in one of a few threads, so that the event loop answers other requests meanwhile."""
    limiter: CapacityLimiter = request.app.state.body_checks
    return await to_thread.run_sync(partial(check, *args), limiter=limiter)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        ApiError: 400 not JSON, 413 too many values, 422 a value that cannot be stored.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:  # before any value is made of it
        raise ApiError(
            413,
            "body_too_large",
            f"the body has more than {MAX_VALUES} values, counted by its commas and brackets.",
            hint="A study definition has a few hundred values: shorten its choices.",
        )
    value = _parse(body)
    wrong = _first_unstorable(value)
    if wrong is not None:
        raise invalid_definition([wrong])
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", f"the body is {_kind(value)}; it must be a JSON object.", hint=_JSON_HINT)
    return value


class _LongInt(str):
    """An integer's digits, kept as text because it is out of range."""


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8-sig"), parse_int=_parse_int, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        detail = f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}."
    except json.JSONDecodeError as error:
        detail = f"the body is not JSON: line {error.lineno}, column {error.colno}: {error.msg}."
    except RecursionError:
        detail = f"the body is nested deeper than {MAX_DEPTH} levels."
    raise ApiError(400, "invalid_json", detail, hint=_JSON_HINT)


def _parse_int(digits: str) -> int | _LongInt:
    return _LongInt(digits) if len(digits) > 20 or abs(int(digits)) > MAX_INT else int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ApiError(
            400,
            "invalid_json",
            f"key '{shorten(twice)}' appears twice in one object.",
            hint="Keep one of the two.",
        )
    return result


def _first_unstorable(value: Any) -> FieldError | None:
    """The first value in the tree that cannot be stored; walks without recursion."""
    for path, item in _walk(value):
        if isinstance(item, float) and not math.isfinite(item):
            return _wrong(path, repr(item), "must be a finite number; NaN and infinity are not")
        if isinstance(item, _LongInt):
            return _wrong(path, str(item), f"an integer must lie within ±{MAX_INT} (64 bits)")
        if isinstance(item, str) and len(item) > MAX_LENGTH:
            return _wrong(path, item, f"text must have at most {MAX_LENGTH} characters; this has {len(item)}")
        if isinstance(item, str) and not _is_text(item):
            return _wrong(path, item, "text must be valid Unicode without NUL characters")
        if len(path) > MAX_DEPTH:
            return _wrong(path, "…", f"nested deeper than {MAX_DEPTH} levels")
    return None


def _walk(value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        yield path, item
        if len(path) > MAX_DEPTH:
            continue
        if isinstance(item, dict):
            stack.extend(((*path, key), child) for key, child in item.items())
            stack.extend(((*path, "(key)"), key) for key in item if len(key) > MAX_LENGTH or not _is_text(key))
        elif isinstance(item, list):
            stack.extend(((*path, i), child) for i, child in enumerate(item))


def _is_text(text: str) -> bool:
    try:
        text.encode()  # refuses lone surrogates
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _wrong(path: tuple[str | int, ...], value: str, rule: str) -> FieldError:
    readable = value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return FieldError(field=shorten(".".join(map(str, path)) or "(body)"), value=shorten(readable), rule=rule)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
