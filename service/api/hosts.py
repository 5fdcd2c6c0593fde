"""Against other people's web pages: the Host header on an open service, the Origin of what changes something.

A page from anywhere can make a browser send requests to 127.0.0.1. By a name that its own DNS points there (DNS
rebinding) it could even read the answers: but then the Host header has that name. And a form or fetch from another
site carries that site's Origin. No CORS header is ever sent, so no page elsewhere reads anything.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.errors import answer
from service.api.invalid import shorten
from service.models import ErrorView
from service.settings import is_loopback

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


class OwnPagesOnly:
    """ASGI middleware: refuses malformed Host headers (400), foreign ones (421) and changes from foreign pages (403).

    Args:
        loopback_only: take only names of this machine as Host: for a service that asks for no token.
    """

    def __init__(self, app: ASGIApp, *, loopback_only: bool) -> None:
        self._app = app
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host and not _HOST.fullmatch(host):
            await answer(400, _malformed_host(host))(scope, receive, send)
        elif self._loopback_only and not _is_this_machine(host):
            await answer(421, _foreign_host(host))(scope, receive, send)
        elif scope["method"] not in _SAFE_METHODS and origin is not None and not _is_from(origin, host):
            await answer(403, _foreign_origin(origin))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_this_machine(host: str) -> bool:
    found = _HOST.fullmatch(host)
    return found is not None and is_loopback(found[1].strip("[]").lower())


def _is_from(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:
        return False


def _malformed_host(host: str) -> ErrorView:
    return ErrorView(
        error="malformed_host",
        detail=f"Host '{shorten(host)}' must be a name or an address, with a port or without one.",
        hint="For example 127.0.0.1:8000 or [::1]:8000, without '@', '/' and '#'.",
    )


def _foreign_host(host: str) -> ErrorView:
    return ErrorView(
        error="foreign_host",
        detail=f"Host '{shorten(host)}' is not this machine's own name; without access tokens only localhost, "
        "127.0.0.1 and [::1] are answered.",
        hint="Use http://127.0.0.1. Behind a proxy or under another name, serve with --require-token.",
    )


def _foreign_origin(origin: str) -> ErrorView:
    return ErrorView(
        error="foreign_origin",
        detail=f"a page of '{shorten(origin)}' may not change anything here.",
        hint="Use the service's own pages, `admeta`, or the client.",
    )
