"""Refusals and errors as pages, for browsers: the API's own words, where a person asks instead of a program.

Owns the translation only; which request is refused, and why, is decided where the API decides it.
"""

from __future__ import annotations

from pydantic import ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.signin import is_page_visit
from service.dashboard.templating import page
from service.models import ErrorView


class FailurePages:
    """ASGI middleware: an error in JSON becomes a page with the same status, where the request prefers HTML."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_page_visit(scope):
            await self._app(scope, receive, send)
            return
        held: Message | None = None
        body = b""

        async def shown(message: Message) -> None:
            nonlocal held, body
            if message["type"] == "http.response.start" and _is_error(message):
                held = message
                return
            if held is None:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                start, content = _page(HTTPConnection(scope), held, body)
                await send(start)
                await send({"type": "http.response.body", "body": content})

        await self._app(scope, receive, shown)


def _is_error(start: Message) -> bool:
    is_json = Headers(raw=start["headers"]).get("content-type", "").startswith("application/json")
    return start["status"] >= 400 and is_json


def _page(request: HTTPConnection, start: Message, body: bytes) -> tuple[Message, bytes]:
    try:
        view = ErrorView.model_validate_json(body)
    except ValidationError:
        return start, body
    made = page(request, "failure.html", status=start["status"], view=view)
    content = bytes(made.body)
    headers = MutableHeaders(raw=list(start["headers"]))
    headers["Content-Type"] = made.headers["content-type"]
    headers["Content-Length"] = str(len(content))
    return {**start, "headers": headers.raw}, content
