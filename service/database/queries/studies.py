"""Studies with their progress: single, and in pages, newest first."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache

from pydantic import ValidationError
from sqlalchemy import Engine, exists, or_, select
from sqlalchemy.orm import Session, defer

from search.advice import warnings_for
from search.definition import StudyDefinition
from search.states import StudyState
from service.database.engine import reading
from service.database.lookup import find_study
from service.database.models import Search, Study
from service.database.queries.paging import decode_cursor, encode_cursor
from service.database.queries.progress import search_views
from service.database.retry import REQUEST, retried
from service.models import Page, SearchView, StudyView


@retried(REQUEST)
def get_study_view(engine: Engine, study: str) -> StudyView:
    """A study by id or name, with its definition.

    Raises:
        StudyNotFoundError: no study has this id or name.
    """
    with reading(engine) as session:
        return study_view(session, find_study(session, study))


def study_view(session: Session, row: Study) -> StudyView:
    """The study as a single read gives it."""
    return _view(row, search_views(session, [row])[row.id]).model_copy(
        update={"definition": row.definition, "warnings": list(_warnings(json.dumps(row.definition)))}
    )


@lru_cache(maxsize=1000)  # a study that is watched is read every second, and this is most of the work
def _warnings(definition: str) -> tuple[str, ...]:
    try:
        return tuple(warnings_for(StudyDefinition.model_validate_json(definition)))
    except ValidationError:  # of another version, or a task that is no longer installed: nothing can be said of it
        return ()


@retried(REQUEST)
def list_studies(
    engine: Engine,
    *,
    state: StudyState | None = None,
    task: str | None = None,
    optimizer: str | None = None,
    name: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[StudyView]:
    """A page of studies, newest first, without their definitions.

    Args:
        state: only studies in this state.
        task: only studies of this task.
        optimizer: only studies that search this optimizer.
        name: only studies whose name contains this; case does not matter.
        limit: studies on a page.
        cursor: `next_cursor` of the page before.

    Raises:
        InvalidCursorError: the cursor is not one of this list.
    """
    query = select(Study).options(defer(Study.definition, raiseload=True))
    query = query.order_by(Study.created_at.desc(), Study.id.desc()).limit(limit + 1)
    if state is not None:
        query = query.where(Study.state == state)
    if task is not None:
        query = query.where(Study.task == task)
    if optimizer is not None:
        query = query.where(exists().where(Search.study_id == Study.id, Search.optimizer == optimizer))
    if name is not None:
        query = query.where(Study.name.icontains(name, autoescape=True))
    if cursor is not None:
        microseconds, last_id = decode_cursor(cursor, int, str)
        time = _time(microseconds)
        query = query.where(Study.created_at <= time, or_(Study.created_at < time, Study.id < last_id))
    with reading(engine) as session:
        rows = session.execute(query).scalars().all()
        page = rows[:limit]
        views = search_views(session, page)
    last = page[-1] if len(rows) > limit else None
    return Page(
        items=[_view(row, views[row.id]) for row in page],
        next_cursor=None if last is None else encode_cursor(_microseconds(last.created_at), last.id),
    )


def _microseconds(time: datetime) -> int:
    return int(time.timestamp()) * 1_000_000 + time.microsecond


def _time(microseconds: int) -> datetime:
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(min(max(seconds, 0), 2**33), UTC).replace(microsecond=rest)


def _view(row: Study, searches: list[SearchView]) -> StudyView:
    return StudyView(
        id=row.id,
        name=row.name,
        task=row.task,
        model=row.model,
        state=row.state,
        reason=row.reason,
        metric=row.metric,
        direction=row.direction,
        priority=row.priority,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        searches=searches,
    )
