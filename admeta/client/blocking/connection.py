# Generated from admeta/client/asynchronous/connection.py by `make client`; edit that file.
"""The connection of a client to one service: sends requests, repeats those that may be repeated, reads the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from time import sleep
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


class Items(Generic[Model]):
    """The items of a list. Each page is requested when the iteration reaches it.

    Attributes:
        next_cursor: of the last page that was read: where the service's list continues after it; None: nowhere.
    """

    def __init__(self, pages: Iterator[Page[Model]]) -> None:
        self.next_cursor: str | None = None
        self._items = self._each(pages)

    def _each(self, pages: Iterator[Page[Model]]) -> Iterator[Model]:
        for page in pages:
            self.next_cursor = page.next_cursor
            for item in page.items:
                yield item

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Model:
        return next(self._items)

    def to_dataframe(self) -> DataFrame:
        """All items that are left as a pandas DataFrame, a row for each: see `admeta.client.to_dataframe`."""
        return to_dataframe([item for item in self])


class Connection:
    """A connection to a service; the arguments are those of the client."""

    def __init__(
        self, url: str | None, *, token: str | None, timeout_s: float, transport: httpx.BaseTransport | None
    ) -> None:
        self.route = find_route(url)
        try:
            if transport is None:
                transport = httpx.HTTPTransport(verify=self.route.is_encrypted, proxy=self.route.proxy)
            self._http = httpx.Client(
                base_url=self.route.url, headers=authorization(token), timeout=timeout_s, transport=transport
            )
        except httpx.InvalidURL as error:
            raise UnansweredError(self.route, error) from None
        except (ImportError, OSError, ValueError) as error:
            raise self.route.unusable(error) from None

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def send_once(self, request: Request) -> httpx.Response:
        """The answer to a request, whatever its status. Raises UnansweredError where none comes."""
        try:
            return self._http.send(request.build(self._http))
        except NO_ANSWER as error:
            raise UnansweredError(self.route, error) from None

    def send(self, request: Request) -> httpx.Response:
        """The answer to a request, which is a success; also 304 where the request asked for changes only.

        Raises:
            ClientError: the service refused, or no answer came.
        """
        return self._repeat(request, stream=False)

    @contextmanager
    def stream(self, request: Request) -> Iterator[httpx.Response]:
        """The answer to a request, a success, to be read in parts. Reading it raises ClientError where it breaks off.

        Raises:
            ClientError: the service refused, or no answer came.
        """
        try:
            with closing(self._repeat(request, stream=True)) as response:
                yield response
        except NO_ANSWER as error:
            raise UnansweredError(self.route, error) from None

    def read(self, model: type[Model], request: Request) -> Model:
        """The answer to a request as a model."""
        return parse(model, self.send(request))

    def read_list(self, model: type[Model], request: Request) -> list[Model]:
        """The answer to a request as a list of models."""
        return parse_list(model, self.send(request))

    def read_pages(
        self, model: type[Model], path: str, *, query: Mapping[str, str | int | None], limit: int | None
    ) -> Items[Model]:
        """The items of a list, page by page: `limit` of them, or all."""
        return Items(self._read_pages(model, path, query, limit))

    def _read_pages(
        self, model: type[Model], path: str, query: Mapping[str, str | int | None], limit: int | None
    ) -> Iterator[Page[Model]]:
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            asked = {**query, "cursor": cursor, "limit": _PAGE if left is None else min(left, _PAGE)}
            page = self.read(Page[model], get(path, asked))  # type: ignore[valid-type]
            yield page
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                return

    def _repeat(self, request: Request, *, stream: bool) -> httpx.Response:
        n_repeated = 0
        while True:
            failure: ClientError
            try:
                response = self._http.send(request.build(self._http), stream=stream)
                if not response.is_success:
                    response.read()
                return check(response, self.route)
            except NO_ANSWER as error:
                failure = UnansweredError(self.route, error)
            except ClientError as error:
                failure = error
            pause_s = request.pause_s(n_repeated, failure)
            if pause_s is None:
                raise failure
            n_repeated += 1
            sleep(pause_s)
