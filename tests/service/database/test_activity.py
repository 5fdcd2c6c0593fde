"""What trains now and what waits."""

from __future__ import annotations

from sqlalchemy import Engine

from service.database import SqlStore
from service.database.queries import active_runs, queued_studies
from service.database.studies import create_study
from tests.service.database.fill import complete, definition, leased, run


def test_what_trains_and_what_waits(engine: Engine, store: SqlStore) -> None:
    lease, searches = leased(store, definition("busy"))
    run(store, lease, searches[0], 0, complete(0.9))
    trains = run(store, lease, searches[1], 0, None)
    for name, priority in (("later", 0), ("first", 5)):
        create_study(engine, definition(name, priority=priority))
    (active,) = active_runs(engine)
    assert (active.run, active.study, active.label, active.trial) == (trains.id, "busy", "sgdm", 0)
    assert [study.name for study in queued_studies(engine)] == ["first", "later"]
