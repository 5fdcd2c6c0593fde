"""Events as they happen: one study's, or all.

Without a session held while a stream is open. What the wire looks like is in `service.events.stream`.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from service.api.requests import Database, Filters
from service.database import events
from service.database.queries import study_state
from service.events.feed import Feed
from service.events.stream import EventStream, gap
from service.models import ErrorView

router = APIRouter(prefix="/v1", tags=["events"])
_EXAMPLE = (
    'id: 42\nevent: trial.finished\ndata: {"id":42,"at":"2026-01-01T12:00:00Z","study":"0123456789ab",'
    '"kind":"trial.finished","data":{"label":"admetar","trial":3,"state":"COMPLETE","value":0.97}}\n\n'
)
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events; the data of each is an EventView. `event: gap` says that events were "
        "forgotten since the id you gave. A comment every 15 s keeps the connection.",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    },
}
_MAX_ID = 2**63
LastEventId = Annotated[
    int | None, Header(alias="Last-Event-ID", ge=0, lt=_MAX_ID, description="Browsers send it; goes before `after`.")
]


class EventFilters(Filters):
    """Where to begin, and whether to stay."""

    after: int | None = Field(default=None, ge=0, lt=_MAX_ID, description="Events after this id; 0: all that are kept.")
    follow: bool = Field(default=True, description="false: end after the events that there are now.")


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
        204: {"description": "The study has ended, and nothing happened after the id you gave: do not come back."},
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
    """Events of one study, those that are kept and then those that happen. The stream ends with the study."""
    study_id, state = study_state(engine, study)
    oldest, newest = events.kept_range(engine)  # after the state: an ended study's last event is among these
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
    if after > newest or 0 < after < oldest - 1:  # of another database, or forgotten
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
