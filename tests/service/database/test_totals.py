"""Sums over the whole database, on both databases."""

from __future__ import annotations

from sqlalchemy import Engine, update

from search.states import RunState, Stage, StudyState
from service.database import SqlStore
from service.database.engine import writing
from service.database.models import Study
from service.database.queries import totals
from service.database.studies import create_study, request_cancel
from tests.service.database.fill import complete, curve, definition, leased, run


def test_totals(engine: Engine) -> None:
    assert totals(engine).runs == {}
    store = SqlStore(engine)
    lease, (search, _) = leased(store, definition())
    run(store, lease, search, 0, complete(0.5), points=curve(0.1, 0.2, train_s=2.0))
    run(store, lease, search, 1, None)
    run(store, lease, search, 0, complete(0.5), stage=Stage.CONFIRM, seed=1, points=curve(0.1, train_s=3.0))
    other, _ = leased(store, definition("expired"))
    with writing(engine) as session:
        session.execute(update(Study).where(Study.id == other.study_id).values(lease_expires_at=Study.created_at))
    create_study(engine, definition("waiting"))
    create_study(engine, definition("ended"))
    request_cancel(engine, "ended")
    found = totals(engine)
    assert found.studies == {StudyState.RUNNING: 2, StudyState.QUEUED: 1, StudyState.CANCELLED: 1}
    assert 0 < found.oldest_queued_s < 3600
    assert (found.n_leases_held, found.n_leases_expired) == (1, 1)
    assert found.runs == {
        (Stage.SEARCH, RunState.COMPLETE): 1,
        (Stage.SEARCH, RunState.RUNNING): 1,
        (Stage.CONFIRM, RunState.COMPLETE): 1,
    }
    assert found.train_s == {Stage.SEARCH: 4.0, Stage.CONFIRM: 3.0, Stage.SENSITIVITY: 0.0}
