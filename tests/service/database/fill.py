"""Small studies for the database tests, driven by hand through the store."""

from __future__ import annotations

import math
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


WIDTHS = (64, 128, 256)


def fill_ladder(store: SqlStore) -> None:
    """Study 'ladder': AdamW and AdmetaR at three widths and the predicted one, 512, by a formula of lr and width.

    AdmetaR reaches AdamW's final loss after 4 of its 5 epochs; the best lr of both falls with the root of the width.
    """
    space = {"lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True}}
    study = definition(
        "ladder",
        task={"name": "gpt", "model": "micro", "epochs": 5},
        optimizers=[{"name": "adamw", "space": space}, {"name": "admetar", "space": space}],
        scale={"field": "width", "values": list(WIDTHS), "predict": 512, "verify": 3},
        confirm={"top_k": 1, "seeds": [0, 1]},
    )
    lease, searches = leased(store, study)
    for search in searches:
        width = int(search.label.rpartition("width")[2])
        best = 0.01 * (64 / width) ** 0.5
        factors = (1, 0.5, 2) if width == 512 else (0.125, 0.25, 0.5, 1, 2, 4, 8)
        for number, factor in enumerate(factors):
            loss = 2.0 + 0.02 * math.log(factor) ** 2
            run(store, lease, search, number, complete(loss), params={"lr": float(f"{best * factor:.4g}")})
        params = {"lr": float(f"{best:.4g}")}
        ahead = 0.2 if search.optimizer == "admetar" else 0.0
        for seed in (0, 1):
            points = curve(*(2.8 - 0.2 * epoch - ahead + 0.001 * seed for epoch in range(5)))
            outcome = complete(points[-1].value or 0.0)
            confirmed = {"params": params, "points": points}
            run(store, lease, search, factors.index(1), outcome, stage=Stage.CONFIRM, seed=seed, **confirmed)
    store.set_study_state(lease, StudyState.COMPLETED)
