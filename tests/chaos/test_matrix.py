"""A round of the kill matrix for each process; `python -m tests.chaos` makes twenty, of nodes too, on two databases."""

from __future__ import annotations

import pytest

from tests.chaos.campaign import Database, Target, run
from tests.chaos.postgres import programs

pytestmark = [pytest.mark.slow, pytest.mark.ray]


@pytest.mark.parametrize(
    ("target", "database", "n_rounds"),
    [
        pytest.param(Target.WORKER, Database.SQLITE, 1, id="worker"),
        pytest.param(Target.SERVICE, Database.SQLITE, 1, id="service"),
        pytest.param(Target.DRIVER, Database.POSTGRESQL, 1, id="driver", marks=pytest.mark.postgres),
        pytest.param(Target.DISK_FULL, Database.SQLITE, 1, id="full disk"),
        pytest.param(Target.READ_ONLY, Database.SQLITE, 1, id="read-only"),
        pytest.param(Target.DESCRIPTORS, Database.SQLITE, 1, id="descriptors"),
        pytest.param(Target.IDLE_CONNECTIONS, Database.SQLITE, 1, id="idle connections"),
        pytest.param(Target.CLOCK_STEP, Database.SQLITE, 1, id="clock"),
        pytest.param(Target.DATABASE_5S, Database.POSTGRESQL, 1, id="database", marks=pytest.mark.postgres),
    ],
)
def test_nothing_is_lost(target: Target, database: Database, n_rounds: int) -> None:
    if database is Database.POSTGRESQL and programs() is None:
        pytest.skip("PostgreSQL's server programs (initdb, pg_ctl) are not installed")
    if target.lacks is not None:
        pytest.skip(target.lacks)
    tally = run(target, database, n_rounds=n_rounds, seed=1)
    assert tally.faults == []
    assert tally.n_rounds == n_rounds
