"""Both clients, spoken to in one way: what holds for one must hold for the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from admeta.client import AsyncClient, Client

Handler = Callable[[httpx.Request], httpx.Response]
STUDY: dict[str, Any] = {
    "id": "0123456789ab",
    "name": "first",
    "task": "digits",
    "model": "convnet",
    "state": "QUEUED",
    "reason": None,
    "metric": "val_accuracy",
    "direction": "maximize",
    "priority": 0,
    "created_at": "2026-01-01T00:00:00Z",
    "started_at": None,
    "finished_at": None,
    "searches": [],
}


class Asked:
    """A client of either kind over canned answers: `asked("study", "first")` calls `client.study("first")`.

    Lists and streams come as lists.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, handler: Handler, verb: str, *args: Any, client: Any = None, **options: Any) -> Any:
        options_of_client = {"url": "http://service", **(client or {})}
        transport = httpx.MockTransport(handler)
        if self.kind == "blocking":
            with Client(transport=transport, **options_of_client) as blocking:
                result = getattr(blocking, verb)(*args, **options)
                return list(result) if isinstance(result, Iterator) else result

        async def ask() -> Any:
            async with AsyncClient(transport=transport, **options_of_client) as asynchronous:
                result = getattr(asynchronous, verb)(*args, **options)
                return [item async for item in result] if isinstance(result, AsyncIterator) else await result

        return asyncio.run(ask())


@pytest.fixture(params=["blocking", "asyncio"])
def asked(request: pytest.FixtureRequest) -> Asked:
    return Asked(request.param)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only when a client sleeps, and then at once; what it slept."""
    slept: list[float] = []
    origin = 1000.0

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("admeta.client.exchange.clock", lambda: origin + sum(slept))
    for kind, pause in {"blocking": slept.append, "asynchronous": sleep}.items():
        monkeypatch.setattr(f"admeta.client.{kind}.connection.sleep", pause)
        monkeypatch.setattr(f"admeta.client.{kind}.connection.clock", lambda: origin + sum(slept))
    return slept
