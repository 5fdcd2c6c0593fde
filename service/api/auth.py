"""Access tokens: which requests need one, whether it works, how many wrong ones an address may send, their routes.

The check is a middleware, so that a route added later needs a token until somebody decides otherwise. Tokens come in
the Authorization header, or in the cookie that the sign-in page sets; never in an address, which logs and browsers'
histories keep. Failures are counted for the address that uvicorn gives: the peer's, or what a proxy on loopback
sends in X-Forwarded-For.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import timedelta

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from admeta.client.models import ErrorView, NewTokenView, TokenRequest, TokenView
from search import states
from service.api import html_pages, optuna_pages
from service.api.errors import ApiError, unavailable
from service.api.openapi import TOKEN, json_body, refusals
from service.api.requests import Database, JsonBody, RequestKey, parse_body
from service.database import tokens
from service.database.engine import make_single_engine
from service.database.errors import DatabaseUnavailableError
from service.settings import Settings, SettingsError, is_loopback

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/docs", "/openapi.json", "/signin", "/signout"})
"""Needs no token: health, for load balancers; the description of the API, which is not secret; signing in."""
TOKENS_PATH = "/v1/tokens"
MAX_ADDRESSES = 10_000
_MAX_KNOWN = 1000

router = APIRouter(
    prefix=TOKENS_PATH,
    tags=["tokens"],
    responses={403: {"model": ErrorView, "description": "The scope is not admin, or the service uses no tokens."}},
)


@router.post(
    "",
    status_code=201,
    openapi_extra=json_body(TokenRequest, example=TOKEN),
    responses=refusals(400, 413, 415, 422)
    | {409: {"model": ErrorView, "description": "The request was carried out before; the token is not shown again."}},
)
async def create_token(engine: Database, key: RequestKey, raw: JsonBody) -> NewTokenView:
    """Make a token. It is in this answer and nowhere else afterwards; the request sent again gets 409 without it."""
    asked = parse_body(TokenRequest, raw, error="invalid_token_request")
    lifetime = None if asked.expires_in_s is None else timedelta(seconds=asked.expires_in_s)
    scope = states.Scope(asked.scope)
    return await run_in_threadpool(
        tokens.create_token, engine, name=asked.name, scope=scope, lifetime=lifetime, key=key
    )


@router.get("")
def list_tokens(engine: Database) -> list[TokenView]:
    """All tokens, newest first, also those that no longer work; never the tokens themselves."""
    return tokens.list_tokens(engine)


@router.delete("/{token_id}", responses={404: {"model": ErrorView, "description": "No token has this id."}})
def revoke_token(engine: Database, token_id: str) -> TokenView:
    """Revoke a token: the next request with it gets 401."""
    return tokens.revoke_token(engine, token_id)


class FailureLimit:
    """Counts the wrong tokens of each address over a sliding window. Used in one process, on its event loop.

    Args:
        max_failures: failures within the window after which the address has to wait.
        window_s: seconds after which a failure no longer counts.
        clock: seconds from any origin, monotonic.
    """

    def __init__(
        self, *, max_failures: int = 10, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_failures = max_failures
        self.window_s = window_s
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Seconds until the address may try again; 0 where it may now."""
        times = self._recent(_network(address))
        return 0.0 if len(times) < self.max_failures else times[0] + self.window_s - self._clock()

    def count(self, address: str) -> int:
        """Add a failure; returns how many there are now within the window."""
        network = _network(address)
        times = self._recent(network)
        times.append(self._clock())
        self._failures[network] = times
        self._failures.move_to_end(network)
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        return len(times)

    def _recent(self, network: str) -> deque[float]:
        times = self._failures.get(network, deque(maxlen=self.max_failures))
        while times and times[0] <= self._clock() - self.window_s:
            times.popleft()
        return times


def _network(address: str) -> str:
    """The addresses that one party controls: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address


class TokenCheck:
    """Looks tokens up in the database; one for an application.

    Args:
        limit: on wrong tokens; it does not delay tokens that were right before.
        on_failure: called for every wrong token.
    """

    def __init__(self, limit: FailureLimit, *, on_failure: Callable[[], None]) -> None:
        self._limit = limit
        self._on_failure = on_failure
        self._known: OrderedDict[str, None] = OrderedDict()  # hashes of tokens that were right

    async def __call__(self, engine: Engine, token: str, *, address: str) -> tokens.Bearer:
        """Whose token it is.

        Raises:
            ApiError: 401, or 429 after too many wrong tokens from the address.
            DatabaseUnavailableError, SQLAlchemyError: the database does not answer.
        """
        digest = tokens.digest(token)
        wait_s = self._limit.wait_s(address)
        if wait_s > 0 and digest not in self._known:
            raise self._wait(address, wait_s)
        bearer = await run_in_threadpool(tokens.find_bearer, engine, token)
        if bearer is None:
            self._known.pop(digest, None)
            self._on_failure()
            n = self._limit.count(address)
            if n in (1, self._limit.max_failures):
                log.warning("wrong access token from %s (%d within %.0f s)", address, n, self._limit.window_s)
            raise unauthorized(
                "token_invalid",
                "the access token is unknown, revoked or expired.",
                hint="`admeta token list` shows the tokens that work; an admin makes new ones: `admeta token create`.",
                challenge=', error="invalid_token"',
            )
        self._known[digest] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return bearer

    def _wait(self, address: str, wait_s: float) -> ApiError:
        seconds = math.ceil(wait_s)
        return ApiError(
            429,
            "too_many_failures",
            f"{self._limit.max_failures} wrong access tokens came from {address} within {self._limit.window_s:.0f} s; "
            f"it has to wait {seconds} s.",
            hint="Correct the token, then try again.",
            headers={"Retry-After": str(seconds)},
        )


def unauthorized(error: str, detail: str, *, hint: str, challenge: str = "") -> ApiError:
    """401, with the challenge that HTTP requires."""
    headers = {"WWW-Authenticate": f'Bearer realm="admeta"{challenge}'}
    return ApiError(401, error, detail, hint=hint, headers=headers)


class Access:
    """ASGI middleware: passes the requests that their tokens allow.

    Args:
        required: False on an open service, where everybody may do everything but use the routes for tokens.
        check: looks tokens up.
    """

    def __init__(self, app: ASGIApp, *, required: bool, check: TokenCheck) -> None:
        self._app = app
        self._required = required
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there are none; one added later would need no token otherwise
            await send({"type": "websocket.close", "code": 1008})
            return
        response: ASGIApp = self._app
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                await self._admit(scope)
            except (DatabaseUnavailableError, SQLAlchemyError) as error:
                response = await unavailable(Request(scope), error)
            except ApiError as error:
                if error.status == 401 and html_pages.is_page_visit(scope):
                    response = html_pages.sign_in_page(scope, _address(scope), status=401)
                else:
                    response = error.response()
        await response(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        """Return where the request may pass.

        Raises:
            ApiError: it may not.
        """
        needed = scope_needed(scope["method"], scope["path"])
        if not self._required:
            if needed is states.Scope.ADMIN:
                raise _no_admins(scope["path"])
            return
        connection = HTTPConnection(scope)
        token = _bearer_token(connection.headers.get("authorization", "")) or connection.cookies.get(html_pages.COOKIE)
        if not token:
            raise unauthorized(
                "token_missing",
                "this service requires an access token, and none was sent.",
                hint="Send the header 'Authorization: Bearer adm_…' (the client and `admeta` take it from "
                "ADMETA_TOKEN).",
            )
        address = connection.client.host if connection.client else "unknown"
        bearer = await self._check(scope["app"].state.engine, token, address=address)
        scope.setdefault("state", {})["bearer"] = bearer
        if not bearer.scope.includes(needed):
            raise ApiError(
                403,
                "scope_missing",
                f"{scope['method']} {scope['path']} needs the scope '{needed}'; token '{bearer.name}' has "
                f"'{bearer.scope}'.",
                hint=f"An admin makes one that may: `admeta token create NAME --scope {needed}`.",
                headers={
                    "WWW-Authenticate": f'Bearer realm="admeta", error="insufficient_scope", scope="{needed}"',
                },
            )


def scope_needed(method: str, path: str) -> states.Scope:
    """The least scope for a request: read to read, write to change, admin for tokens and to change Optuna's tables."""
    if path == TOKENS_PATH or path.startswith(TOKENS_PATH + "/"):
        return states.Scope.ADMIN
    if method in ("GET", "HEAD", "OPTIONS") or (method, path) == ("POST", "/v1/recommend"):
        return states.Scope.READ
    return states.Scope.ADMIN if optuna_pages.is_path(path) else states.Scope.WRITE


def _address(scope: Scope) -> str:
    path, query = str(scope["raw_path"], "latin-1"), str(scope["query_string"], "latin-1")
    return f"{path}?{query}" if query else path


def _bearer_token(header: str) -> str | None:
    kind, _, token = header.strip().partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None


def _no_admins(path: str) -> ApiError:
    """On an open service nobody is an admin; otherwise any user of this machine could create tokens."""
    if optuna_pages.is_path(path):
        return ApiError(
            403,
            "read_only",
            "optuna-dashboard only shows results here: a running search does not see what it changes.",
            hint="Studies are changed by /v1/studies, their pages and `admeta`. With --require-token, an admin's token "
            "may change Optuna's tables.",
        )
    return ApiError(
        403,
        "tokens_not_in_use",
        "this service does not require tokens, so it creates none.",
        hint="Make tokens on the service's machine with `admeta token create`, or serve with --require-token.",
    )


def check_start(settings: Settings) -> None:
    """Refuse to listen where other machines can reach the service and no admin token works. The tables must exist.

    Raises:
        SettingsError: the address is not loopback, and no admin token works; or the one in the settings can't be used.
    """
    if is_loopback(settings.host) and settings.admin_token is None:
        return
    engine = make_single_engine(settings.database_url)
    try:
        if settings.admin_token is not None:
            tokens.adopt_admin(engine, settings.admin_token)
        if is_loopback(settings.host):
            return
        if not tokens.has_admin(engine):
            raise SettingsError(
                f"host '{settings.host}' can be reached from other machines, and there is no admin token yet "
                f"in {settings.safe_database_url}.",
                hint="Make one, with the same --home or --database-url: `admeta token create --scope admin NAME`. "
                "Or serve on 127.0.0.1 and forward the port (ssh -L).",
            )
    except ValueError as error:
        raise SettingsError(
            f"the token in ADMETA_ADMIN_TOKEN_FILE: {error}.", hint="Make one: `openssl rand -hex 32`."
        ) from None
    finally:
        engine.dispose()
    log.warning(
        "serving %s without encryption: tokens can be read on the network; put a TLS proxy in front", settings.host
    )
