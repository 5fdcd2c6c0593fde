"""Writing under a study's lease: the fence that keeps a driver which lost its study from writing behind the new one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from search.errors import LeaseLostError, SearchError
from search.records import Lease
from service.database.engine import writing
from service.database.models import Attempt, AttemptState, Run, Search, Study


@contextmanager
def leased(engine: Engine, lease: Lease) -> Iterator[Session]:
    """A transaction that keeps the study's lease from changing hands, and checks that it is ours.

    Raises:
        LeaseLostError: another driver holds it.
    """
    with writing(engine) as session:
        owner = session.execute(
            select(Study.lease_owner).where(Study.id == lease.study_id).with_for_update()
        ).scalar_one_or_none()
        if owner != lease.owner:
            raise lost(lease)
        yield session


def lost(lease: Lease) -> LeaseLostError:
    """The error for a lease that another driver holds."""
    return LeaseLostError(f"driver '{lease.owner}' no longer holds study {lease.study_id}; it must stop")


def run_of(session: Session, lease: Lease, run_id: int) -> Run:
    """A run of the leased study.

    Raises:
        SearchError: the study has no such run.
    """
    query = (
        select(Run).join(Search, Search.id == Run.search_id).where(Run.id == run_id, Search.study_id == lease.study_id)
    )
    row = session.execute(query).scalar_one_or_none()
    if row is None:
        raise SearchError(f"study {lease.study_id} has no run with id {run_id}")
    return row


def open_attempts(session: Session, run_id: int) -> Sequence[Attempt]:
    """The attempts of a run that have not ended, as far as anybody told."""
    query = select(Attempt).where(Attempt.run_id == run_id, Attempt.state == AttemptState.RUNNING)
    return session.execute(query).scalars().all()
