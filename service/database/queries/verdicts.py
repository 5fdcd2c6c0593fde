"""What sets a study's optimizers apart: significance on the confirm runs, divergence, time to target."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

import tasks.registry
from search.analysis import compare_all, divergence_rate, time_to_target
from search.records import Point, RunOutcome
from search.states import RunState, SignificanceTest
from service.database.models import CurvePoint, Run, Study
from service.models import PairView, RateView, TargetView
from tasks.engine.protocol import Cost
from tasks.errors import TaskError


def pairs(confirm_runs: Mapping[str, Sequence[Run]], *, direction: str, test: SignificanceTest) -> list[PairView]:
    """Every two optimizers compared.

    Args:
        confirm_runs: by label, in the order wanted, the runs of the trial by which the optimizer stands.
    """
    samples: dict[str, dict[Hashable, float]] = {
        label: {run.seed: run.value for run in runs if run.state == RunState.COMPLETE and run.value is not None}
        for label, runs in confirm_runs.items()
    }
    confirmed = {label: values for label, values in samples.items() if values}
    return [
        PairView(
            a=pair.a,
            b=pair.b,
            test=pair.result.test.value,
            difference=pair.result.difference,
            low=pair.result.low,
            high=pair.result.high,
            p_value=pair.result.p_value,
            p_holm=pair.p_holm,
            better=pair.better,
            note=pair.result.note,
        )
        for pair in compare_all(confirmed, direction=direction, test=test)
    ]


def rate(outcomes: Sequence[RunOutcome]) -> RateView:
    """The divergence rate of some runs."""
    found = divergence_rate(outcomes)
    return RateView(count=found.count, n=found.n, rate=found.rate, low=found.low, high=found.high)


def target_of(study: Study) -> float | None:
    """The study's own target, or else the task's for its default metric."""
    stated: float | None = study.definition["budget"].get("target")
    if stated is not None:
        return stated
    try:
        info = tasks.registry.get(study.task)
    except TaskError:  # a study may outlive the installation of its task
        return None
    return info.target_value if study.metric == info.default_metric else None


def times_to_target(
    session: Session, runs: Mapping[int, Sequence[Run]], *, target: float, direction: str
) -> dict[int, TargetView]:
    """By search, when its runs first met the target.

    Args:
        runs: by search the runs to look at; those that were cancelled or still go on say nothing.
    """
    counted = {search_id: [run for run in found if run.state.is_finished] for search_id, found in runs.items()}
    curves: dict[int, list[Point]] = {run.id: [] for found in counted.values() for run in found}
    query = (
        select(CurvePoint.run_id, CurvePoint.epoch, CurvePoint.step, CurvePoint.value, CurvePoint.train_s)
        .where(CurvePoint.run_id.in_(curves))
        .order_by(CurvePoint.run_id, CurvePoint.epoch)
    )
    for run_id, epoch, step, value, train_s in session.execute(query):
        curves[run_id].append(Point(epoch=epoch, step=step, value=value, metrics={}, cost=Cost(train_s=train_s)))
    return {
        search_id: TargetView.model_validate(
            time_to_target([curves[run.id] for run in found], target=target, direction=direction).to_json()
        )
        for search_id, found in counted.items()
        if found
    }
