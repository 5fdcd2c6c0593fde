"""Between rows and the plain records of `search.records`."""

from __future__ import annotations

from typing import Any

from search.definition import StudyDefinition
from search.records import Point, RunRecord, SearchRecord, StudyRecord
from service.database.models import CurvePoint, Run, Search, Study


def study_record(row: Study, definition: StudyDefinition) -> StudyRecord:
    """The study as the driver knows it."""
    return StudyRecord(
        id=row.id,
        name=row.name,
        definition=definition,
        state=row.state,
        reason=row.reason,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def search_record(row: Search) -> SearchRecord:
    """The search as the driver knows it."""
    return SearchRecord(
        id=row.id,
        study_id=row.study_id,
        label=row.label,
        optimizer=row.optimizer,
        optuna_name=row.optuna_name,
    )


def run_record(row: Run) -> RunRecord:
    """The run as the driver knows it."""
    return RunRecord(
        id=row.id,
        search_id=row.search_id,
        trial_number=row.trial_number,
        stage=row.stage,
        seed=row.seed,
        params=row.params,
        state=row.state,
        attempt=row.attempt,
        n_failures=row.n_failures,
        epoch=row.epoch,
        step=row.step,
        value=row.value,
        failure=row.failure,
        error=row.error,
        test_metrics=row.test_metrics,
        gpu_s=row.gpu_s,
        train_s=row.train_s,
    )


def point(row: CurvePoint) -> Point:
    """A stored point."""
    return Point(
        epoch=row.epoch,
        step=row.step,
        value=row.value,
        metrics=row.metrics,
        lr=row.lr,
        train_s=row.train_s,
        eval_s=row.eval_s,
        optimizer_s=row.optimizer_s,
        data_s=row.data_s,
        gpu_s=row.gpu_s,
    )


def point_row(run_id: int, point: Point) -> dict[str, Any]:
    """The values of the row for a point."""
    return {
        "run_id": run_id,
        "epoch": point.epoch,
        "step": point.step,
        "value": point.value,
        "metrics": dict(point.metrics),
        "lr": point.lr,
        "train_s": point.train_s,
        "eval_s": point.eval_s,
        "optimizer_s": point.optimizer_s,
        "data_s": point.data_s,
        "gpu_s": point.gpu_s,
    }
