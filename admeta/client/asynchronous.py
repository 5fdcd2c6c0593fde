"""The client for asyncio: the same verbs, to be awaited. Its twin that blocks is in `admeta.client.blocking`."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import httpx

from admeta.client import settings, verbs
from admeta.client.methods import describe
from admeta.client.models import StudyView
from admeta.client.verbs import Submitted, WaitOptions
from admeta.client.wire import (
    Effect,
    Emit,
    Flow,
    Items,
    NextChunk,
    NextLine,
    Now,
    Open,
    Send,
    Sleep,
    Steps,
    UnansweredError,
)

P = ParamSpec("P")
T = TypeVar("T")
_clock = time.monotonic


def _verb(verb: Callable[P, Flow[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """A verb as a coroutine that returns its result."""

    @functools.wraps(verb)
    async def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client._run(verb(*args, **kwargs))

    describe(method, verb, gives="{}")
    return method


def _items(verb: Callable[P, Items[T]]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """A verb as a method that gives its items."""

    @functools.wraps(verb)
    def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return client._iterate(verb(*args, **kwargs))

    describe(method, verb, gives="AsyncIterator[{}]")
    return method


def _submission(
    verb: Callable[P, Flow[Submitted]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, AsyncSubmission]]:
    """A verb as a coroutine that returns a study to wait for."""

    @functools.wraps(verb)
    async def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSubmission:
        submitted = await client._run(verb(*args, **kwargs))
        return AsyncSubmission(client=client, study=submitted.study, created=submitted.created)

    describe(method, verb, gives="AsyncSubmission")
    return method


class AsyncClient:
    """A connection to a service, for asyncio. What is safe to send twice is sent again when the connection breaks.

    Args:
        url: the service's address; default: ADMETA_URL, else http://127.0.0.1:8000.
        token: an access token; default: ADMETA_TOKEN, else none.
        timeout_s: patience with one request.
        transport: another way to send requests, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = settings.address(url)
        headers = settings.headers(token)
        try:
            self._http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout_s, transport=transport)
        except httpx.InvalidURL as error:
            raise UnansweredError(self.url, error) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    submit = _submission(verbs.submit)
    clone = _submission(verbs.clone)
    studies = _items(verbs.studies)
    study = _verb(verbs.study)
    cancel = _verb(verbs.cancel)
    pause = _verb(verbs.pause)
    resume = _verb(verbs.resume)
    delete = _verb(verbs.delete)
    wait = _verb(verbs.wait)
    trials = _items(verbs.trials)
    trial = _verb(verbs.trial)
    cancel_trial = _verb(verbs.cancel_trial)
    runs = _items(verbs.runs)
    run = _verb(verbs.run)
    curve = _verb(verbs.curve)
    logs = _verb(verbs.logs)
    follow_logs = _items(verbs.follow_logs)
    comparison = _verb(verbs.comparison)
    importance = _verb(verbs.importance)
    export = _verb(verbs.export)
    best = _verb(verbs.best)
    events = _items(verbs.events)
    tasks = _verb(verbs.tasks)
    task = _verb(verbs.task)
    optimizers = _verb(verbs.optimizers)
    optimizer = _verb(verbs.optimizer)
    paper_tables = _verb(verbs.paper_tables)
    paper_table = _verb(verbs.paper_table)
    paper_studies = _verb(verbs.paper_studies)
    paper_study = _verb(verbs.paper_study)
    cluster = _verb(verbs.cluster)
    health = _verb(verbs.health)
    version = _verb(verbs.version)
    create_token = _verb(verbs.create_token)
    tokens = _verb(verbs.tokens)
    revoke_token = _verb(verbs.revoke_token)

    async def _run(self, flow: Flow[T]) -> T:
        with closing(flow):
            async with _Connection(self._http, self.url) as connection:
                steps = Steps(flow)
                while (effect := steps.effect) is not None:
                    await connection.answer(steps, effect)
                return steps.result

    async def _iterate(self, items: Items[T]) -> AsyncIterator[T]:
        with closing(items):
            async with _Connection(self._http, self.url) as connection:
                steps = Steps(items)
                while (effect := steps.effect) is not None:
                    if isinstance(effect, Emit):
                        yield effect.item
                        steps.reply(None)
                    else:
                        await connection.answer(steps, effect)


@dataclass(frozen=True, kw_only=True)
class AsyncSubmission(Submitted):
    """A study that was submitted; `created` is False where the same study was there already."""

    client: AsyncClient = field(repr=False)

    async def wait(self, **options: Unpack[WaitOptions]) -> StudyView:
        """The study once it has ended; the options are those of `AsyncClient.wait`."""
        return await self.client.wait(self.study.id, **options)


class _Connection:
    """Carries out effects, with at most one answer open."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        self._opened: httpx.Response | None = None
        self._lines: AsyncIterator[str] | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.aclose()

    async def answer(self, steps: Steps[Any], effect: Effect) -> None:
        """Carry out an effect, and let the logic go on with its result or its failure."""
        try:
            result = await self._perform(effect)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            steps.fail(UnansweredError(self._url, error))
        else:
            steps.reply(result)

    async def _perform(self, effect: Effect) -> object:
        match effect:
            case Send(request):
                return await self._http.send(settings.build(self._http, request))
            case Open(request):
                return await self._open(settings.build(self._http, request))
            case NextLine():
                return None if self._lines is None else await anext(self._lines, None)
            case NextChunk():
                return None if self._chunks is None else await anext(self._chunks, None)
            case Sleep(seconds):
                await asyncio.sleep(seconds)
                return None
            case Now():
                return _clock()

    async def _open(self, request: httpx.Request) -> httpx.Response:
        if self._opened is not None:
            await self._opened.aclose()
        self._opened = response = await self._http.send(request, stream=True)
        self._lines, self._chunks = response.aiter_lines(), response.aiter_bytes()
        if not response.is_success:
            await response.aread()
        return response
