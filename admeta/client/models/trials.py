"""Trials, their runs, attempts, curves and logs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from admeta.client.models.base import Finite, View


class PointView(View):
    """One evaluation: a point of the curve."""

    epoch: int
    step: int
    value: float | None
    metrics: dict[str, Finite]
    lr: float | None


class AttemptView(View):
    """One attempt of a run: a start on a worker."""

    attempt: int
    state: str
    started_at: datetime
    finished_at: datetime | None
    node: str | None
    device: str | None
    resumed_from_epoch: int | None
    error: str | None
    environment: dict[str, Any] | None = Field(
        default=None,
        description="In single reads of a run only: device, versions, source commit, how the steps ran, the share of a "
        "card and why; null until the attempt has begun.",
    )


class RunView(View):
    """One training execution with one seed."""

    id: int
    stage: str
    seed: int
    state: str
    value: float | None
    test_metrics: dict[str, Finite]
    failure: str | None
    error: str | None
    epoch: int
    step: int
    train_s: float
    gpu_s: float
    peak_memory_bytes: int = Field(
        default=0, description="Most device memory held; without a GPU the process's peak. 0: not measured."
    )
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempts: list[AttemptView]


class TrialView(View):
    """One configuration = one Optuna trial, with its runs (search stage first, then confirm seeds)."""

    number: int
    label: str
    optimizer: str
    state: str
    value: float | None
    params: dict[str, Any] = Field(description="What the sampler drew.")
    settings: dict[str, Any] = Field(description="params and fixed: constructs the optimizer.")
    runs: list[RunView]
    curve: list[PointView] | None = Field(default=None, description="Of the search run; in single reads only.")


class StudyRunView(RunView):
    """A run with what it belongs to."""

    study: str = Field(description="The study's name.")
    label: str
    optimizer: str
    trial: int
    settings: dict[str, Any] = Field(description="Constructs the optimizer: cls(parameters, **settings).")
    logs: list[int] = Field(default=[], description="In single reads only: the attempts that left a log.")


class LogView(View):
    """A part of what an attempt of a run printed; REST sends the text, and the rest in headers."""

    run: int
    attempt: int
    text: str
    offset: int = Field(description="Where the next part begins, in bytes since the attempt began.")
    ended: bool = Field(description="Nothing will be added to this attempt's log.")
