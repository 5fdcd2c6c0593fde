"""One request and its answer: sending it, again where that is safe, and reading what came.

Owns when a request is repeated and what becomes of an answer that is no good.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from admeta.client.errors import ClientError
from admeta.client.models import ErrorView, Page
from admeta.client.wire import Emit, Flow, Items, Loss, Open, Repeat, Request, Send, Sleep, UnansweredError

Model = TypeVar("Model", bound=BaseModel)
PASSING = frozenset({502, 503, 504})
"""Answers of a service, or of a proxy before it, that is about to come back."""
_PAUSES_S = (0.2, 0.4, 0.8)
_LONGEST_PAUSE_S = 2.0
_PAGE = 100


def exchange(request: Request, *, via: type[Send] | type[Open] = Send) -> Flow[httpx.Response]:
    """The answer to a request, which is a success; also 304 where the request asked for changes only.

    Args:
        via: read the answer in full (Send), or leave it open (Open).

    Raises:
        ClientError: the service refused, or no answer came.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            response: httpx.Response = yield via(request)
        except UnansweredError as error:
            if pause_s is None or not _may_repeat(request, error.loss):
                raise
        else:
            if response.is_success or response.status_code == httpx.codes.NOT_MODIFIED:
                return response
            if pause_s is None or response.status_code not in PASSING or request.repeat is not Repeat.ALWAYS:
                raise refused(response)
            pause_s = _asked_pause_s(response, pause_s)
        yield Sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


def read(model: type[Model], request: Request) -> Flow[Model]:
    """The answer to a request as a model."""
    response = yield from exchange(request)
    return parse(model, response)


def read_list(model: type[Model], request: Request) -> Flow[list[Model]]:
    """The answer to a request as a list of models."""
    response = yield from exchange(request)
    try:
        return TypeAdapter(list[model]).validate_json(response.content)  # type: ignore[valid-type]
    except ValidationError as error:
        raise unexpected(response, f"a list of {model.__name__}", n_fields=error.error_count()) from None


def read_pages(
    model: type[Model], path: str, *, query: Mapping[str, str | int | None], limit: int | None
) -> Items[Model]:
    """The items of a list page by page: `limit` of them, or all."""
    cursor: str | None = None
    left = limit
    while left is None or left > 0:
        asked = {**query, "cursor": cursor, "limit": _PAGE if left is None else min(left, _PAGE)}
        page = yield from read(Page[model], get(path, asked))  # type: ignore[valid-type]
        for item in page.items:
            yield Emit(item)
        left = None if left is None else left - len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return


def get(path: str, query: Mapping[str, str | int | None] | None = None) -> Request:
    """A request that reads."""
    return Request(method="GET", path=path, query=query or {})


def create(
    path: str, body: Mapping[str, Any], *, idempotency_key: str | None, query: Mapping[str, str | None] | None = None
) -> Request:
    """A request that makes something: its key lets the service know it again, so that it may be repeated."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    content = json.dumps(body)  # NaN passes here: the service names the field
    return Request(method="POST", path=path, query=query or {}, content=content, headers=headers)


def part(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="") or "%20"


def parse(model: type[Model], response: httpx.Response) -> Model:
    """An answer as a model.

    Raises:
        ClientError: it is none.
    """
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise unexpected(response, f"a {model.__name__}", n_fields=error.error_count()) from None


def refused(response: httpx.Response) -> ClientError:
    """What the service said against a request."""
    try:
        view = ErrorView.model_validate_json(response.content)
    except ValidationError:
        return ClientError(
            f"{response.request.method} {response.request.url} was answered with {response.status_code}.",
            hint="Is this address an admeta service? Something else seems to listen there.",
            status=response.status_code,
            error="unexpected_answer",
        )
    return ClientError(view.detail, hint=view.hint, status=response.status_code, error=view.error, fields=view.fields)


def unexpected(response: httpx.Response, wanted: str, *, n_fields: int) -> ClientError:
    """The error for an answer of which some fields are not what was wanted."""
    return ClientError(
        f"the answer to {response.request.method} {response.request.url} is not {wanted} ({n_fields} fields differ).",
        hint="Client and service are of different versions, or something else listens there: see /healthz.",
        status=response.status_code,
        error="unexpected_answer",
    )


def is_passing(error: ClientError) -> bool:
    """Whether the same request may succeed later: the service is away, or about to come back."""
    if isinstance(error, UnansweredError):
        return error.loss is not Loss.ADDRESS
    return error.status in PASSING


def _may_repeat(request: Request, loss: Loss) -> bool:
    return loss is Loss.UNSENT or (loss is Loss.BROKEN and request.repeat is Repeat.ALWAYS)


def _asked_pause_s(response: httpx.Response, pause_s: float) -> float:
    """The service's own wish in `Retry-After`, within reason."""
    wish = response.headers.get("Retry-After", "")
    return min(float(wish), _LONGEST_PAUSE_S) if wish.isdecimal() else pause_s
