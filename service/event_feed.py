"""Follow events live: one task reads new events from SQL and gives them to all followers of this process.

A follower first reads the events that it missed from SQL, page by page. Once it has caught up, it gets new events as
the poller finds them; where it is too slow for that, it reads from SQL again. So no event is lost, memory is bounded,
and fifty followers cost one query every `poll_s`. No database connection is held between queries.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC

from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.database import events, tokens
from service.database.errors import DatabaseUnavailableError
from service.database.events import StoredEvent

log = logging.getLogger(__name__)

POLL_S = 0.25
CHECK_TOKENS_S = 5.0
PAGE = 500
MAX_WAITING = 1000
"""Events kept for one follower; a slower one goes back to reading them from SQL."""
_DATABASE_ERRORS = (SQLAlchemyError, DatabaseUnavailableError)
_MAX_PAUSE_S = 5.0


@dataclass(frozen=True)
class Frame:
    """An event as it is sent, made once for all followers."""

    id: int
    content: bytes
    ends_study: bool


@dataclass(frozen=True)
class EventSource:
    """Reads events and access tokens from the database; called in threads."""

    engine: Engine

    def read(self, *, after: int, until: int | None, study_id: str | None) -> Sequence[StoredEvent]:
        """The next page of events with after < id ≤ until."""
        return events.read_events(self.engine, after=after, until=until, study_id=study_id, limit=PAGE)

    def kept_range(self) -> tuple[int, int]:
        """The oldest and the newest id there are."""
        return events.kept_range(self.engine)

    def active_tokens(self, ids: Collection[str]) -> set[str]:
        """Those of the access tokens that are neither revoked nor expired."""
        return tokens.active_tokens(self.engine, ids)


class Feed:
    """The poller. It runs while there are followers, on one event loop.

    Args:
        source: reads the events.
        poll_s: seconds between two queries.
    """

    def __init__(self, source: EventSource, *, poll_s: float = POLL_S) -> None:
        self.source = source
        self._poll_s = poll_s
        self._attached: set[Follower] = set()
        self._position = 0
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self.closed = False

    @property
    def position(self) -> int:
        """The newest id that the followers were given."""
        return self._position

    @property
    def n_followers(self) -> int:
        """How many are attached."""
        return len(self._attached)

    def close(self) -> None:
        """End the poller and all followers' streams."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
        for follower in list(self._attached):
            follower.wake()

    async def start(self) -> None:
        """Start the poller where it does not run; its position is then the newest id."""
        async with self._starting:
            if self._task is None and not self.closed:
                _, self._position = await run_in_threadpool(self.source.kept_range)
                self._task = asyncio.create_task(self._poll())

    def attach(self, follower: Follower) -> None:
        """Give new events to the follower from now on."""
        self._attached.add(follower)

    def detach(self, follower: Follower) -> None:
        """Stop giving it events; without followers the poller ends."""
        self._attached.discard(follower)
        if not self._attached and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _poll(self) -> None:
        pause_s, checked_at = self._poll_s, time.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            try:
                if time.monotonic() - checked_at >= CHECK_TOKENS_S:
                    await self._end_revoked()
                    checked_at = time.monotonic()
                found = await run_in_threadpool(self.source.read, after=self._position, until=None, study_id=None)
            except _DATABASE_ERRORS as error:
                pause_s = min(max(self._poll_s, 2 * pause_s), _MAX_PAUSE_S)
                log.warning("events cannot be read, waiting %.1f s: %s", pause_s, type(error).__name__)
                continue
            pause_s = 0.0 if len(found) == PAGE else self._poll_s
            if found:
                self._give(found)

    async def _end_revoked(self) -> None:
        """Tell the followers whose access token was revoked or has expired; one query for all."""
        used = {follower.token_id for follower in self._attached if follower.token_id is not None}
        active = await run_in_threadpool(self.source.active_tokens, used) if used else set()
        for follower in self._attached:
            if follower.token_id in used - active:
                follower.revoked.set()

    def _give(self, found: Sequence[StoredEvent]) -> None:
        """Without an await: a follower that attaches gets all of these or none."""
        for event in found:
            made = frame(event)
            for follower in self._attached:
                if follower.study_id in (None, event.study_id):
                    follower.put(made)
        self._position = found[-1].id


class Follower:
    """One reader's position in the feed.

    Args:
        study_id: follow this study; None: all.
        after: the last id that the reader has.
        token_id: of the access token that the reader came with; None on an open service.

    Attributes:
        revoked: set once the access token no longer works.
    """

    def __init__(self, feed: Feed, *, study_id: str | None, after: int, token_id: str | None = None) -> None:
        self.study_id = study_id
        self.token_id = token_id
        self.revoked = asyncio.Event()
        self._feed = feed
        self._after = after
        self._waiting: list[Frame] = []
        self._is_live = False
        self._woken = asyncio.Event()

    def put(self, made: Frame) -> None:
        """Add an event; called by the feed. Over MAX_WAITING of them, the follower reads from SQL again."""
        if not self._is_live:
            return
        self._waiting.append(made)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.clear()
            self._is_live = False
        self._woken.set()

    def wake(self) -> None:
        """Make `next` return."""
        self._woken.set()

    async def next(self, *, timeout_s: float, until: int | None = None) -> Sequence[Frame]:
        """The next events, in order; none after `timeout_s` without an event, or when the feed was closed.

        Args:
            until: only events up to this id, which exists already; see `is_at`.
        """
        if not self._is_live and (until is None or self.token_id is not None):
            await self._feed.start()
            self._feed.attach(self)  # keeps the poller running, which also checks the token
        if until is not None:
            return await self._read(until)
        if not self._is_live:
            missed = await self._catch_up()
            if missed:
                return missed
        if not self._waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):  # wait_for would make a task each time
                    await self._woken.wait()
        self._woken.clear()
        found, self._waiting = self._waiting, []
        if found:
            self._after = found[-1].id
        return found

    def is_at(self, until: int | None) -> bool:
        """Whether all events up to this id were returned."""
        return until is not None and self._after >= until

    async def _catch_up(self) -> Sequence[Frame]:
        """A page of the events that were missed; live once there is none up to the poller's position."""
        while True:
            until = self._feed.position
            missed = await self._read(until)
            if missed:
                return missed
            if until == self._feed.position:  # the poller gave nothing since: no event is in between
                self._is_live = True
                return ()

    async def _read(self, until: int) -> Sequence[Frame]:
        """A page of the events from SQL."""
        if self._after >= until:
            return ()
        found = await run_in_threadpool(self._feed.source.read, after=self._after, until=until, study_id=self.study_id)
        self._after = found[-1].id if len(found) == PAGE else until
        return [frame(event) for event in found]

    def close(self) -> None:
        """Detach from the feed."""
        self._feed.detach(self)


def frame(event: StoredEvent) -> Frame:
    """The event in the format of server-sent events; its data is an `EventView`."""
    at = event.at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    view = f'{{"id":{event.id},"at":"{at}","study":"{event.study_id}","kind":"{event.kind}","data":{event.data}}}'
    return Frame(event.id, f"id: {event.id}\nevent: {event.kind}\ndata: {view}\n\n".encode(), event.ends_study)
