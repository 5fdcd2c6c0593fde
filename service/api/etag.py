"""ETags on reads: a client that asks again for what it has gets 304 and no body."""

from __future__ import annotations

import hashlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ETags:
    """ASGI middleware: tags successful answers to GET that come in one piece; streams pass untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
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

        await self._app(scope, receive, tagged)


def _tag(start: Message, body: Message, known: str) -> Message:
    """Give the answer its tag, and take its body away where the client has it; returns the body to send."""
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
