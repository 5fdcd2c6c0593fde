"""Writing under a study's lease: the fence that keeps a driver which lost its study from writing behind the new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, bindparam, select
from sqlalchemy.orm import Session

from search.errors import LeaseLostError, SearchError
from search.records import Lease
from service.database.engine import writing
from service.database.models import Run, Search, Study

_OWNER = select(Study.lease_owner).where(Study.id == bindparam("study")).with_for_update()
_OWNER_AND_RUN = (
    select(Study.lease_owner, Run)
    .join(Search, Search.study_id == Study.id)
    .join(Run, Run.search_id == Search.id)
    .where(Study.id == bindparam("study"), Run.id == bindparam("run"))
    .with_for_update(of=(Study, Run))
)


@contextmanager
def leased(engine: Engine, lease: Lease) -> Iterator[Session]:
    """A transaction that keeps the study's lease from changing hands, and checks that it is ours.

    Raises:
        LeaseLostError: another driver holds it.
    """
    with writing(engine) as session:
        if _owner(session, lease) != lease.owner:
            raise lost(lease)
        yield session


@contextmanager
def leased_run(engine: Engine, lease: Lease, run_id: int) -> Iterator[tuple[Session, Run]]:
    """As `leased`, with a run of the study, read and locked by the same statement.

    Raises:
        LeaseLostError: another driver holds the study.
        SearchError: the study has no such run.
    """
    with writing(engine) as session:
        found = session.execute(_OWNER_AND_RUN, {"study": lease.study_id, "run": run_id}).one_or_none()
        owner = _owner(session, lease) if found is None else found[0]
        if owner != lease.owner:
            raise lost(lease)
        if found is None:
            raise SearchError(f"study {lease.study_id} has no run with id {run_id}")
        yield session, found[1]


def lost(lease: Lease) -> LeaseLostError:
    """The error for a lease that another driver holds."""
    return LeaseLostError(f"driver '{lease.owner}' no longer holds study {lease.study_id}; it must stop")


def _owner(session: Session, lease: Lease) -> str | None:
    return session.execute(_OWNER, {"study": lease.study_id}).scalar_one_or_none()
