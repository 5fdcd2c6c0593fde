"""Find the study that a request names: by id or by name."""

from __future__ import annotations

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from search.errors import StudyNotFoundError
from search.states import StudyState
from service.database.engine import reading
from service.database.models import Study
from service.database.retry import REQUEST, retried


def find_study(session: Session, study: str) -> Study:
    """The study with this id, or else with this name.

    Raises:
        StudyNotFoundError: there is neither.
    """
    row = session.execute(select(Study).where(Study.id == study)).scalar_one_or_none() or by_name(session, study)
    if row is None:
        raise StudyNotFoundError(f"no study has the id or name {study!r}")
    return row


@retried(REQUEST)
def study_state(engine: Engine, study: str) -> tuple[str, StudyState]:
    """The id and the state of the study with this id or name.

    Raises:
        StudyNotFoundError: there is neither.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        return row.id, row.state


def by_name(session: Session, name: str) -> Study | None:
    """The study with this name."""
    return session.execute(select(Study).where(Study.name == name)).scalar_one_or_none()
