"""The connection of a client to one service: sends requests, repeats those that may be repeated, reads the answers."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import httpx
from pydantic import BaseModel

from admeta.client.errors import ClientError
from admeta.client.exchange import (
    NO_ANSWER,
    Request,
    UnansweredError,
    authorization,
    check,
    find_route,
    get,
    parse,
    parse_list,
    to_dataframe,
)
from admeta.client.models import Page

if TYPE_CHECKING:
    from pandas import DataFrame

Model = TypeVar("Model", bound=BaseModel)
_PAGE = 100


class AsyncItems(Generic[Model]):
    """The items of a list. Each page is requested when the iteration reaches it.

    Attributes:
        next_cursor: of the last page that was read: where the service's list continues after it; None: nowhere.
    """

    def __init__(self, pages: AsyncIterator[Page[Model]]) -> None:
        self.next_cursor: str | None = None
        self._items = self._each(pages)

    async def _each(self, pages: AsyncIterator[Page[Model]]) -> AsyncIterator[Model]:
        async for page in pages:
            self.next_cursor = page.next_cursor
            for item in page.items:
                yield item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Model:
        return await anext(self._items)

    async def to_dataframe(self) -> DataFrame:
        """All items that are left as a pandas DataFrame, a row for each: see `admeta.client.to_dataframe`."""
        return to_dataframe([item async for item in self])


class AsyncConnection:
    """A connection to a service; the arguments are those of the client."""

    def __init__(
        self, url: str | None, *, token: str | None, timeout_s: float, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self.route = find_route(url)
        try:
            if transport is None:
                transport = httpx.AsyncHTTPTransport(verify=self.route.is_encrypted, proxy=self.route.proxy)
            self._http = httpx.AsyncClient(
                base_url=self.route.url, headers=authorization(token), timeout=timeout_s, transport=transport
            )
        except httpx.InvalidURL as error:
            raise UnansweredError(self.route, error) from None
        except (ImportError, OSError, ValueError) as error:
            raise self.route.unusable(error) from None

    async def aclose(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def send_once(self, request: Request) -> httpx.Response:
        """The answer to a request, whatever its status. Raises UnansweredError where none comes."""
        try:
            return await self._http.send(request.build(self._http))
        except NO_ANSWER as error:
            raise UnansweredError(self.route, error) from None

    async def send(self, request: Request) -> httpx.Response:
        """The answer to a request, which is a success; also 304 where the request asked for changes only.

        Raises:
            ClientError: the service refused, or no answer came.
        """
        return await self._repeat(request, stream=False)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[httpx.Response]:
        """The answer to a request, a success, to be read in parts. Reading it raises ClientError where it breaks off.

        Raises:
            ClientError: the service refused, or no answer came.
        """
        try:
            async with aclosing(await self._repeat(request, stream=True)) as response:
                yield response
        except NO_ANSWER as error:
            raise UnansweredError(self.route, error) from None

    async def read(self, model: type[Model], request: Request) -> Model:
        """The answer to a request as a model."""
        return parse(model, await self.send(request))

    async def read_list(self, model: type[Model], request: Request) -> list[Model]:
        """The answer to a request as a list of models."""
        return parse_list(model, await self.send(request))

    def read_pages(
        self, model: type[Model], path: str, *, query: Mapping[str, str | int | None], limit: int | None
    ) -> AsyncItems[Model]:
        """The items of a list, page by page: `limit` of them, or all."""
        return AsyncItems(self._read_pages(model, path, query, limit))

    async def _read_pages(
        self, model: type[Model], path: str, query: Mapping[str, str | int | None], limit: int | None
    ) -> AsyncIterator[Page[Model]]:
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            asked = {**query, "cursor": cursor, "limit": _PAGE if left is None else min(left, _PAGE)}
            page = await self.read(Page[model], get(path, asked))  # type: ignore[valid-type]
            yield page
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _repeat(self, request: Request, *, stream: bool) -> httpx.Response:
        n_repeated = 0
        while True:
            failure: ClientError
            try:
                response = await self._http.send(request.build(self._http), stream=stream)
                if not response.is_success:
                    await response.aread()
                return check(response, self.route)
            except NO_ANSWER as error:
                failure = UnansweredError(self.route, error)
            except ClientError as error:
                failure = error
            pause_s = request.pause_s(n_repeated, failure)
            if pause_s is None:
                raise failure
            n_repeated += 1
            await sleep(pause_s)
