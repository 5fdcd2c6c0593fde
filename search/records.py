"""Rows of the database as plain values: studies, searches, runs, attempts and curve points.

The driver and the service exchange them. `search.store` says how they are read and written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from search.states import FailureKind, RunState, Stage, StudyState
from tasks.engine.protocol import Cost

if TYPE_CHECKING:
    from search.definition import StudyDefinition  # brings all spaces, samplers and tasks, which no worker needs


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """One row of studies. `data_fingerprint` is that of its data (`search.placement.check`), where it is known.

    Attributes:
        n_extensions: how often it was extended after its end.
        n_seen: those of them before which verdicts could be seen.
        ended_s: seconds for which it had ended before it was extended.
    """

    id: str
    name: str
    definition: StudyDefinition
    state: StudyState
    reason: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    data_fingerprint: str | None = None
    n_extensions: int = 0
    n_seen: int = 0
    ended_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """One optimizer's search within a study; `optuna_name` is the name of its Optuna study."""

    id: int
    study_id: str
    label: str
    optimizer: str
    optuna_name: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """One evaluation of a run: a point of its curves.

    `value` is the objective's metric. `cost` is that since the evaluation before.
    """

    epoch: int
    step: int
    value: float | None
    metrics: Mapping[str, float]
    lr: float | None = None
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended."""

    state: RunState
    value: float | None = None
    failure: FailureKind | None = None
    error: str | None = None
    test_metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One training execution of a trial with one seed.

    Unique by (search, trial_number, stage, seed). `attempt` counts from 1; it is 0 before the first start.
    `epoch` and `step` are those of the last point stored. `n_epochs` are the epochs trained in all attempts, those that
    were trained again too; 0 for a run that took over another one's curve. `taken_from` names the trials of
    earlier studies from which a warm start took the settings, or from whose settings it took a step.
    """

    id: int
    search_id: int
    trial_number: int
    stage: Stage
    seed: int
    params: Mapping[str, Any]
    taken_from: Sequence[Mapping[str, Any]] = ()
    state: RunState
    attempt: int = 0
    n_failures: int = 0  # attempts that count against max_failures (a driver's restart does not)
    epoch: int = 0
    n_epochs: int = 0
    step: int = 0
    value: float | None = None
    failure: FailureKind | None = None
    error: str | None = None
    test_metrics: Mapping[str, float] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True, kw_only=True)
class AttemptStart:
    """Where an attempt of a run started, as its worker reports it."""

    node: str
    pid: int
    device: str
    resumed_from_epoch: int
    environment: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """CPUs and GPUs of a cluster, or those that one run holds."""

    cpus: float
    gpus: float

    def less(self, other: Capacity, *, times: float = 1.0) -> Capacity:
        return Capacity(cpus=self.cpus - times * other.cpus, gpus=self.gpus - times * other.gpus)

    def slots(self, each: Capacity) -> int:
        """Runs of that size that fit; 0 where none does."""
        slots = (self.cpus + 1e-6) / each.cpus
        if each.gpus > 0:
            slots = min(slots, (self.gpus + 1e-6) / each.gpus)
        return max(0, math.floor(slots))


@dataclass(frozen=True, kw_only=True)
class CompetingStudy:
    """Another study that runs on the same cluster: its priority, its unfinished runs, and what each of them holds.

    That is what its driver told last (`Store.set_run_size`); nothing before it told any.
    """

    priority: int
    n_runs: int
    cpus: float
    gpus: float


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What runs of a task found out about one kind of card: how many of them share one best (`search.packing`).

    Attributes:
        n_at_once: runs on a card.
        is_settled: whether more were tried without a gain, or have no room.
        reason: why no more, in words.
        totals: training samples a second of all runs on a card, by their number.
        memory_bytes: device memory of a run.
        card_bytes: memory of a card; 0 where it is not known.
        release: the versions that decide memory and speed.
    """

    n_at_once: int
    is_settled: bool
    reason: str
    totals: Mapping[int, float]
    memory_bytes: int
    card_bytes: int
    release: str
    found_at: datetime


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to drive a study. `owner` is unique to one driver's life."""

    study_id: str
    owner: str
    ttl_s: float


def run_folder(study_id: str, label: str, run: RunRecord) -> str:
    """The run's folder for checkpoints and logs, relative to the storage."""
    return f"{study_id}/{label}/{run.trial_number:05d}/{run.stage.value}-{run.seed}"


def changed_points(points: Sequence[Point], *, stored: Sequence[Point]) -> list[Point]:
    """The reported points, by epoch, that are not stored yet or come from another training than the stored one.

    An attempt starts from its run's last checkpoint, which is often older than the last point stored. What it trains
    again replaces what was stored, since the rest of the curve builds on it, and is charged again.
    """
    known = {point.epoch: point for point in stored}
    by_epoch = {point.epoch: point for point in points}
    return [
        point
        for epoch, point in sorted(by_epoch.items())
        if epoch not in known or _training(point) != _training(known[epoch])
    ]


def with_points(run: RunRecord, points: Sequence[Point]) -> RunRecord:
    """The run with these points on its curve: as far as its farthest point, at the cost of all that was trained."""
    last = max(points, key=lambda point: point.epoch)
    farther = last.epoch >= run.epoch
    return replace(
        run,
        epoch=last.epoch if farther else run.epoch,
        step=last.step if farther else run.step,
        value=last.value,
        cost=sum((point.cost for point in points), run.cost),
        n_epochs=run.n_epochs + (len(points) if run.attempt else 0),
    )


def copied_points(points: Sequence[Point]) -> list[Point]:
    """The curve for another run of the same configuration, which holds no card."""
    return [replace(point, cost=replace(point.cost, gpu_s=0.0)) for point in points]


def _training(point: Point) -> tuple[Any, ...]:
    """What differs between two trainings of an epoch: its duration, apart from its result."""
    return point.step, point.value, point.cost.train_s, point.cost.eval_s, point.cost.gpu_s
