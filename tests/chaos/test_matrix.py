"""A round of the kill matrix for each process; `python -m tests.chaos` makes twenty, of nodes too, on two databases.

Targets share an installation where they can: its start and its end take longer than a round.
"""

from __future__ import annotations

import pytest

from tests.chaos.campaign import Database, Target, run
from tests.chaos.postgres import programs

pytestmark = [pytest.mark.slow, pytest.mark.ray]


@pytest.mark.parametrize(
    ("database", "campaign"),
    [
        pytest.param(
            Database.SQLITE,
            [[Target.WORKER, Target.SERVICE], [Target.DESCRIPTORS, Target.DISK_FULL, Target.READ_ONLY]],
            id="worker, service, outages",
        ),
        pytest.param(Database.SQLITE, [[Target.IDLE_CONNECTIONS, Target.CLOCK_STEP]], id="idle connections, clock"),
        pytest.param(
            Database.POSTGRESQL,
            [[Target.DRIVER, Target.DATABASE_5S]],
            id="driver, database",
            marks=pytest.mark.postgres,
        ),
    ],
)
def test_nothing_is_lost(database: Database, campaign: list[list[Target]]) -> None:
    if database is Database.POSTGRESQL and programs() is None:
        pytest.skip("PostgreSQL's server programs (initdb, pg_ctl) are not installed")
    possible = [[target for target in strikes if target.lacks is None] for strikes in campaign]
    tally = run(possible, database, seed=1)
    assert tally.faults == []
    assert tally.n_rounds == sum(map(len, possible))
    lacking = {target.lacks for strikes in campaign for target in strikes} - {None}
    if lacking:
        pytest.skip(f"in part: {'; '.join(sorted(map(str, lacking)))}")
