"""Reading a stream of events: the client's side of `GET …/events`, which comes back after every break.

Imports neither the server nor torch, Ray or Optuna.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

import httpx

from service.errors import ClientError
from service.models import EventView

SILENCE_S = 50.0
"""The service says something every 15 s; a connection that says nothing for so long is dead."""
_MAX_PAUSE_S = 5.0
_PASSING = frozenset({502, 503, 504})


def follow(
    http: httpx.Client,
    path: str,
    *,
    after: int | None,
    patience_s: float,
    refused: Callable[[httpx.Response], ClientError],
    unreachable: Callable[[str], ClientError],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[EventView]:
    """Events in order, each once, for as long as the service has any to come.

    Args:
        path: of the stream.
        after: begin after the event with this id; None: where the service begins by itself.
        patience_s: how long the service may be away.
        refused: the error for an answer that is none.
        unreachable: the error for a service that stayed away, from the reason.

    Raises:
        ClientError: the service refused, or stayed away.
    """
    last_id, heard_at, pause_s = after, clock(), 0.1
    is_deleted = False
    while True:
        reason = ""
        try:
            with _open(http, path, last_id) as response:
                if response.status_code == httpx.codes.NO_CONTENT:
                    return
                if response.status_code == httpx.codes.NOT_FOUND and is_deleted:
                    return
                if not response.is_success:
                    response.read()
                    if response.status_code not in _PASSING:
                        raise refused(response)
                    reason = f"answered {response.status_code}"
                else:
                    for event in parse(response.iter_lines()):
                        last_id, heard_at, pause_s = event.id, clock(), 0.1
                        is_deleted = event.kind == "study.deleted"
                        yield event
                    heard_at = clock()
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
        if clock() - heard_at > patience_s:
            raise unreachable(reason)
        sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def parse(lines: Iterable[str]) -> Iterator[EventView]:
    """The events in the lines of a stream; comments and unknown fields are skipped."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and data:
            yield EventView.model_validate_json("\n".join(data))
            data = []


def _open(http: httpx.Client, path: str, last_id: int | None) -> AbstractContextManager[httpx.Response]:
    headers = {"Accept": "text/event-stream"}
    if last_id is not None:
        headers["Last-Event-ID"] = str(last_id)
    timeout = httpx.Timeout(10.0, read=SILENCE_S)
    return http.stream("GET", path, headers=headers, timeout=timeout)
