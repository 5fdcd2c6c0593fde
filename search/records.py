"""What the database remembers, as plain values: studies, searches, runs, attempts and curve points.

Owns the words (states, stages) and the row types that the driver and the service exchange. How they are
stored is the store's business; how they are decided is the coordinator's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from search.definition import StudyDefinition
from search.states import FailureKind, RunState, Stage, StudyState
from tasks.engine.protocol import Cost


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """One row of studies."""

    id: str
    name: str
    definition: StudyDefinition
    state: StudyState
    reason: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


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
    were trained again too; 0 for a run that took over another one's curve.
    """

    id: int
    search_id: int
    trial_number: int
    stage: Stage
    seed: int
    params: Mapping[str, Any]
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
    """Where an attempt of a run began, as its worker tells with the first report."""

    node: str
    pid: int
    device: str
    resumed_from_epoch: int
    environment: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class CompetingStudy:
    """Another study at work on the same cluster: its priority, and the runs it has or wants now with what each holds.

    `gpus` of a study that leaves it to the cluster ('auto') is the store's guess: one where it has used any.
    """

    priority: int
    n_runs: int
    cpus: float
    gpus: float


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to drive a study. `owner` is unique to one driver's life."""

    study_id: str
    owner: str
    ttl_s: float
