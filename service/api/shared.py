"""Reads that many ask for at once are worked out once: fifty who watch one study cost little more than one.

Nobody gets an older answer for it: a read that has begun is not joined, since it may have missed what was written
since; those who come meanwhile share the next one, which begins when it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STREAMS = ("/events", "/export")
Key = tuple[str, bytes]


@dataclass(frozen=True)
class _Answer:
    """What the application sent, and the route that it chose."""

    messages: tuple[Message, ...]
    route: Any


class SharedReads:
    """ASGI middleware around the routes; what depends on who asks stands outside of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._begun: dict[Key, asyncio.Task[_Answer]] = {}
        self._next: dict[Key, asyncio.Task[_Answer]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not _is_shared(scope["path"]):
            await self._app(scope, receive, send)
            return
        answer = await asyncio.shield(self._join(scope))  # one who leaves takes nothing from the others
        if answer.route is not None:
            scope["route"] = answer.route
        for message in answer.messages:
            await send({**message, "headers": list(message["headers"])} if "headers" in message else dict(message))

    def _join(self, scope: Scope) -> asyncio.Task[_Answer]:
        key = scope["path"], scope["query_string"]
        if key in self._next:
            return self._next[key]
        begun = self._begun.get(key)
        task = asyncio.create_task(self._read(key, dict(scope), after=begun))
        (self._begun if begun is None else self._next)[key] = task
        return task

    async def _read(self, key: Key, scope: MutableMapping[str, Any], after: asyncio.Task[_Answer] | None) -> _Answer:
        if after is not None:
            await asyncio.wait((after,))
            self._begun[key] = self._next.pop(key)
        try:
            return await self._collect(scope)
        finally:
            del self._begun[key]

    async def _collect(self, scope: MutableMapping[str, Any]) -> _Answer:
        messages: list[Message] = []
        left = False

        async def receive() -> Message:
            nonlocal left
            if left:
                await asyncio.Event().wait()  # for ever: nobody leaves
            left = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def keep(message: Message) -> None:
            messages.append(message)

        await self._app(scope, receive, keep)
        return _Answer(tuple(messages), scope.get("route"))


def _is_shared(path: str) -> bool:
    return path.startswith("/v1/") and not path.endswith(_STREAMS)
