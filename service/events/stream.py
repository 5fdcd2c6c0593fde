"""A follower's HTTP answer: server-sent events, as the HTML standard has them.

Owns the wire: heartbeats, the end of the stream, readers that are gone and readers that stopped reading. Holds no
database connection; see `service.events.feed`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.database.errors import DatabaseUnavailableError
from service.events.feed import Feed, Follower, Frame

log = logging.getLogger(__name__)

HEARTBEAT_S = 15.0
STALL_S = 30.0
"""How long a reader may take nothing while its buffers are full; then it is dropped. It can resume by its last id."""
_HEARTBEAT = b": alive\n\n"
_REVOKED = b": the access token was revoked or has expired\n\n"
_LAST_WORD_S = 1.0
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}


def gap(study_id: str | None, *, after: int, oldest: int) -> bytes:
    """Tells a reader that events between its last one and the oldest kept are gone: it should read the study anew."""
    view = {
        "id": oldest - 1,
        "at": datetime.now(UTC).isoformat(),
        "study": study_id or "",
        "kind": "gap",
        "data": {"after": after, "oldest": oldest},
    }
    return f"id: {oldest - 1}\nevent: gap\ndata: {json.dumps(view)}\n\n".encode()


class EventStream(Response):
    """The answer to `GET …/events`.

    Args:
        feed: gives the events.
        study_id: of this study, and the stream ends with it; None: of all, without end.
        after: the last id that the reader has.
        token_id: of the reader's access token: the stream ends when it no longer works; None on an open service.
        until: end after this id: for a study that has ended, or a reader that does not want to follow.
        opening: sent first.
        on_sent: told how many events went out.
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
                frames = await self._follower.next(patience_s=self._heartbeat_s, until=self._until)
                wanted, is_end = self._to_send(frames)
                if wanted or not is_end:
                    await self._send(send, b"".join(made.content for made in wanted) or _HEARTBEAT)
                self._on_sent(len(wanted))
                if is_end:
                    break
        except TimeoutError:
            log.info("a follower of events read nothing for %.0f s and was dropped", self._stall_s)
            return  # without the end of the body: the server closes the connection, and the reader comes back
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
    """Return when the reader has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
