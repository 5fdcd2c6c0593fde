"""The layers between the connection and the routes: what each does to every request or answer.

`install` puts them in order. Access tokens are checked in `service.api.auth`, which is one of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
import time
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from prometheus_client import Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import DATA_POLICY, SECURITY_HEADERS, ApiError
from service.api.invalid import shorten
from service.logs import about
from service.settings import is_loopback

log = logging.getLogger(__name__)

REQUEST_ID = "X-Request-ID"
PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
MAX_BODY_BYTES = 1 << 20
_USABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_STREAMS = ("/events", "/export")
_PACKED = ("application/vnd.apache.parquet",)
_LEAST_COMPRESSED = 1000  # bytes
_COMPRESSION_LEVEL = 5  # of 9; the last few percent take most of the time


class Middleware:
    """Base of a layer, which handles HTTP requests; everything else passes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.handle(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or let the next layer do it."""
        raise NotImplementedError


class RootPath(Middleware):
    """Lets a proxy show the service under a path: it is taken from the requests and put before the addresses sent.

    The proxy may send the path on or take it away. Links of pages are the pages' (`service.dashboard.pages`).

    Args:
        root: for example /admeta; empty: none.
    """

    def __init__(self, app: ASGIApp, *, root: str) -> None:
        super().__init__(app)
        self._root = root

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        root, host = self._root, Headers(scope=scope).get("host", "")

        async def under_root(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                target = urlsplit(headers.get("location", ""))
                if target.netloc in ("", host) and target.path:
                    headers["Location"] = root + target._replace(scheme="", netloc="").geturl()
            await send(message)

        if not root:
            await self.app(scope, receive, send)
            return
        path, raw = scope["path"], scope.get("raw_path") or b""
        if path == root or path.startswith(root + "/"):
            raw = raw.removeprefix(root.encode()) or b"/"
            scope = {**scope, "path": path.removeprefix(root) or "/", "raw_path": raw}
        await self.app(scope, receive, under_root)


class Compression(Middleware):
    """Compresses answers with gzip for clients that accept it; streams of events and packed files pass as they are.

    The ETag of a compressed answer becomes a weak one, since the plain bytes have the same tag.
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            GZipMiddleware(
                app,
                minimum_size=_LEAST_COMPRESSED,
                compresslevel=_COMPRESSION_LEVEL,
                exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, *_PACKED),
            )
        )

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def weakened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                tag = headers.get("etag", "")
                if tag.startswith('"') and headers.get("content-encoding") == "gzip":
                    headers["ETag"] = f"W/{tag}"
            await send(message)

        await self.app(scope, receive, weakened)


class Observation(Middleware):
    """Gives every request an id, measures its time, and logs it: writes and failures at INFO, reads at DEBUG.

    An id that the caller sends is used, so that its log and ours have the same one.
    """

    def __init__(self, app: ASGIApp, *, latency: Histogram) -> None:
        super().__init__(app)
        self._latency = latency

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = sent if _USABLE_ID.fullmatch(sent) else secrets.token_hex(8)
        started = time.perf_counter()
        status = 500  # Starlette's answer where there was none
        seconds: float | None = None

        async def observed(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                status, seconds = message["status"], time.perf_counter() - started
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        with about(request=request_id):
            try:
                await self.app(scope, receive, observed)
            finally:
                self._record(scope, status, time.perf_counter() - started if seconds is None else seconds)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "none")  # its template: paths are too many for a label
        self._latency.labels(method, route, str(status)).observe(seconds)
        level = logging.DEBUG if scope["method"] in _SAFE_METHODS and status < 400 else logging.INFO
        if log.isEnabledFor(level):
            bearer = scope.get("state", {}).get("bearer")
            fields = {"status": status, "ms": round(1000 * seconds, 1)} | ({"token": bearer.id} if bearer else {})
            path = scope["path"][:200].encode("unicode_escape").decode()
            log.log(level, "%s %s", method, path, extra={"about": fields})


class AddSecurityHeaders(Middleware):
    """Adds the headers that tell browsers to guess no types, show no answer in a frame and load nothing from elsewhere.

    What an answer sets itself stays.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                is_page = headers.get("content-type", "").startswith("text/html")
                if message["status"] != 304:  # its policy would replace that of the page which the browser has
                    headers.setdefault("Content-Security-Policy", PAGE_POLICY if is_page else DATA_POLICY)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, secured)


class OwnPagesOnly(Middleware):
    """Refuses malformed Host headers (400), foreign ones (421), and changes that pages of other sites request (403).

    A page from anywhere can make a browser send requests to 127.0.0.1. With a name that its DNS server points there
    (DNS rebinding) it could also read the answers, but then the Host header has that name. A form or fetch of another
    site has that site's Origin. No CORS header is ever sent, so no page of another site reads anything.

    Args:
        loopback_only: take only names of this machine as Host: for a service that asks for no token.
    """

    def __init__(self, app: ASGIApp, *, loopback_only: bool) -> None:
        super().__init__(app)
        self._loopback_only = loopback_only

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            self._check_host(host)
            if scope["method"] not in _SAFE_METHODS and origin is not None:
                _check_origin(origin, host)
        except ApiError as error:
            await error.response()(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        found = _HOST.fullmatch(host)
        if host and found is None:
            raise ApiError(
                400,
                "malformed_host",
                f"Host '{shorten(host)}' must be a name or an address, with a port or without one.",
                hint="For example 127.0.0.1:8000 or [::1]:8000, without '@', '/' and '#'.",
            )
        if self._loopback_only and (found is None or not is_loopback(found[1].strip("[]").lower())):
            raise ApiError(
                421,
                "foreign_host",
                f"Host '{shorten(host)}' is not this machine's own name; without access tokens only localhost, "
                "127.0.0.1 and [::1] are answered.",
                hint="Use http://127.0.0.1. Behind a proxy or under another name, serve with --require-token.",
            )


def _check_origin(origin: str, host: str) -> None:
    try:
        is_own = urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:
        is_own = False
    if not is_own:
        raise ApiError(
            403,
            "foreign_origin",
            f"a page of '{shorten(origin)}' may not change anything here.",
            hint="Use the service's own pages, `admeta`, or the client.",
        )


class HeadAsGet(Middleware):
    """Answers HEAD wherever GET is answered, without the body."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self.app({**scope, "method": "GET", "admeta.head": True}, receive, without_body)


class BodyLimit(Middleware):
    """Refuses a body over `max_bytes` with 413, whether its length was announced or not."""

    def __init__(self, app: ASGIApp, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        super().__init__(app)
        self._max_bytes = max_bytes

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = ApiError(
            413,
            "body_too_large",
            f"the body is larger than {self._max_bytes} bytes ({self._max_bytes / 2**20:.3g} MiB).",
            hint="A study definition is a few kilobytes: shorten its choices and descriptions.",
            headers={"Connection": "close"},
        )
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > self._max_bytes:
            await error.response()(scope, receive, send)
            return
        n_bytes = 0

        async def counted() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > self._max_bytes:
                raise error
            return message

        await self.app(scope, counted, send)


class ETags(Middleware):
    """Tags successful answers to GET that come in one piece; a client that has the answer gets 304 without a body."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        known = Headers(scope=scope).get("if-none-match", "")
        held: Message | None = None

        async def tagged(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and message["status"] == 200:
                held = message  # until the body shows whether it is a stream
                return
            if held is not None:
                start, held = held, None
                if not message.get("more_body", False):
                    message = _tag(start, message, known)
                await send(start)
            await send(message)

        await self.app(scope, receive, tagged)


def _tag(start: Message, body: Message, known: str) -> Message:
    """Give the answer its tag, and remove its body where the client has it; returns the body to send."""
    tag = f'"{hashlib.sha256(body.get("body", b"")).hexdigest()[:32]}"'
    headers = MutableHeaders(scope=start)
    headers["ETag"] = tag
    headers.setdefault("Cache-Control", "private, no-cache")  # keep it, but ask each time; no proxy keeps it
    if known.strip() != "*" and tag not in [candidate.strip().removeprefix("W/") for candidate in known.split(",")]:
        return body
    start["status"] = 304
    for name in ("content-length", "content-type"):
        del headers[name]
    return {**body, "body": b""}


Key = tuple[str, bytes]
Answer = tuple[list[Message], Any]
"""What the application sent, and the route that it chose."""


class SharedReads(Middleware):
    """Computes a read once for all requests for it that wait: fifty readers of a study cost little more than one.

    No answer is older than its request: a request that comes while a read runs does not get that read's answer, which
    may lack what was written since. All such requests share the next read, which begins when this one has ended.
    Whatever depends on the caller must be an outer layer.
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._waiting: dict[Key, asyncio.Task[Answer]] = {}  # reads that have not begun
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if scope["method"] != "GET" or not path.startswith("/v1/") or path.endswith(_STREAMS):
            await self.app(scope, receive, send)
            return
        key = path, scope["query_string"]
        if key not in self._waiting:
            self._waiting[key] = asyncio.create_task(self._read(key, dict(scope)))
        messages, route = await asyncio.shield(self._waiting[key])  # a client that disconnects does not cancel it
        if route is not None:
            scope["route"] = route
        for message in messages:
            await send({**message, "headers": list(message["headers"])} if "headers" in message else dict(message))

    async def _read(self, key: Key, scope: MutableMapping[str, Any]) -> Answer:
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            del self._waiting[key]
            messages: list[Message] = []
            requested = False

            async def receive() -> Message:
                nonlocal requested
                if requested:
                    await asyncio.Event().wait()  # for ever: this client never leaves
                requested = True
                return {"type": "http.request", "body": b"", "more_body": False}

            async def keep(message: Message) -> None:
                messages.append(message)

            await self.app(scope, receive, keep)
            return messages, scope.get("route")
