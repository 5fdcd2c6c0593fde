"""Every answer that is not a success: one form, the right status, and the next step.

Owns `ApiError` and the handlers that turn each exception into an `ErrorView`. `service.api.invalid` finds which field
breaks which rule. The addresses and their parameters are read from the OpenAPI description.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from admeta.client.models import ErrorView, FieldError
from search.errors import LeaseLostError, SearchError, StudyConflictError, StudyNotFoundError
from service.api import invalid
from service.database.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    InvalidCursorError,
    KeyReusedError,
    NoProfileError,
    QueueFullError,
    RunNotFoundError,
    TokenNotFoundError,
    TrialNotFoundError,
)
from service.database.retry import in_short, reason

log = logging.getLogger(__name__)

MAX_DETAIL = 5000
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # under no-referrer a browser hides the Origin of our own forms too
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
DATA_POLICY = "default-src 'none'; frame-ancestors 'none'"
_PARAMETER = re.compile(r"\\\{[^}]*\\\}")


class ApiError(Exception):
    """A refusal that a route or a middleware decides on itself."""

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
        self.headers = dict(headers or {})
        detail = invalid.shorten(detail, limit=MAX_DETAIL)
        self.view = ErrorView(error=error, detail=detail, hint=hint, fields=list(fields))
        super().__init__(detail)

    def response(self) -> Response:
        """The response for it."""
        return answer(self.status, self.view, headers=self.headers)


def invalid_definition(
    fields: Sequence[FieldError],
    *,
    error: str = "invalid_definition",
    hint: str = "Correct it and submit again. GET /v1/optimizers and GET /v1/tasks list the names and parameters.",
) -> ApiError:
    """422 for a body, by default a study definition: each field at fault with its value and rule."""
    detail = "; ".join(f.sentence(json.dumps(f.value, ensure_ascii=False)) for f in fields)
    return ApiError(422, error, detail, hint=hint, fields=fields)


def answer(status: int, view: ErrorView, *, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error; fields that do not apply are left out."""
    body = view.model_dump_json(exclude_defaults=True)
    return Response(body, status_code=status, media_type="application/json", headers=dict(headers or {}))


def install(app: FastAPI) -> None:
    """Give the application a handler for every exception."""
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
    return error.response()


async def _left(request: Request, _error: ClientDisconnect) -> Response:
    """The client closed the connection before its request was complete; nobody reads this answer."""
    log.debug("%s %s: the client disconnected before its request was complete", request.method, request.url.path)
    return Response(status_code=400)


async def _bad_query(request: Request, error: RequestValidationError) -> Response:
    fields = invalid.query_fields(error.errors(), known=_query_names(request))
    detail = "; ".join(f.sentence(repr(f.value)) for f in fields)
    hint = f"The parameters of {request.url.path} are listed at /docs."
    return answer(422, ErrorView(error="invalid_query", detail=detail, hint=hint, fields=fields))


async def _no_route(request: Request, error: HTTPException) -> Response:
    path = request.url.path
    if error.status_code == 405:
        allowed = _allowed_methods(request)
        if request.method == "OPTIONS" and allowed:
            return Response(status_code=204, headers={"Allow": ", ".join(allowed)})
        view = ErrorView(
            error="method_not_allowed",
            detail=f"{request.method} {path} is not possible; allowed: {', '.join(allowed)}.",
            hint="What each address does is listed at /docs.",
        )
        return answer(405, view, headers={"Allow": ", ".join(allowed)})
    if error.status_code == 404:
        near = difflib.get_close_matches(path, list(_operations(request)), n=1, cutoff=0.6)
        meant = f"Did you mean {near[0]}? " if near else ""
        view = ErrorView(
            error="not_found", detail=f"nothing is at {path}.", hint=f"{meant}All addresses are listed at /docs."
        )
        return answer(404, view)
    view = ErrorView(error="bad_request", detail=str(error.detail), hint="How each request looks is shown at /docs.")
    return answer(error.status_code, view)


_SEARCH_ERRORS: Mapping[type[SearchError], tuple[int, str, str]] = {
    StudyNotFoundError: (404, "study_not_found", "GET /v1/studies lists the existing studies."),
    StudyConflictError: (409, "study_conflict", "GET /v1/studies/{name} shows the study as it is."),
    LeaseLostError: (409, "study_busy", "Another process took the study over; repeat the request."),
    SearchError: (422, "refused", "Change the request as the detail says."),
}
_DATABASE_ERRORS: Mapping[type[DatabaseError], tuple[int, str]] = {
    KeyReusedError: (422, "idempotency_key_reused"),
    InvalidCursorError: (422, "invalid_cursor"),
    TrialNotFoundError: (404, "trial_not_found"),
    RunNotFoundError: (404, "run_not_found"),
    NoProfileError: (404, "no_result"),
    TokenNotFoundError: (404, "token_not_found"),
    QueueFullError: (429, "queue_full"),
}


async def _search_error(_request: Request, error: SearchError) -> Response:
    status, name, hint = next(found for kind, found in _SEARCH_ERRORS.items() if isinstance(error, kind))
    return answer(status, ErrorView(error=name, detail=str(error), hint=getattr(error, "hint", None) or hint))


async def _database_layer_error(request: Request, error: DatabaseError) -> Response:
    if isinstance(error, DatabaseUnavailableError):
        return await unavailable(request, error)
    found = next((found for kind, found in _DATABASE_ERRORS.items() if isinstance(error, kind)), None)
    if found is None:
        return await _unexpected(request, error)
    status, name = found
    headers = {"Retry-After": "60"} if status == 429 else {}
    return answer(status, ErrorView(error=name, detail=error.detail, hint=error.hint), headers=headers)


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
        hint="Repeat the request in a few seconds; running trials are not affected. If this continues, check that the "
        "database server is up and its disk has room.",
    )
    return answer(503, view, headers={"Retry-After": "5"})


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    view = ErrorView(
        error="internal_error",
        detail=f"{request.method} {request.url.path} failed with an error of the service ({type(error).__name__}).",
        hint="The service's log has its traceback; please report it.",
    )
    # Starlette sends this answer outside of all middleware, which would add these headers.
    return answer(500, view, headers={**SECURITY_HEADERS, "Content-Security-Policy": DATA_POLICY})


def _allowed_methods(request: Request) -> list[str]:
    """The methods that the request's path allows, sorted; none where the path does not exist."""
    methods: set[str] = set()
    for operations in _matching(request):
        methods |= {method.upper() for method in operations}
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods | {"OPTIONS"}) if methods else []


def _query_names(request: Request) -> list[str]:
    """Names of the query parameters that the request's path and method take."""
    for operations in _matching(request):
        operation = operations.get(request.method.lower(), {})
        return [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
    return []


def _operations(request: Request) -> Mapping[str, Mapping[str, Any]]:
    paths: Mapping[str, Mapping[str, Any]] = request.app.openapi()["paths"]
    return paths


def _matching(request: Request) -> Iterator[Mapping[str, Any]]:
    for template, operations in _operations(request).items():
        if re.fullmatch(_PARAMETER.sub("[^/]+", re.escape(template)), request.url.path):
            yield operations
