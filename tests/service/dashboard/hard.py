"""Studies that are hard to show: nine optimizers, long names, 200 trials, searches that failed, many tasks."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from admeta.registry import known_optimizers
from search.records import AttemptStart, Lease, RunOutcome, SearchRecord
from search.run_log import RunLog, log_file
from search.states import FailureKind, RunState, Stage, StudyState
from service.database import SqlStore, queries
from tests.service.dashboard.fill import curve_to
from tests.service.database.fill import complete, definition, leased

ENDED = "digits-nine-optimizers-of-the-paper-and-their-baselines-second-attempt-with-warm-up-and-clipping"
RUNNING = "digits-running-now-with-a-name-that-is-longer-than-any-column-of-any-table-and-goes-on-and-on"
LONG = "admetas-without-the-forward-looking-part-and-with-a-rather-long-label"
ALSO_LONG = "sgdm_with_nesterov_momentum_and_no_separator_that_a_line_could_break_at"
_LOG: dict[str, Any] = {"type": "float", "log": True}
_RATES = {"lr": {**_LOG, "low": 1e-4, "high": 0.1}, "weight_decay": {**_LOG, "low": 1e-6, "high": 0.01}}
_ADMETA = {**_RATES, "lambd": {**_LOG, "low": 0.01, "high": 0.4}, "k": {"type": "int", "low": 1, "high": 12}}
_BETAS = {"betas": {"type": "categorical", "choices": [[0.9, 0.999], [0.95, 0.98]]}}
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "admetar", "space": {**_ADMETA, **_BETAS}},
    {"name": "admetas", "space": _ADMETA},
    {"name": "admetas", "label": LONG, "space": _ADMETA},
    {"name": "sgdm", "label": ALSO_LONG, "space": _RATES, "fixed": {"momentum": 0.9}},
    *({"name": name, "space": _RATES} for name in ("adam", "adamw", "radam", "ranger", "adabelief")),
]
FAILED = ("ranger", "adabelief")
DESCRIPTION = (
    "Every optimizer of the paper on digits with the same budget, after the first attempt had a learning rate that was "
    "too high for two of them. See https://example.org/notes/2026-11/attempts#second for what was changed, and why."
)
ERROR = (
    "Traceback (most recent call last):\n"
    '  File "/opt/venv/lib/python3.12/site-packages/tasks/engine/a_module_with_a_long_name/a.py", line 214, in step\n'
    "RuntimeError: The size of tensor a (128) must match the size of tensor b (64) at non-singleton dimension 0; "
    "the_name_of_a_parameter_group_without_any_place_to_break_the_line_at_all_0123456789"
)
WORKERS = [(f"10.20.30.{4 + i // 4}", f"cuda:{i % 4}") for i in range(8)]


class Cluster:
    """Workers, each free at a time of its own; a run goes to the one that is free first."""

    def __init__(self, engine: Engine, start: datetime) -> None:
        self.now = start
        self.free = {worker: start + timedelta(seconds=2 * i) for i, worker in enumerate(WORKERS)}
        self.store = SqlStore(engine, clock=lambda: self.now)

    def run(
        self,
        lease: Lease,
        search: SearchRecord,
        number: int,
        outcome: RunOutcome | None,
        *,
        params: dict[str, Any],
        stage: Stage = Stage.SEARCH,
        seed: int = 100,
        epochs: int = 12,
        value: float = 0.5,
        lost: bool = False,
    ) -> None:
        """One run; the attempt before is interrupted where `lost`. It goes on where `outcome` is None."""
        created = self.store.create_run(lease, search.id, trial_number=number, stage=stage, seed=seed, params=params)
        for attempt in ("first", "second") if lost else ("only",):
            node, device = worker = min(self.free, key=lambda one: (self.free[one], one))
            self.now = self.free[worker] + timedelta(seconds=3)
            self.store.start_attempt(lease, created.id)
            start = AttemptStart(
                node=node,
                pid=1234,
                device=device,
                resumed_from_epoch=0,
                environment={"torch": "2.9.1", "device": device},
            )
            points = curve_to(value, 12)[: 2 if attempt == "first" else epochs]
            self.store.add_points(lease, created.id, points, start=start)
            if outcome is not None:
                self.now += timedelta(seconds=7 * len(points))
            self.free[worker] = self.now if outcome is not None else datetime.max.replace(tzinfo=UTC)
            if attempt == "first":
                self.store.interrupt_attempt(lease, created.id, reason="the node 10.20.30.5 was taken away")
        if outcome is not None:
            self.store.finish_run(lease, created.id, outcome)


def fill_hard(engine: Engine, storage: Path) -> None:
    """The ended and the running study, a queued one, and results of more tasks."""
    now = datetime.now(UTC)
    _ended(Cluster(engine, now - timedelta(hours=5)))
    _running(Cluster(engine, now - timedelta(minutes=40)))
    _more_tasks(Cluster(engine, now - timedelta(days=3)))
    for number in range(3):
        for each in queries.get_trial(engine, ENDED, "ranger", number).runs:
            log = RunLog(log_file(storage / queries.run_files(engine, each.id).folder, 1))
            for line in ERROR.splitlines():
                log.say(line)
            log.close()


def _study(name: str, **changes: Any) -> Any:
    return definition(
        name,
        description=DESCRIPTION,
        task={"name": "digits", "epochs": 12},
        optimizers=OPTIMIZERS,
        sampler={"name": "tpe", "seed": 0},
        budget={"trials_per_optimizer": 200, "max_hours": 6, "gpu_hours": 40, "target": 0.9},
        confirm={"top_k": 1, "seeds": [0, 1, 2]},
        max_concurrent_trials=8,
    ).model_copy(update=changes)


def _search(cluster: Cluster, lease: Lease, search: SearchRecord, n: int, draw: random.Random) -> dict[str, Any]:
    """n trials, and the settings of the best."""
    best: tuple[float, dict[str, Any]] = (0.0, {})
    for number in range(n):
        params = _settings(search, draw)
        value = 0.96 - 0.02 * abs(_place(search) - 3) ** 0.5 - 0.05 * draw.random() ** 2
        epochs, outcome = 12, complete(value, test_accuracy=value - 0.004)
        if search.label in FAILED or number % 17 == 5:
            diverged = search.label != "ranger"
            kind = FailureKind.DIVERGED if diverged else FailureKind.ERROR
            epochs, outcome = 1, RunOutcome(state=RunState.FAIL, failure=kind, error=ERROR)
        elif number % 5 == 3:
            epochs, outcome = 3, RunOutcome(state=RunState.PRUNED, value=0.8 * value)
        elif value > best[0]:
            best = value, params
        lost = number % 23 == 9
        cluster.run(lease, search, number, outcome, params=params, epochs=epochs, value=value, lost=lost)
    return best[1]


def _place(search: SearchRecord) -> int:
    return [one.get("label", one["name"]) for one in OPTIMIZERS].index(search.label)


def _settings(search: SearchRecord, draw: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, parameter in OPTIMIZERS[_place(search)]["space"].items():
        if parameter["type"] == "categorical":
            found[name] = draw.choice(parameter["choices"])
        elif parameter["type"] == "int":
            found[name] = draw.randint(parameter["low"], parameter["high"])
        else:
            found[name] = 10 ** draw.uniform(math.log10(parameter["low"]), math.log10(parameter["high"]))
    return found


def _ended(cluster: Cluster) -> None:
    draw = random.Random(0)
    lease, searches = leased(cluster.store, _study(ENDED))
    for search in searches:
        top = _search(cluster, lease, search, 200 if _place(search) == 0 else 12, draw)
        for seed in range(3) if top else ():
            value = 0.96 - 0.02 * abs(_place(search) - 3) ** 0.5 + 0.002 * draw.random()
            outcome = complete(value, test_accuracy=value - 0.004)
            number = _best_trial(cluster.store.engine, ENDED, search.label)
            cluster.run(
                lease, search, number, outcome, params=top, stage=Stage.CONFIRM, seed=seed, epochs=12, value=value
            )
    cluster.store.set_study_state(lease, StudyState.COMPLETED, reason="the budget of 6 hours is used up")


def _best_trial(engine: Engine, study: str, label: str) -> int:
    (best,) = queries.list_trials(engine, study, label=label, order="best", limit=1).items
    return best.number


def _running(cluster: Cluster) -> None:
    draw = random.Random(1)
    lease, searches = leased(cluster.store, _study(RUNNING))
    for search in searches:
        _search(cluster, lease, search, 24 if _place(search) < 2 else 6, draw)
    for search in searches[:6]:
        number = 24 if _place(search) < 2 else 6
        cluster.run(lease, search, number, None, params=_settings(search, draw), epochs=4, value=0.9)


def _more_tasks(cluster: Cluster) -> None:
    names: Sequence[str] = ("sgd", "sgdm", "admetas", "adam", "adamw", "radam", "ranger", "adabelief", "admetar")
    for n, task in enumerate(
        (
            {"name": "cifar10", "model": "resnet110"},
            {"name": "cifar100", "model": "resnet110"},
            {"name": "synthetic", "model": "rosenbrock"},
            {"name": "fsdd"},
            {"name": "digits", "epochs": 3},
        )
    ):
        some = sorted(known_optimizers()) if n == 4 else names
        study = definition(f"matrix-{task['name']}-{n}", task=task, optimizers=[{"name": name} for name in some])
        lease, searches = leased(cluster.store, study)
        for i, search in enumerate(searches):
            value = 0.7 + 0.01 * ((i + 3 * n) % 9)
            cluster.run(lease, search, 0, complete(value), params={"lr": 0.1}, value=value)
            for seed in range(3):
                outcome = complete(value + 0.003 * seed, test_accuracy=value)
                cluster.run(lease, search, 0, outcome, params={"lr": 0.1}, stage=Stage.CONFIRM, seed=seed, value=value)
        cluster.store.set_study_state(lease, StudyState.COMPLETED)
