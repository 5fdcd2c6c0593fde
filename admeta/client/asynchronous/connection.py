"""The connection of a client to one service: sends requests, repeats those that may be repeated, reads the answers.

Also the calls that follow a study or a run until it ends, also while the service is started again.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import httpx
import httpx_sse
from pydantic import BaseModel, ValidationError

from admeta.client.errors import ClientError
from admeta.client.exchange import (
    NO_ANSWER,
    Backoff,
    Request,
    UnansweredError,
    authorization,
    check,
    clock,
    find_route,
    get,
    parse,
    parse_list,
    parse_log,
    part,
    to_dataframe,
    unexpected,
)
from admeta.client.models import EventView, LogView, Page, StudyRunView, StudyView
from admeta.client.states import FINISHED_STATES, TERMINAL_STATES

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


_SILENCE_S = 50.0
"""The service sends something every 15 s; a stream without anything for so long has broken."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_ABSENT_PAUSE_S = 2.0


async def wait_for_end(
    connection: AsyncConnection,
    study: str,
    *,
    poll_s: float,
    timeout_s: float | None,
    retry_timeout_s: float,
    on_update: Sequence[Callable[[StudyView], None]],
    on_absence: Sequence[Callable[[ClientError], None]],
) -> StudyView:
    """The study once it has ended; the arguments are those of the client's `wait`, with any number of callbacks."""
    state, tag, is_absent = "unknown", "", False
    backoff = Backoff(retry_timeout_s)
    started = clock()
    while True:
        pause_s = poll_s
        headers = {"If-None-Match": tag} if tag else {}
        try:
            response = await connection.send(Request(method="GET", path=f"/v1/studies/{part(study)}", headers=headers))
        except ClientError as error:
            backoff.check(error)
            for tell in () if is_absent else on_absence:
                tell(error)
            is_absent, pause_s = True, max(poll_s, _ABSENT_PAUSE_S)
        else:
            backoff.answered()
            is_absent = False
            if response.status_code != httpx.codes.NOT_MODIFIED:
                view, tag = parse(StudyView, response), response.headers.get("ETag", "")
                state = view.state
                for show in on_update:
                    show(view)
                if state in TERMINAL_STATES:
                    return view
        if timeout_s is not None:
            left_s = started + timeout_s - clock()
            if left_s <= 0:
                raise TimeoutError(f"study '{study}' is still {state} after {timeout_s:g} s")
            pause_s = min(pause_s, left_s)
        await sleep(pause_s)


class AsyncFollowing:
    """The client's methods for what goes on: events and logs, followed also while the service is started again."""

    _connection: AsyncConnection

    async def events(
        self, study: str | None = None, *, after: int | None = None, retry_timeout_s: float = 600.0
    ) -> AsyncIterator[EventView]:
        """Events as they happen: of one study until it ends, or of all studies without end.

        Reconnects when the connection breaks, and continues after the last event.

        Args:
            study: id or name; None: all studies.
            after: start after the event with this id. None: for one study the oldest event kept, for all studies the
                next event that happens.
            retry_timeout_s: longest time, in seconds, that the service may be unreachable after it has answered once.

        Raises:
            ClientError: the service refused, or was unreachable for too long.
        """
        path = "/v1/events" if study is None else f"/v1/studies/{part(study)}/events"
        last_id, pause_s, is_deleted = after, _FIRST_PAUSE_S, False
        backoff = Backoff(retry_timeout_s)
        while True:
            headers = {"Accept": "text/event-stream"} | ({} if last_id is None else {"Last-Event-ID": str(last_id)})
            request = Request(method="GET", path=path, headers=headers, silence_s=_SILENCE_S)
            try:
                async with self._connection.stream(request) as response:
                    if response.status_code == httpx.codes.NO_CONTENT:  # the study has ended
                        return
                    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                        raise unexpected(response, "a stream of events", n_fields=1)
                    backoff.answered()
                    async for message in httpx_sse.EventSource(response).aiter_sse():
                        if message.data:
                            event = _event(message.data, response)
                            last_id, pause_s, is_deleted = event.id, _FIRST_PAUSE_S, event.kind == "study.deleted"
                            yield event
                            backoff.answered()
            except ClientError as error:
                if is_deleted and error.status == httpx.codes.NOT_FOUND:
                    return
                backoff.check(error)
            await sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def logs(self, run: int, *, attempt: int | None = None, offset: int = 0, tail: int | None = None) -> LogView:
        """What an attempt of a run has printed so far, tracebacks included.

        Args:
            run: its id.
            attempt: default: the latest.
            offset: start at this byte of the attempt's output; 0: with all that is kept.
            tail: only the last `tail` lines.
        """
        query = {"attempt": attempt, "offset": offset or None, "tail": tail}
        return parse_log(run, await self._connection.send(get(f"/v1/runs/{run}/logs", query)))

    async def follow_logs(
        self,
        run: int,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        poll_s: float = 1.0,
        retry_timeout_s: float = 600.0,
    ) -> AsyncIterator[LogView]:
        """The output of a run, part by part: of one attempt until that ends, or of all until the run ends.

        Args:
            run: its id.
            attempt: only this one; None: the latest, and those that follow when the run is started again.
            tail: start with the last `tail` lines.
            poll_s: seconds between two requests.
            retry_timeout_s: longest time, in seconds, that the service may be unreachable after it has answered once.
        """
        backoff = Backoff(retry_timeout_s)
        shown, offset = attempt, 0
        while True:
            is_over = False
            try:
                log = await self.logs(run, attempt=shown, offset=offset, tail=tail)
                if log.text:
                    yield log
                shown, offset, tail = log.attempt, log.offset, None
                if log.ended and attempt is None:
                    latest = await self.logs(run, tail=0)
                    if latest.attempt > log.attempt:
                        shown, offset = latest.attempt, 0
                        continue
                    view = await self._connection.read(StudyRunView, get(f"/v1/runs/{run}"))
                    is_over = view.state in FINISHED_STATES
                backoff.answered()
            except ClientError as error:
                backoff.check(error)
            else:
                if is_over or (log.ended and attempt is not None):
                    return
            await sleep(poll_s)


def _event(text: str, response: httpx.Response) -> EventView:
    try:
        return EventView.model_validate_json(text)
    except ValidationError as error:
        raise unexpected(response, "a stream of events", n_fields=error.error_count()) from None
