"""Following events: the client's side of `GET …/events`, which comes back after every break."""

from __future__ import annotations

import httpx
from pydantic import ValidationError

from admeta.client.errors import ClientError
from admeta.client.exchange import part, refused, unexpected
from admeta.client.models import EventView
from admeta.client.patience import Patience
from admeta.client.wire import Emit, Flow, Items, NextLine, Open, Request, Sleep

SILENCE_S = 50.0
"""The service says something every 15 s; a connection that says nothing for so long is dead."""
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0


def events(study: str | None = None, *, after: int | None = None, patience_s: float = 60.0) -> Items[EventView]:
    """Events as they happen: of one study until it ends, or of all studies without end. Breaks are bridged.

    Args:
        study: id or name; None: all studies.
        after: begin after the event with this id. None: a study's events from the oldest kept, or, of all
            studies, those that happen from now on.
        patience_s: how long the service may be away, once it has answered.

    Raises:
        ClientError: the service refused, or stayed away.
    """
    path = "/v1/events" if study is None else f"/v1/studies/{part(study)}/events"
    last_id, pause_s, is_deleted = after, _FIRST_PAUSE_S, False
    patience = Patience(patience_s)
    while True:
        try:
            response: httpx.Response = yield Open(_request(path, last_id))
            if _is_over(response, is_deleted=is_deleted):
                return
            if not response.is_success:
                raise refused(response)
            yield from patience.hear()
            while (event := (yield from _next_event(response))) is not None:
                last_id, pause_s, is_deleted = event.id, _FIRST_PAUSE_S, event.kind == "study.deleted"
                yield Emit(event)
                yield from patience.hear()
        except ClientError as error:
            yield from patience.bear(error)
        yield Sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def _request(path: str, last_id: int | None) -> Request:
    headers = {"Accept": "text/event-stream"}
    if last_id is not None:
        headers["Last-Event-ID"] = str(last_id)
    return Request(method="GET", path=path, headers=headers, silence_s=SILENCE_S)


def _is_over(response: httpx.Response, *, is_deleted: bool) -> bool:
    """Nothing will come any more: 204 from an ended study, 404 from one whose deletion was told."""
    gone = response.status_code == httpx.codes.NOT_FOUND and is_deleted
    return gone or response.status_code == httpx.codes.NO_CONTENT


def _next_event(response: httpx.Response) -> Flow[EventView | None]:
    """The next event of an open stream, None at its end; comments and unknown fields are skipped."""
    data: list[str] = []
    while (line := (yield NextLine())) is not None:
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and data:
            return _event("\n".join(data), response)
    return None


def _event(text: str, response: httpx.Response) -> EventView:
    try:
        return EventView.model_validate_json(text)
    except ValidationError as error:
        raise unexpected(response, "a stream of events", n_fields=error.error_count()) from None
