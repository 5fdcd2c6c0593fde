"""Studies to look at: a finished one with everything, a running one, one that failed, one with hostile texts."""

from __future__ import annotations

import random
from pathlib import Path

from sqlalchemy import Engine

from search.records import Point, RunOutcome
from search.run_log import RunLog, log_file
from search.states import FailureKind, RunState, Stage, StudyState
from service.database import SqlStore, queries
from service.database.studies import create_study
from tasks.engine.protocol import Cost
from tests.service.database.fill import complete, definition, fill_ladder, leased, run

HOSTILE = "<img src=x onerror=alert(1)> {{ 7 * 7 }} </script>"
OPTIMIZERS = [{"name": "admetar"}, {"name": "admetas"}, {"name": "sgdm"}, {"name": "adamw"}]
DIVERGED = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="loss is nan")
_REACHES = {"admetar": 0.955, "admetas": 0.948, "sgdm": 0.94, "adamw": 0.935}


def fill(engine: Engine, storage: Path) -> None:
    """All the studies: a finished one, `digits-four`, one of several sizes, `ladder`, a running one, `running`, …

    Two trials have logs.
    """
    store = SqlStore(engine)
    _finished(store)
    _as_the_paper(store)
    fill_ladder(store)
    _running(store)
    lease, _ = leased(store, definition("broken"))
    store.set_study_state(lease, StudyState.FAILED, reason=f"the driver ended: {HOSTILE}")
    create_study(engine, definition("waiting"))
    for label, number in (("admetar", 7), ("sgdm", 10)):
        for each in queries.get_trial(engine, "digits-four", label, number).runs:
            log = RunLog(log_file(storage / queries.run_files(engine, each.id).folder, 1))
            for i in range(1, 13):
                log.say(f"epoch {i}, step {20 * i}: {HOSTILE}")
            log.close()


def _finished(store: SqlStore) -> None:
    study = definition(
        "digits-four",
        optimizers=OPTIMIZERS,
        budget={"trials_per_optimizer": 16, "target": 0.9},
        confirm={"top_k": 1, "seeds": [0, 1, 2]},
        sensitivity={},
    )
    lease, searches = leased(store, study)
    draw = random.Random(0)
    for search in searches:
        top, best = _REACHES[search.optimizer], {}
        for number in range(16):
            value = top - 0.02 * (number % 5) - 0.01 * draw.random() if number != 7 else top
            params = {"lr": 10 ** draw.uniform(-4, -1), "lambd": 10 ** draw.uniform(-2, -0.4)}
            best = params if number == 7 else best
            outcome = complete(value, test_accuracy=value - 0.004)
            points = curve_to(
                value, 12, pace=1 + 0.03 * len(search.label) - 0.15 * (number % 5) + 0.1 * (7 * number % 16) / 16
            )
            if number % 5 == 3:
                outcome, points = RunOutcome(state=RunState.PRUNED, value=points[2].value), points[:3]
            elif number == 10:
                error = f"Traceback (most recent call last):\nFloatingPointError: {HOSTILE}"
                outcome, points = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error=error), points[:1]
            run(store, lease, search, number, outcome, params=params, points=points)
        for seed in range(3):
            value = top + 0.003 * (seed - 1) + 0.0005 * draw.random()
            outcome = complete(value, test_accuracy=value - 0.004)
            confirmed = {"params": best, "points": curve_to(value, 12)}
            run(store, lease, search, 7, outcome, stage=Stage.CONFIRM, seed=seed, **confirmed)
        for number, places in enumerate((-3, -2, -1, 1, 2, 3)):
            value = top - (0.004 if places < 0 else 0.002 * len(search.label)) * places**2
            outcome = complete(value) if (search.label, places) != ("sgdm", 3) else DIVERGED
            around = {**best, "lr": best["lr"] * 30 ** (places / 3)}
            run(store, lease, search, number, outcome, stage=Stage.SENSITIVITY, seed=0, params=around)
    store.set_study_state(lease, StudyState.COMPLETED)


def _as_the_paper(store: SqlStore) -> None:
    """Two main results and an ablation on a task and model of the paper's."""
    study = definition(
        "cifar10-resnet110",
        task={"name": "cifar10", "model": "resnet110"},
        optimizers=[
            {"name": "admetas"},
            {"name": "sgdm"},
            {"name": "admetas", "label": "admetas-no-lf", "fixed": {"slow_step": None}},
        ],
    )
    lease, searches = leased(store, study)
    for search, accuracy in zip(searches, (0.9421, 0.9366, 0.935), strict=True):
        run(store, lease, search, 0, complete(accuracy), params={"lr": 0.1})
        for seed in range(3):
            value = accuracy + 0.001 * (seed - 1)
            outcome = complete(value, test_accuracy=value - 0.002)
            run(store, lease, search, 0, outcome, stage=Stage.CONFIRM, seed=seed, params={"lr": 0.1})
    store.set_study_state(lease, StudyState.COMPLETED)


def _running(store: SqlStore) -> None:
    lease, searches = leased(store, definition("running"))
    run(store, lease, searches[0], 0, complete(0.9, test_accuracy=0.89), points=curve_to(0.9, 5))
    run(store, lease, searches[0], 1, None, points=curve_to(0.8, 2))


def curve_to(top: float, n_epochs: int, *, pace: float = 1.0) -> list[Point]:
    """A curve that ends there; `pace` is a factor of its seconds and of its memory."""
    return [
        Point(
            epoch=epoch,
            step=20 * epoch,
            value=(value := top * (1 - 0.6 ** (epoch + 1)) if epoch < n_epochs else top),
            metrics={"val_accuracy": value, "val_loss": 2 * (1 - value), "train_loss": 1.8 * (1 - value)},
            lr=0.1,
            cost=Cost(train_s=pace * (1.3 + 0.1 * (epoch % 3)), peak_memory_bytes=round(3e8 * pace)),
        )
        for epoch in range(1, n_epochs + 1)
    ]
