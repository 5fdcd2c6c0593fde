"""What a request names: a study by id or name, a search by label, the place in a list where a page ended.

Pages continue after a row's sort key, not after a count of rows, so that rows added meanwhile move nothing. A cursor is
that key as opaque text.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Engine, Text, select, type_coerce
from sqlalchemy.orm import Session

from search.definition import StudyDefinition
from search.errors import SearchError, StudyNotFoundError
from search.sections import Confirm
from search.states import Direction, StudyState
from service.database.engine import reading
from service.database.errors import InvalidCursorError, TrialNotFoundError
from service.database.models import Search, Study
from service.database.retry import REQUEST, retried

VOID_TAG = "void"
"""Tag of a study that says nothing of its optimizers, for example because none of them learned anything."""


def find_study(session: Session, study: str) -> Study:
    """The study with this id, or else with this name.

    Raises:
        StudyNotFoundError: there is neither.
    """
    row = session.execute(select(Study).where(Study.id == study)).scalar_one_or_none() or by_name(session, study)
    if row is None:
        raise StudyNotFoundError(f"no study has the id or name {study!r}")
    return row


def by_name(session: Session, name: str) -> Study | None:
    """The study with this name."""
    return session.execute(select(Study).where(Study.name == name)).scalar_one_or_none()


def definition_of(study: Study) -> StudyDefinition:
    """The study's stored definition.

    Raises:
        SearchError: another version wrote it, and this one cannot read it.
    """
    try:
        return StudyDefinition.model_validate(study.definition)
    except ValidationError as error:
        message = f"the definition of study '{study.name}' cannot be read by this version: {error}"
        raise SearchError(message) from error


def confirm_of(study: Study) -> Confirm:
    """The `confirm` of a stored definition, also where a rule of a later version refuses it."""
    return Confirm.model_construct(**study.definition["confirm"])


def searches_of(session: Session, study: Study, label: str | None = None) -> list[Search]:
    """The study's searches in their order, or the one with this label.

    Raises:
        TrialNotFoundError: it has none with this label.
    """
    query = select(Search).where(Search.study_id == study.id).order_by(Search.position)
    searches = list(session.execute(query).scalars())
    found = [search for search in searches if label in (None, search.label)]
    if not found and label is not None:
        labels = ", ".join(search.label for search in searches)
        raise TrialNotFoundError(f"study '{study.name}' has no search {label!r}.", hint=f"Its searches are {labels}.")
    return found


@retried(REQUEST)
def study_state(engine: Engine, study: str) -> tuple[str, StudyState]:
    """The id and the state of the study with this id or name.

    Raises:
        StudyNotFoundError: there is neither.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        return row.id, row.state


def has_tag(tag: str) -> ColumnElement[bool]:
    """SQL: whether a study has this tag."""
    return type_coerce(Study.tags, Text).contains(json.dumps(tag), autoescape=True)


def better_first(column: ColumnElement[Any], direction: Direction) -> ColumnElement[Any]:
    """Sort order of a value that is not NULL."""
    return column.desc() if direction.is_maximize else column.asc()


def encode_cursor(*key: str | float | int | None) -> str:
    """A cursor after the row with this sort key."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, *types: type | tuple[type, ...]) -> list[Any]:
    """The sort key in a cursor.

    Raises:
        InvalidCursorError: it is not a cursor, or one of another list.
    """
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        key = None
    good = isinstance(key, list) and len(key) == len(types)
    if not good or not all(_fits(part, kind) for part, kind in zip(key, types, strict=True)):
        raise InvalidCursorError(
            f"cursor {cursor[:100]!r} was not given out by this list.",
            hint="Pass 'next_cursor' of the page before unchanged, with the same filters and order; "
            "leave it out for the first page.",
        )
    return list(key)


def _fits(part: Any, kind: type | tuple[type, ...]) -> bool:
    if isinstance(part, bool) or not isinstance(part, kind):
        return False
    if isinstance(part, int):
        return abs(part) < 2**63
    return not (isinstance(part, str) and "\0" in part) and part == part
