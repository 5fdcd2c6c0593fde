"""Small studies for the database tests, driven by hand through the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from search.definition import StudyDefinition
from search.records import CardFacts, Lease, Point, RunOutcome, RunRecord, SearchRecord
from search.states import RunState, Stage, StudyState
from service.database import SqlStore
from service.database.studies import create_study
from tasks.engine.protocol import Cost

FACTS = CardFacts(
    n_at_once=8,
    is_settled=True,
    reason="16 gained 1 %",
    totals={2: 200.0, 4: 350.0, 8: 600.0, 16: 606.0},
    memory_bytes=2 * 2**30,
    card_bytes=140 * 2**30,
    release="admeta-search 1, torch 2",
    found_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
)


def definition(name: str = "digits", **changes: Any) -> StudyDefinition:
    """Two optimizers on digits."""
    raw: dict[str, Any] = {
        "name": name,
        "task": {"name": "digits"},
        "optimizers": [{"name": "admetar"}, {"name": "sgdm"}],
        "budget": {"trials_per_optimizer": 4},
    }
    return StudyDefinition.model_validate(raw | changes)


def leased(store: SqlStore, study: StudyDefinition, *, owner: str = "driver") -> tuple[Lease, list[SearchRecord]]:
    """A new study that `owner` drives, and its searches."""
    view, _ = create_study(store.engine, study)
    lease = store.acquire_lease(view.id, owner=owner, ttl_s=60)
    assert lease is not None
    store.set_study_state(lease, StudyState.RUNNING)
    return lease, store.searches(view.id)


def complete(value: float, **test_metrics: float) -> RunOutcome:
    """A run that came to its end."""
    return RunOutcome(state=RunState.COMPLETE, value=value, test_metrics=test_metrics)


def run(
    store: SqlStore,
    lease: Lease,
    search: SearchRecord,
    number: int,
    outcome: RunOutcome | None,
    *,
    stage: Stage = Stage.SEARCH,
    seed: int = 100,
    params: Mapping[str, Any] | None = None,
    points: Sequence[Point] = (),
) -> RunRecord:
    """A run with one attempt and its curve; it goes on where `outcome` is None."""
    record = store.create_run(
        lease,
        search.id,
        trial_number=number,
        stage=stage,
        seed=seed,
        params={"lr": 0.1 * (number + 1)} if params is None else params,
    )
    record = store.start_attempt(lease, record.id)
    if points:
        store.add_points(lease, record.id, points)
    if outcome is not None:
        store.finish_run(lease, record.id, outcome)
    return record


def curve(*values: float, train_s: float = 1.0) -> list[Point]:
    """Points at epochs 1, 2, … with ten steps each."""
    return [
        Point(
            epoch=epoch,
            step=10 * epoch,
            value=value,
            metrics={"val_accuracy": value},
            lr=0.1,
            cost=Cost(train_s=train_s),
        )
        for epoch, value in enumerate(values, start=1)
    ]
