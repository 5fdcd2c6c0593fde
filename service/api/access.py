"""Who may do what: access tokens, asked for at every address but a few.

Owns which scope a request needs and where its token is looked for. It is a middleware, so that an address added later
is closed until somebody opens it. Tokens come in the Authorization header, or in the cookie that the sign-in page sets;
never in an address, which would end up in logs and histories.

The address that failures are counted for is uvicorn's: the peer's, or what a proxy on loopback says in X-Forwarded-For.
"""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from search import states
from service.api import gate, optuna_pages, signin
from service.api.errors import answer, unavailable
from service.api.gate import Gate, Refusal
from service.database import tokens
from service.database.errors import DatabaseUnavailableError
from service.models import ErrorView

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/docs", "/openapi.json", signin.SIGN_IN, signin.SIGN_OUT})
"""What needs no token: health, for load balancers; the description of the API, which is no secret; signing in."""

TOKENS_PATH = "/v1/tokens"


class Access:
    """ASGI middleware: lets a request through whose token allows it.

    Args:
        required: False on an open service, where everybody may do everything but handle tokens.
        gate: knows the right tokens.
    """

    def __init__(self, app: ASGIApp, *, required: bool, gate: Gate) -> None:
        self._app = app
        self._required = required
        self._gate = gate

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
        elif refusal.status == 401 and signin.is_page_visit(scope):
            await signin.page(_address(scope), status=401)(scope, receive, send)
        else:
            await answer(refusal.status, refusal.view, headers=refusal.headers)(scope, receive, send)

    async def _check(self, scope: Scope) -> Refusal | None:
        connection = HTTPConnection(scope)
        token = _bearer_token(connection.headers.get("authorization", "")) or connection.cookies.get(signin.COOKIE)
        if not token:
            return gate.missing()
        address = connection.client.host if connection.client else "unknown"
        bearer = await self._gate.check(scope["app"].state.engine, token, address=address)
        if isinstance(bearer, Refusal):
            return bearer
        scope.setdefault("state", {})["bearer"] = bearer
        needed = scope_needed(scope["method"], scope["path"])
        return None if bearer.scope.includes(needed) else _forbidden(scope, bearer, needed)


def scope_needed(method: str, path: str) -> states.Scope:
    """The least scope for a request: read to read, write to change, admin for tokens and to change Optuna's tables."""
    if path == TOKENS_PATH or path.startswith(TOKENS_PATH + "/"):
        return states.Scope.ADMIN
    if method in ("GET", "HEAD", "OPTIONS"):
        return states.Scope.READ
    return states.Scope.ADMIN if optuna_pages.is_path(path) else states.Scope.WRITE


def _address(scope: Scope) -> str:
    path, query = str(scope["raw_path"], "latin-1"), str(scope["query_string"], "latin-1")
    return f"{path}?{query}" if query else path


def _bearer_token(header: str) -> str | None:
    kind, _, token = header.strip().partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None


def _forbidden(scope: Scope, bearer: tokens.Bearer, needed: states.Scope) -> Refusal:
    request = f"{scope['method']} {scope['path']}"
    detail = f"{request} needs the scope '{needed}'; token '{bearer.name}' has '{bearer.scope}'."
    hint = f"An admin makes one that may: `admeta token create NAME --scope {needed}`."
    headers = {"WWW-Authenticate": f'Bearer realm="admeta", error="insufficient_scope", scope="{needed}"'}
    return Refusal(403, ErrorView(error="scope_missing", detail=detail, hint=hint), headers)


def _open_refusal(scope: Scope) -> Refusal | None:
    """On an open service nobody is an admin: whoever is on this machine could take tokens for later."""
    if scope_needed(scope["method"], scope["path"]) is not states.Scope.ADMIN:
        return None
    if optuna_pages.is_path(scope["path"]):
        view = ErrorView(
            error="read_only",
            detail="optuna-dashboard only shows things here: what it changes, a running search would not know of.",
            hint="Studies are changed by /v1/studies, their pages and `admeta`. With --require-token, an admin's token "
            "may change Optuna's tables.",
        )
        return Refusal(403, view, {})
    view = ErrorView(
        error="tokens_not_in_use",
        detail="this service asks nobody for a token, so it gives none out.",
        hint="Make tokens on the service's machine with `admeta token create`, or serve with --require-token.",
    )
    return Refusal(403, view, {})
