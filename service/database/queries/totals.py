"""Sums over the whole database, for whoever watches the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine, func, select

from search.states import RunState, Stage, StudyState
from service.database.engine import reading
from service.database.lease import lease_is_free
from service.database.models import Run, Study


@dataclass(frozen=True, kw_only=True)
class Totals:
    """How much there is of everything; seconds are of all runs together."""

    studies: Mapping[StudyState, int]
    oldest_queued_s: float
    n_leases_held: int
    n_leases_expired: int
    runs: Mapping[tuple[Stage, RunState], int]
    train_s: Mapping[Stage, float]
    gpu_s: Mapping[Stage, float]


def totals(engine: Engine) -> Totals:
    """The totals as they are now; two passes, one over the studies and one over the runs."""
    is_free = lease_is_free(engine)
    has_lease = Study.lease_owner.is_not(None)
    by_state = select(
        Study.state,
        func.count(),
        func.min(Study.created_at),
        func.count().filter(has_lease, ~is_free),
        func.count().filter(has_lease, is_free),
    ).group_by(Study.state)
    by_run = select(Run.stage, Run.state, func.count(), func.sum(Run.train_s), func.sum(Run.gpu_s))
    with reading(engine) as session:
        studies = session.execute(by_state).all()
        runs = session.execute(by_run.group_by(Run.stage, Run.state)).all()
    train_s, gpu_s = dict.fromkeys(Stage, 0.0), dict.fromkeys(Stage, 0.0)
    for stage, _, _, train, gpu in runs:
        train_s[stage] += train
        gpu_s[stage] += gpu
    queued = [oldest for state, _, oldest, _, _ in studies if state == StudyState.QUEUED]
    return Totals(
        studies={state: n for state, n, *_ in studies},
        oldest_queued_s=max(0.0, (datetime.now(UTC) - queued[0]).total_seconds()) if queued else 0.0,
        n_leases_held=sum(held for *_, held, _ in studies),
        n_leases_expired=sum(expired for *_, expired in studies),
        runs={(stage, state): n for stage, state, n, _, _ in runs},
        train_s=train_s,
        gpu_s=gpu_s,
    )
