"""Answers in fewer bytes: gzip for those who take it, of what gets smaller by it."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST_BYTES = 1000
LEVEL = 5  # of 9; the last few percent cost most of the time
_PACKED = ("application/vnd.apache.parquet",)


class Compression:
    """ASGI middleware around Starlette's: streams of events and packed files pass as they are.

    The ETag of a compressed answer becomes a weak one, since the same tag stands for the plain bytes too.
    """

    def __init__(self, app: ASGIApp) -> None:
        excluded = (*DEFAULT_EXCLUDED_CONTENT_TYPES, *_PACKED)
        self._gzip = GZipMiddleware(app, minimum_size=LEAST_BYTES, compresslevel=LEVEL, exclude_content_types=excluded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def weakened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                tag = headers.get("etag", "")
                if tag.startswith('"') and headers.get("content-encoding") == "gzip":
                    headers["ETag"] = f"W/{tag}"
            await send(message)

        await self._gzip(scope, receive, weakened)
