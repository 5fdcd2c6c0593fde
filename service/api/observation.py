"""Every request gets an id, is timed, and leaves a line in the log: writes and failures at INFO, reads at DEBUG."""

from __future__ import annotations

import logging
import re
import secrets
import time

from prometheus_client import Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.logs import about

log = logging.getLogger(__name__)

REQUEST_ID = "X-Request-ID"
_USABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observation:
    """ASGI middleware, the outermost of ours. An id that the caller sends is kept, so that its logs and ours meet."""

    def __init__(self, app: ASGIApp, *, latency: Histogram) -> None:
        self._app = app
        self._latency = latency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        started = time.perf_counter()
        status = 500  # where nothing was answered, Starlette answers so
        seconds: float | None = None

        async def observed(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                status, seconds = message["status"], time.perf_counter() - started
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        with about(request=request_id):
            try:
                await self._app(scope, receive, observed)
            finally:
                self._note(scope, status, time.perf_counter() - started if seconds is None else seconds)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._latency.labels(method, _route(scope), str(status)).observe(seconds)
        is_read = scope["method"] in ("GET", "HEAD", "OPTIONS")
        level = logging.DEBUG if is_read and status < 400 else logging.INFO
        if log.isEnabledFor(level):
            bearer = scope.get("state", {}).get("bearer")
            fields = {"status": status, "ms": round(1000 * seconds, 1)} | ({"token": bearer.id} if bearer else {})
            log.log(level, "%s %s", method, _printable(scope["path"]), extra={"about": fields})


def _request_id(scope: Scope) -> str:
    sent = Headers(scope=scope).get(REQUEST_ID, "")
    return sent if _USABLE_ID.fullmatch(sent) else secrets.token_hex(8)


def _route(scope: Scope) -> str:
    """The route's template, of which there are few, not the path, of which there are any number."""
    return getattr(scope.get("route"), "path", "none")


def _printable(path: str) -> str:
    return path[:200].encode("unicode_escape").decode()
