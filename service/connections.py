"""Limits on connections: how many are open, and how long each may be silent, send a request or not read an answer.

uvicorn limits only the silence between two requests (`timeout_keep_alive`), and its `limit_concurrency` answers 503 but
keeps what is open. So its protocol for HTTP/1.1 is extended here: a connection whose header or body does not end in
time, or whose reader takes nothing, is closed; at the limit, the one that has waited longest for a request makes room.
Connections whose request is being answered stay open.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 4096
MAX_BACKLOG = 2048


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits on the connections of one server.

    Attributes:
        max_open: connections at a time; one more closes the one that has waited longest for a request.
        backlog: connections that the event loop accepts in one step, and that the system keeps waiting.
        header_s: seconds from the connection, or from the first byte of a later request, until its header is complete.
        body_s: seconds from the header until the request's body is complete.
        write_s: seconds that a reader takes nothing of an answer.
    """

    max_open: int = MAX_CONNECTIONS
    backlog: int = MAX_BACKLOG
    header_s: float = 15.0
    body_s: float = 60.0
    write_s: float = 60.0


def limits_for(open_files: int) -> ConnectionLimits:
    """Limits under which the process keeps at least a quarter of its descriptors for files, SQLite and Ray."""
    return ConnectionLimits(
        max_open=max(min(MAX_CONNECTIONS, open_files // 2), 1), backlog=max(min(MAX_BACKLOG, open_files // 4), 1)
    )


def limits_of_this_process() -> ConnectionLimits:
    """Limits that follow from how many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits_for(MAX_CONNECTIONS * 2 if soft == resource.RLIM_INFINITY else soft)


class _Phase(Enum):
    """What a connection waits for."""

    HEADER = "a request's header"
    BODY = "the rest of a request's body"
    ANSWER = "its answer"
    IDLE = "another request"


def limited_protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 protocol with these limits, for one server: what `uvicorn.Config(http=...)` takes."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits, "waiting": {}})


class _LimitedProtocol(H11Protocol):
    limits: ClassVar[ConnectionLimits]
    waiting: ClassVar[dict[H11Protocol, None]]
    """The server's connections without a complete request, the one that has waited longest first."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._waits_for: tuple[_Phase, object] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update()
        if len(self.connections) > self.limits.max_open:
            oldest = next(iter(self.waiting))  # this one itself, where all others are being answered
            del self.waiting[oldest]
            self.connections.discard(oldest)
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.pop(self, None)
        for timer in (self._deadline, self._write_deadline):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _update(self) -> None:
        """Start the time that belongs to a new phase; bytes within one do not prolong it."""
        phase = self._phase()
        if self._waits_for == (phase, self.cycle) or self.transport.is_closing():
            return
        self._waits_for = phase, self.cycle
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        if phase is not _Phase.ANSWER:
            self.waiting[self] = None
            seconds = {
                _Phase.HEADER: self.limits.header_s,
                _Phase.BODY: self.limits.body_s,
                _Phase.IDLE: self.timeout_keep_alive + self.limits.header_s,  # uvicorn closes it before
            }[phase]
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _phase(self) -> _Phase:
        if self.cycle is None:
            return _Phase.HEADER
        if not self.cycle.response_complete:
            return _Phase.BODY if self.cycle.more_body else _Phase.ANSWER
        if self.conn.their_state is h11.SEND_BODY:  # of a request that was answered before its body was read
            return _Phase.BODY
        return _Phase.HEADER if self.conn.trailing_data[0] else _Phase.IDLE
