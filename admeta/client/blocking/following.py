# Generated from admeta/client/asynchronous/following.py by `make client`; edit that file.
"""Calls that follow a study or a run until it ends, also while the service is started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import sleep

import httpx
import httpx_sse
from pydantic import ValidationError

from admeta.client.blocking.connection import Connection
from admeta.client.errors import ClientError
from admeta.client.exchange import Backoff, Request, clock, get, parse, parse_log, part, unexpected
from admeta.client.models import EventView, LogView, StudyRunView, StudyView
from admeta.client.states import FINISHED_STATES, TERMINAL_STATES

_SILENCE_S = 50.0
"""The service sends something every 15 s; a stream without anything for so long has broken."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_ABSENT_PAUSE_S = 2.0


def wait(
    connection: Connection,
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
            response = connection.send(Request(method="GET", path=f"/v1/studies/{part(study)}", headers=headers))
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
        sleep(pause_s)


def follow_events(
    connection: Connection, path: str, *, after: int | None, retry_timeout_s: float
) -> Iterator[EventView]:
    """The events at an address until it has no more, reconnecting after the last one seen."""
    last_id, pause_s, is_deleted = after, _FIRST_PAUSE_S, False
    backoff = Backoff(retry_timeout_s)
    while True:
        headers = {"Accept": "text/event-stream"} | ({} if last_id is None else {"Last-Event-ID": str(last_id)})
        try:
            with connection.stream(Request(method="GET", path=path, headers=headers, silence_s=_SILENCE_S)) as response:
                if response.status_code == httpx.codes.NO_CONTENT:  # the study has ended
                    return
                if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                    raise unexpected(response, "a stream of events", n_fields=1)
                backoff.answered()
                for message in httpx_sse.EventSource(response).iter_sse():
                    if message.data:
                        event = _event(message.data, response)
                        last_id, pause_s, is_deleted = event.id, _FIRST_PAUSE_S, event.kind == "study.deleted"
                        yield event
                        backoff.answered()
        except ClientError as error:
            if is_deleted and error.status == httpx.codes.NOT_FOUND:
                return
            backoff.check(error)
        sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def follow_logs(
    connection: Connection,
    run: int,
    *,
    attempt: int | None,
    tail: int | None,
    poll_s: float,
    retry_timeout_s: float,
) -> Iterator[LogView]:
    """The parts of a log as they come; the arguments are those of the client's `follow_logs`."""
    backoff = Backoff(retry_timeout_s)
    shown, offset = attempt, 0
    while True:
        is_over = False
        try:
            log = read_log(connection, run, attempt=shown, offset=offset, tail=tail)
            if log.text:
                yield log
            shown, offset, tail = log.attempt, log.offset, None
            if log.ended and attempt is None:
                latest = read_log(connection, run, attempt=None, offset=0, tail=0)
                if latest.attempt > log.attempt:
                    shown, offset = latest.attempt, 0
                    continue
                is_over = (connection.read(StudyRunView, get(f"/v1/runs/{run}"))).state in FINISHED_STATES
            backoff.answered()
        except ClientError as error:
            backoff.check(error)
        else:
            if is_over or (log.ended and attempt is not None):
                return
        sleep(poll_s)


def read_log(connection: Connection, run: int, *, attempt: int | None, offset: int, tail: int | None) -> LogView:
    """A part of a log; the arguments are those of the client's `logs`."""
    query = {"attempt": attempt, "offset": offset or None, "tail": tail}
    return parse_log(run, connection.send(get(f"/v1/runs/{run}/logs", query)))


def _event(text: str, response: httpx.Response) -> EventView:
    try:
        return EventView.model_validate_json(text)
    except ValidationError as error:
        raise unexpected(response, "a stream of events", n_fields=error.error_count()) from None
