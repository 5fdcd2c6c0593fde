"""Who may do what: access tokens, asked for at every address but a few.

Owns which scope a request needs, and the answers 401, 403 and 429. It is a middleware, so that an address added later
is closed until somebody opens it. Tokens come in the Authorization header only: addresses end up in logs and histories.

The address that failures are counted for is uvicorn's: the peer's, or what a proxy on loopback says in X-Forwarded-For.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.attempts import FailureLimit
from service.api.errors import answer, unavailable
from service.database import tokens
from service.database.errors import DatabaseUnavailableError
from service.models import ErrorView

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/docs", "/openapi.json"})
"""What needs no token: health, for load balancers, and the description of the API, which is no secret."""

TOKENS_PATH = "/v1/tokens"
_MAX_KNOWN = 1000
_HOW = "Send the header 'Authorization: Bearer adm_…' (the client and `admeta` take it from ADMETA_TOKEN)."


class _Refusal(NamedTuple):
    status: int
    view: ErrorView
    headers: dict[str, str]


class Access:
    """ASGI middleware: lets a request through whose token allows it.

    Args:
        required: False on an open service, where everybody may do everything but handle tokens.
        limit: on wrong tokens; it does not hold up tokens that were right before.
        on_failure: called for every wrong token.
    """

    def __init__(self, app: ASGIApp, *, required: bool, limit: FailureLimit, on_failure: Callable[[], None]) -> None:
        self._app = app
        self._required = required
        self._limit = limit
        self._on_failure = on_failure
        self._known: OrderedDict[str, None] = OrderedDict()  # hashes of tokens that were right

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there are none; one added later would be open otherwise
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            refusal = await self._check(scope) if self._required else _open_refusal(scope)
        except (DatabaseUnavailableError, SQLAlchemyError) as error:
            response = await unavailable(Request(scope), error)
            await response(scope, receive, send)
            return
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await answer(refusal.status, refusal.view, headers=refusal.headers)(scope, receive, send)

    async def _check(self, scope: Scope) -> _Refusal | None:
        token = _bearer_token(Headers(scope=scope).get("authorization", ""))
        if token is None:
            return _unauthorized("token_missing", "this service wants an access token, and none was sent.", hint=_HOW)
        address = scope["client"][0] if scope.get("client") else "unknown"
        digest = tokens.digest(token)
        wait_s = self._limit.wait_s(address)
        if wait_s > 0 and digest not in self._known:
            return self._held_up(address, wait_s)
        bearer = await run_in_threadpool(tokens.find_bearer, scope["app"].state.engine, token)
        if bearer is None:
            self._known.pop(digest, None)
            self._failed(address)
            return _unauthorized(
                "token_invalid",
                "the access token is unknown, revoked or expired.",
                hint="`admeta token list` shows the tokens that work; an admin makes new ones: `admeta token create`.",
                challenge=', error="invalid_token"',
            )
        self._known[digest] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        scope.setdefault("state", {})["bearer"] = bearer
        needed = scope_needed(scope["method"], scope["path"])
        return None if bearer.scope.includes(needed) else _forbidden(scope, bearer, needed)

    def _failed(self, address: str) -> None:
        self._on_failure()
        n = self._limit.count(address)
        if n in (1, self._limit.max_failures):
            log.warning("wrong access token from %s (%d within %.0f s)", address, n, self._limit.window_s)

    def _held_up(self, address: str, wait_s: float) -> _Refusal:
        seconds = math.ceil(wait_s)
        detail = (
            f"{self._limit.max_failures} wrong access tokens came from {address} within {self._limit.window_s:.0f} s; "
            f"it has to wait {seconds} s."
        )
        view = ErrorView(error="too_many_failures", detail=detail, hint="Correct the token, then try again.")
        return _Refusal(429, view, {"Retry-After": str(seconds)})


def scope_needed(method: str, path: str) -> tokens.Scope:
    """The least scope for a request: read to read, write to change, admin to handle tokens."""
    if path == TOKENS_PATH or path.startswith(TOKENS_PATH + "/"):
        return tokens.Scope.ADMIN
    return tokens.Scope.READ if method in ("GET", "HEAD", "OPTIONS") else tokens.Scope.WRITE


def _bearer_token(header: str) -> str | None:
    kind, _, token = header.strip().partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None


def _unauthorized(error: str, detail: str, *, hint: str, challenge: str = "") -> _Refusal:
    view = ErrorView(error=error, detail=detail, hint=hint)
    return _Refusal(401, view, {"WWW-Authenticate": f'Bearer realm="admeta"{challenge}'})


def _forbidden(scope: Scope, bearer: tokens.Bearer, needed: tokens.Scope) -> _Refusal:
    request = f"{scope['method']} {scope['path']}"
    detail = f"{request} needs the scope '{needed}'; token '{bearer.name}' has '{bearer.scope}'."
    hint = f"An admin makes one that may: `admeta token create NAME --scope {needed}`."
    headers = {"WWW-Authenticate": f'Bearer realm="admeta", error="insufficient_scope", scope="{needed}"'}
    return _Refusal(403, ErrorView(error="scope_missing", detail=detail, hint=hint), headers)


def _open_refusal(scope: Scope) -> _Refusal | None:
    """On an open service nobody handles tokens over HTTP: whoever is on this machine could take some for later."""
    if scope_needed(scope["method"], scope["path"]) is not tokens.Scope.ADMIN:
        return None
    view = ErrorView(
        error="tokens_not_in_use",
        detail="this service asks nobody for a token, so it gives none out.",
        hint="Make tokens on the service's machine with `admeta token create`, or serve with --require-token.",
    )
    return _Refusal(403, view, {})
