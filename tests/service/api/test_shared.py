"""Reads asked for at once are shared, and none is older than its request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.api.middleware import SharedReads
from tests.machine import until


class Counting:
    """Answers with how often it was asked; each answer waits for `gate`."""

    def __init__(self) -> None:
        self.n = 0
        self.gate = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.n += 1
        n = self.n
        await self.gate.wait()
        if scope["path"] == "/v1/broken":
            raise KeyError("broken")
        scope["route"] = "the route"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"n", b"1")]})
        await send({"type": "http.response.body", "body": str(n).encode()})


async def _ask(app: SharedReads, path: str = "/v1/studies/x", *, query: bytes = b"", method: str = "GET") -> str:
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "query_string": query}
    got: list[Message] = []

    async def send(message: Message) -> None:
        got.append(message)
        if "headers" in message:
            message["headers"].append((b"mine", b"1"))

    async def receive() -> Message:
        return {"type": "http.request"}

    await app(scope, receive, send)
    assert len(got[0]["headers"]) == 2  # another's header is not among ours
    assert scope["route"] == "the route"
    return str(got[1]["body"], "ascii")


async def _begun(counting: Counting, n: int) -> None:
    """Wait until n reads have begun."""
    await until(lambda: counting.n >= n)


async def _together(app: SharedReads, counting: Counting, *asked: Any) -> list[Any]:
    tasks = [each if isinstance(each, asyncio.Task) else asyncio.create_task(each) for each in asked]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    counting.gate.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_those_who_come_while_one_reads_share_the_next() -> None:
    async def run() -> None:
        counting = Counting()
        app = SharedReads(counting)
        first = [asyncio.create_task(_ask(app)) for _ in range(2)]  # together, before the read begins
        await _begun(counting, 1)
        later = [_ask(app) for _ in range(4)]
        assert await _together(app, counting, *first, *later) == ["1", "1", "2", "2", "2", "2"]
        assert await _ask(app) == "3"
        assert not app._waiting
        assert not app._locks

    asyncio.run(run())


def test_other_addresses_and_changes_are_not_shared() -> None:
    async def run() -> None:
        counting = Counting()
        app = SharedReads(counting)
        asked = [
            _ask(app),
            _ask(app, query=b"limit=1"),
            *(_ask(app, "/v1/studies/x/export") for _ in range(2)),
            *(_ask(app, method="POST") for _ in range(2)),
        ]
        assert sorted(await _together(app, counting, *asked)) == ["1", "2", "3", "4", "5", "6"]

    asyncio.run(run())


def test_one_who_leaves_takes_nothing_from_the_others() -> None:
    async def run() -> None:
        counting = Counting()
        app = SharedReads(counting)
        first = asyncio.create_task(_ask(app))
        await _begun(counting, 1)
        second, third = (asyncio.create_task(_ask(app)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        counting.gate.set()
        assert await third == "2"

    asyncio.run(run())


def test_a_fault_reaches_all() -> None:
    async def run() -> None:
        counting = Counting()
        app = SharedReads(counting)
        faults = await _together(app, counting, *(_ask(app, "/v1/broken") for _ in range(3)))
        assert [type(fault) for fault in faults] == [KeyError] * 3
        counting.gate.set()
        with pytest.raises(KeyError):
            await _ask(app, "/v1/broken")

    asyncio.run(run())
