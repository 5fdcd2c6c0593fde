"""Events as they happen, of one study or of all: the routes, and their answer in server-sent events (HTML standard).

A stream sends heartbeats, ends with its study and with its access token, and is closed when its reader has
disconnected or reads nothing. It holds no database connection; see `service.event_feed`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Receive, Scope, Send

from admeta.client.models import ErrorView
from service.api.requests import Database, Filters
from service.database import events
from service.database.errors import DatabaseUnavailableError
from service.database.queries import study_state
from service.event_feed import Feed, Follower, Frame

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1", tags=["events"])
_EXAMPLE = (
    'id: 42\nevent: trial.finished\ndata: {"id":42,"at":"2026-01-01T12:00:00Z","study":"0123456789ab",'
    '"kind":"trial.finished","data":{"label":"admetar","trial":3,"state":"COMPLETE","value":0.97}}\n\n'
)
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events; the data of each is an EventView. `event: gap` says that events "
        "after the id you gave were deleted. A comment every 15 s keeps the connection open.",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    },
}
_MAX_ID = 2**63
LastEventId = Annotated[
    int | None,
    Header(alias="Last-Event-ID", ge=0, lt=_MAX_ID, description="Sent by browsers; takes precedence over `after`."),
]


class EventFilters(Filters):
    """Where to begin, and whether to follow."""

    after: int | None = Field(
        default=None, ge=0, lt=_MAX_ID, description="Events after this id; 0: all that are stored."
    )
    follow: bool = Field(default=True, description="false: end after the events that are stored now.")


@router.get("/events", response_class=Response, response_model=None, responses=_STREAM)
def all_events(
    engine: Database, request: Request, filters: Annotated[EventFilters, Query()], last_event_id: LastEventId = None
) -> Response:
    """Events of all studies; without `after` and Last-Event-ID, those that happen from now on."""
    oldest, newest = events.kept_range(engine)
    after = _first(last_event_id, filters.after, newest)
    return _stream(request, study_id=None, after=after, kept=(oldest, newest), until=None if filters.follow else newest)


@router.get(
    "/studies/{study}/events",
    response_class=Response,
    response_model=None,
    responses={
        **_STREAM,
        204: {"description": "The study has ended, and there is no event after the id you gave: do not ask again."},
        404: {"model": ErrorView, "description": "No study has this id or name."},
    },
)
def study_events(
    engine: Database,
    request: Request,
    study: str,
    filters: Annotated[EventFilters, Query()],
    last_event_id: LastEventId = None,
) -> Response:
    """Events of one study, those that are stored and then those that happen. The stream ends with the study."""
    study_id, state = study_state(engine, study)
    oldest, newest = events.kept_range(
        engine
    )  # read after the state, so that these include an ended study's last event
    after = _first(last_event_id, filters.after, 0)
    if state.is_terminal and after <= newest:
        left = events.read_events(engine, after=after, until=newest, study_id=study_id, limit=1)
        if not left:
            return Response(status_code=204)
    until = newest if state.is_terminal or not filters.follow else None
    return _stream(request, study_id=study_id, after=after, kept=(oldest, newest), until=until)


def _stream(
    request: Request, *, study_id: str | None, after: int, kept: tuple[int, int], until: int | None
) -> EventStream:
    oldest, newest = kept
    opening = b""
    if after > newest or 0 < after < oldest - 1:  # of another database, or deleted
        opening = gap(study_id, after=after, oldest=oldest)
        after = oldest - 1
    feed: Feed = request.app.state.feed
    sent = request.app.state.metrics.events_sent.inc
    bearer = request.scope.get("state", {}).get("bearer")
    return EventStream(
        feed,
        study_id=study_id,
        after=after,
        until=until,
        token_id=None if bearer is None else bearer.id,
        opening=opening,
        on_sent=sent,
    )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


HEARTBEAT_S = 15.0
STALL_S = 30.0
"""Seconds that a reader may take nothing while its buffers are full; then its connection is closed."""
_HEARTBEAT = b": alive\n\n"
_REVOKED = b": the access token was revoked or has expired\n\n"
_LAST_WORD_S = 1.0
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}


def gap(study_id: str | None, *, after: int, oldest: int) -> bytes:
    """Tells a reader that events after its last one were deleted: it should read the study again."""
    view = {
        "id": oldest - 1,
        "at": datetime.now(UTC).isoformat(),
        "study": study_id or "",
        "kind": "gap",
        "data": {"after": after, "oldest": oldest},
    }
    return f"id: {oldest - 1}\nevent: gap\ndata: {json.dumps(view)}\n\n".encode()


class EventStream(Response):
    """The answer of both routes.

    Args:
        feed: gives the events.
        study_id: of this study, and the stream ends with it; None: of all, without end.
        after: the last id that the reader has.
        token_id: of the reader's access token: the stream ends when it no longer works; None on an open service.
        until: end after this id: for a study that has ended, or a reader that does not want to follow.
        opening: sent first.
        on_sent: called with how many events were sent.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        study_id: str | None,
        after: int,
        until: int | None,
        token_id: str | None = None,
        opening: bytes = b"",
        on_sent: Callable[[int], None] = lambda n: None,
        heartbeat_s: float = HEARTBEAT_S,
        stall_s: float = STALL_S,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._feed = feed
        self._follower = Follower(feed, study_id=study_id, after=after, token_id=token_id)
        self._ends_with_study = study_id is not None
        self._until = until
        self._opening = b"retry: 2000\n\n" + opening
        self._on_sent = on_sent
        self._heartbeat_s = heartbeat_s
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end, or until the reader is gone."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope.get("admeta.head"):
            await send({"type": "http.response.body", "body": b""})
            return
        sending = asyncio.create_task(self._send_all(send))
        others = asyncio.create_task(_gone(receive)), asyncio.create_task(self._follower.revoked.wait())
        try:
            await asyncio.wait((sending, *others), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, *others):
                task.cancel()
            await asyncio.gather(sending, *others, return_exceptions=True)
            self._follower.close()
        if not sending.cancelled():
            sending.result()
        elif self._follower.revoked.is_set():
            log.info("a stream of events ends: its access token was revoked or has expired")
            with suppress(TimeoutError):  # of a reader that takes nothing: the connection is closed all the same
                async with asyncio.timeout(_LAST_WORD_S):
                    await send({"type": "http.response.body", "body": _REVOKED})

    async def _send_all(self, send: Send) -> None:
        await self._send(send, self._opening)
        try:
            while not self._feed.closed:
                frames = await self._follower.next(timeout_s=self._heartbeat_s, until=self._until)
                wanted, is_end = self._to_send(frames)
                if wanted or not is_end:
                    await self._send(send, b"".join(made.content for made in wanted) or _HEARTBEAT)
                self._on_sent(len(wanted))
                if is_end:
                    break
        except TimeoutError:
            log.info("a follower of events read nothing for %.0f s and was dropped", self._stall_s)
            return  # without the end of the body: the server closes the connection, and the reader reconnects
        except (SQLAlchemyError, DatabaseUnavailableError) as error:
            log.warning("a stream of events ends, the database does not answer: %s", type(error).__name__)
        await send({"type": "http.response.body", "body": b""})

    def _to_send(self, frames: Sequence[Frame]) -> tuple[Sequence[Frame], bool]:
        """The frames up to the stream's end, and whether that is reached."""
        if self._ends_with_study and self._until is None:
            for n, made in enumerate(frames, start=1):
                if made.ends_study:
                    return frames[:n], True
        return frames, self._follower.is_at(self._until)

    async def _send(self, send: Send, content: bytes) -> None:
        message = {"type": "http.response.body", "body": content, "more_body": True}
        async with asyncio.timeout(self._stall_s):
            await send(message)


async def _gone(receive: Receive) -> None:
    """Return when the reader has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
