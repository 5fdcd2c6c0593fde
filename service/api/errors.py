"""Every answer that is not a success: one shape, the right status, and what to do next.

Owns `ApiError` and the handlers that turn each exception into an `ErrorView`. Which field of a definition breaks
which rule is worked out in `service.api.invalid`.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from search.errors import LeaseLostError, SearchError, StudyConflictError, StudyNotFoundError
from service.api import invalid, paths
from service.api.headers import DATA_POLICY, SECURITY_HEADERS
from service.database.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    InvalidCursorError,
    KeyReusedError,
    QueueFullError,
    RunNotFoundError,
    TokenNotFoundError,
    TrialNotFoundError,
)
from service.database.retry import in_short, reason
from service.models import ErrorView, FieldError

log = logging.getLogger(__name__)

MAX_DETAIL = 5000


class ApiError(Exception):
    """A refusal that a route decides on itself."""

    def __init__(
        self,
        status: int,
        error: str,
        detail: str,
        *,
        hint: str,
        fields: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers
        detail = invalid.shorten(detail, limit=MAX_DETAIL)
        self.view = ErrorView(error=error, detail=detail, hint=hint, fields=list(fields))
        super().__init__(detail)


def invalid_definition(fields: Sequence[FieldError]) -> ApiError:
    """422 for a study definition: each field at fault with its value and rule."""
    detail = "; ".join(f"{f.field} = {json.dumps(f.value, ensure_ascii=False)}: {f.rule}" for f in fields)
    hint = "Correct it and submit again. GET /v1/optimizers and GET /v1/tasks list the names and parameters."
    return ApiError(422, "invalid_definition", detail, hint=hint, fields=fields)


def answer(status: int, view: ErrorView, *, headers: Mapping[str, str] | None = None) -> Response:
    """The response that carries an error; fields that do not apply are left out."""
    body = view.model_dump_json(exclude_defaults=True)
    return Response(body, status_code=status, media_type="application/json", headers=dict(headers or {}))


def install(app: FastAPI) -> None:
    """Give the application a handler for every exception there is."""
    handlers: dict[type[Exception], Callable[[Request, Any], Awaitable[Response]]] = {
        ApiError: _refused,
        RequestValidationError: _bad_query,
        HTTPException: _no_route,
        SearchError: _search_error,
        DatabaseError: _database_layer_error,
        DBAPIError: _database_error,
        PoolTimeoutError: unavailable,
        ClientDisconnect: _left,
        Exception: _unexpected,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


async def _refused(_request: Request, error: ApiError) -> Response:
    return answer(error.status, error.view, headers=error.headers)


async def _left(request: Request, _error: ClientDisconnect) -> Response:
    """The client closed the connection before its request was complete; nobody reads this answer."""
    log.debug("%s %s: the client left before its request was complete", request.method, request.url.path)
    return Response(status_code=400)


async def _bad_query(request: Request, error: RequestValidationError) -> Response:
    fields = invalid.query_fields(error.errors(), known=paths.query_names(request))
    detail = "; ".join(f"{f.field} = {f.value!r}: {f.rule}" for f in fields)
    hint = f"The parameters of {request.url.path} are listed at /docs."
    return answer(422, ErrorView(error="invalid_query", detail=detail, hint=hint, fields=fields))


async def _no_route(request: Request, error: HTTPException) -> Response:
    path = request.url.path
    if error.status_code == 405:
        allowed = paths.allowed_methods(request)
        if request.method == "OPTIONS" and allowed:
            return Response(status_code=204, headers={"Allow": ", ".join(allowed)})
        view = ErrorView(
            error="method_not_allowed",
            detail=f"{request.method} {path} is not possible; allowed: {', '.join(allowed)}.",
            hint="What each address does is listed at /docs.",
        )
        return answer(405, view, headers={"Allow": ", ".join(allowed)})
    if error.status_code == 404:
        near = difflib.get_close_matches(path, paths.templates(request), n=1, cutoff=0.6)
        meant = f"Did you mean {near[0]}? " if near else ""
        view = ErrorView(
            error="not_found", detail=f"nothing is at {path}.", hint=f"{meant}All addresses are listed at /docs."
        )
        return answer(404, view)
    view = ErrorView(error="bad_request", detail=str(error.detail), hint="How each request looks is shown at /docs.")
    return answer(error.status_code, view)


async def _search_error(_request: Request, error: SearchError) -> Response:
    match error:
        case StudyNotFoundError():
            status, name, hint = 404, "study_not_found", "GET /v1/studies lists the studies there are."
        case StudyConflictError():
            status, name, hint = 409, "study_conflict", "GET /v1/studies/{name} shows the study as it is."
        case LeaseLostError():
            status, name, hint = 409, "study_busy", "Another process took the study over; repeat the request."
        case _:
            status, name, hint = 422, "refused", "Change the request as the detail says."
    return answer(status, ErrorView(error=name, detail=str(error), hint=getattr(error, "hint", None) or hint))


async def _database_layer_error(request: Request, error: DatabaseError) -> Response:
    match error:
        case DatabaseUnavailableError():
            return await unavailable(request, error)
        case KeyReusedError():
            status, name = 422, "idempotency_key_reused"
        case InvalidCursorError():
            status, name = 422, "invalid_cursor"
        case TrialNotFoundError():
            status, name = 404, "trial_not_found"
        case RunNotFoundError():
            status, name = 404, "run_not_found"
        case TokenNotFoundError():
            status, name = 404, "token_not_found"
        case QueueFullError():
            view = ErrorView(error="queue_full", detail=error.detail, hint=error.hint)
            return answer(429, view, headers={"Retry-After": "60"})
        case _:
            return await _unexpected(request, error)
    return answer(status, ErrorView(error=name, detail=error.detail, hint=error.hint))


async def _database_error(request: Request, error: DBAPIError) -> Response:
    if isinstance(error, OperationalError) or error.connection_invalidated:
        return await unavailable(request, error)
    return await _unexpected(request, error)


async def unavailable(request: Request, error: Exception) -> Response:
    """503 for a database that cannot be used now."""
    log.warning("%s %s: the database cannot be used: %s", request.method, request.url.path, in_short(error))
    view = ErrorView(
        error="database_unavailable",
        detail=f"the database cannot be used now: {reason(error)}. Nothing was changed by this request.",
        hint="Repeat the request in a few seconds; running trials are not affected. If it stays so, check that the "
        "database server is up and its disk has room.",
    )
    return answer(503, view, headers={"Retry-After": "5"})


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    view = ErrorView(
        error="internal_error",
        detail=f"{request.method} {request.url.path} met an error of ours ({type(error).__name__}).",
        hint="It is in the service's log with its traceback; please report it.",
    )
    # Starlette answers this one outside of all middleware, which would add these.
    return answer(500, view, headers={**SECURITY_HEADERS, "Content-Security-Policy": DATA_POLICY})
