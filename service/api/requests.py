"""What routes get: the database, a page of a list, the JSON body of a request, and its Idempotency-Key.

A body is read strictly: Python's own parser accepts NaN, integers of any length, lone surrogates and repeated keys, and
each of these would later cause an invalid answer or a database error. The limits bound the time that a body costs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Engine

from admeta.client.models import FieldError
from service.api.errors import ApiError, invalid_definition
from service.api.invalid import body_fields, shorten
from service.database import idempotency
from service.database.idempotency import AnsweredBeforeError, IdempotencyKey
from service.settings import Quotas, Settings

MAX_PAGE = 500
MAX_VALUES = 20_000
MAX_LENGTH = 20_000
MAX_DEPTH = 32
MAX_INT = 2**63 - 1
N_CHECKS = 2
"""Bodies that are parsed and checked at a time; the others wait."""
REPLAYED = "Idempotency-Replayed"
Result = TypeVar("Result")
Body = TypeVar("Body", bound=BaseModel)
_JSON_HINT = "Send one JSON object in UTF-8; `python -m json.tool FILE` shows where a file is not valid."
_KEY = re.compile(r'"([\x20\x21\x23-\x5b\x5d-\x7e]{1,255})"|([\x21\x23-\x5b\x5d-\x7e]{1,255})')
_KEY_DESCRIPTION = (
    "Your own name for this request, 1 to 255 characters, for example a random UUID. A request sent again with it "
    f"within 24 hours gets the first answer again, with the header {REPLAYED}: true, and has no further effect. "
    "Refused requests are not kept."
)


class Filters(BaseModel):
    """Base of a list's query parameters: a mistyped one is refused, not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PageFilters(Filters):
    """Which page of a list."""

    limit: int = Field(default=50, ge=1, le=MAX_PAGE, description="Items on a page.")
    cursor: str | None = Field(default=None, max_length=500, description="`next_cursor` of the page before.")


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def _quotas(request: Request) -> Quotas:
    settings: Settings = request.app.state.settings
    return settings.quotas


Database = Annotated[Engine, Depends(_engine)]
Limits = Annotated[Quotas, Depends(_quotas)]


def caller(request: Request) -> str | None:
    """Name of the access token that the request came with; None on an open service."""
    bearer = request.scope.get("state", {}).get("bearer")
    return None if bearer is None else bearer.name


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


JsonBody = Annotated[dict[str, Any], Depends(read_json)]


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


def parse_body(model: type[Body], raw: dict[str, Any], *, error: str = "invalid_definition") -> Body:
    """The body as its model.

    Raises:
        ApiError: 422 with the name `error`, for each field at fault its value and rule.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as wrong:
        fields = body_fields(wrong, raw, known=list(model.model_fields))
        raise invalid_definition(fields, error=error, hint="/docs shows the fields.") from None


async def _request_key(
    engine: Database,
    request: Request,
    raw: JsonBody,
    key: Annotated[str | None, Header(alias="Idempotency-Key", description=_KEY_DESCRIPTION)] = None,
) -> IdempotencyKey | None:
    """The key (draft-ietf-httpapi-idempotency-key-header: a string, with quotes or without); None without the header.

    Raises:
        AnsweredBeforeError: the request was carried out before; `replay` sends its answer.
    """
    if key is None:
        return None
    found = _KEY.fullmatch(key.strip())
    if found is None:
        raise ApiError(
            400,
            "invalid_idempotency_key",
            f"Idempotency-Key {shorten(key)!r} must be 1 to 255 visible ASCII characters without quotes inside.",
            hint="Send a random UUID, a new one for each request that is not a repetition.",
        )
    bearer = request.scope.get("state", {}).get("bearer")
    query = [request.url.query] if request.url.query else []
    asked = json.dumps([request.method, request.url.path, *query, raw], sort_keys=True)
    requested = IdempotencyKey(
        caller="" if bearer is None else bearer.id,
        key=found[1] or found[2],
        request_sha256=hashlib.sha256(asked.encode()).hexdigest(),
    )
    await run_in_threadpool(idempotency.look_up, engine, requested)
    return requested


RequestKey = Annotated[IdempotencyKey | None, Depends(_request_key)]


async def replay(_request: Request, error: AnsweredBeforeError) -> Response:
    """The answer that the request got the first time."""
    found = error.answer
    headers = {REPLAYED: "true"} | ({} if found.location is None else {"Location": found.location})
    return Response(found.body, status_code=found.status, media_type="application/json", headers=headers)
