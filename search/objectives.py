"""What a study searches for: its metric, and further objectives, of which a search approaches the Pareto front.

Owns their names and directions, the values of a trial, and which trials are on a front. NumPy and Optuna are loaded
where a front is computed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from search.errors import field_error, nearest_hint
from search.space import Strict
from search.states import Direction
from tasks.engine.protocol import Cost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from search.records import Point
    from tasks.registry import TaskInfo

COSTS = tuple(field.name for field in fields(Cost))
"""What every run costs, whatever it trains: objectives of which less is better."""

MEMORY = "peak_memory_bytes"

MOST = 2
"""Further objectives of a study. With four in all, most trials of a short search are on the front."""


class Objective(Strict):
    """A validation metric, and whether more or less of it is better. As a further objective also a cost of the run."""

    metric: str = Field(description="A validation metric of the task; GET /v1/tasks lists them.")
    direction: Direction = Field(description="Default: the metric's own.")


def _as_objective(value: Any) -> Any:
    """A name as the object with that metric."""
    return {"metric": value} if isinstance(value, str) else value


Further = Annotated[Objective, BeforeValidator(_as_objective, json_schema_input_type=Objective | str)]
"""A further objective; a name alone has the direction that is known of it."""


def with_further(raw: Mapping[str, Any], info: TaskInfo | None) -> dict[str, Any]:
    """The raw study with each of its further objectives as an object, with its direction where that is known.

    Args:
        info: the study's task; None where it is unknown, which another validator reports.
    """
    objectives = raw.get("objectives")
    if not isinstance(objectives, list):
        return dict(raw)
    return {**raw, "objectives": [_with_direction(one, info) for one in objectives]}


def _with_direction(value: Any, info: TaskInfo | None) -> Any:
    one = _as_objective(value)
    if not isinstance(one, dict) or "direction" in one or not isinstance(one.get("metric"), str):
        return one
    metric = one["metric"]
    if metric in COSTS:
        return {**one, "direction": Direction.MINIMIZE}
    known = None if info is None else info.metrics.get(metric)
    if known is None and info is not None and info.open_metrics:
        return one  # then `direction` is missing, which only the author knows
    return {**one, "direction": known or Direction.MAXIMIZE}


def check_further(objectives: Sequence[Objective], *, first: Objective, info: TaskInfo) -> None:
    """Check the names and directions of further objectives.

    Raises:
        ValidationError: a name is unknown or given twice, or a cost is to be increased.
    """
    for i, one in enumerate(objectives):
        at = ("objectives", i, "metric")
        if one.metric in (first.metric, *(other.metric for other in objectives[:i])):
            message = f"'{one.metric}' is an objective already; list what a trial is judged by besides '{first.metric}'"
            raise field_error("listed_twice", message, at=at, value=one.metric)
        if one.metric in COSTS:
            if one.direction.is_maximize:
                message = f"must be minimize: '{one.metric}' is a cost, of which less is better"
                raise field_error("cost", message, at=("objectives", i, "direction"), value=one.direction.value)
        elif not info.has_metric(one.metric):
            hint = nearest_hint(one.metric, (*info.metrics, *COSTS))
            message = f"is neither a metric of task '{info.name}' nor a cost of a run; {hint}"
            raise field_error("unknown_metric", message, at=at, value=one.metric)


def value_of(name: str, points: Sequence[Point]) -> float | None:
    """What the trial with this curve has of an objective: a metric at its end, or what its training cost.

    Seconds are those of the median epoch times the number of epochs, so that what happens once (a worker's first
    kernels, capture, compilation) does not decide. None where the run did not report the metric.
    """
    if name not in COSTS:
        return points[-1].metrics.get(name) if points else None
    of_epoch = [float(getattr(point.cost, name)) for point in points]
    return cost_of(name, of_epoch) if of_epoch else None


def cost_of(name: str, of_epoch: Sequence[float]) -> float:
    """A cost of a training from that of each epoch; see `value_of`."""
    return statistics.median(of_epoch) * len(of_epoch) if Cost.adds_up(name) else max(of_epoch)


def on_front(values: Sequence[Sequence[float]], directions: Sequence[Direction]) -> list[bool]:
    """For each trial, whether no other one is at least as good in all objectives and better in one.

    Args:
        values: of each trial, one for each objective.
    """
    from optuna.study._multi_objective import _is_pareto_front

    if not values:
        return []
    found: list[bool] = _is_pareto_front(_losses(values, directions), assume_unique_lexsorted=False).tolist()
    return found


def corners(values: Sequence[Sequence[float]], directions: Sequence[Direction]) -> tuple[list[float], list[float]]:
    """The best and the worst value of each objective: the ideal point, and the reference of a hypervolume.

    Both are empty where there is no trial.
    """
    if not values:
        return [], []
    pairs = list(zip(zip(*values, strict=True), directions, strict=True))
    return [of.best(column) for column, of in pairs], [of.worst(column) for column, of in pairs]


def hypervolume(
    values: Sequence[Sequence[float]],
    directions: Sequence[Direction],
    *,
    ideal: Sequence[float],
    reference: Sequence[float],
) -> float | None:
    """Share that the trials dominate of the box between the ideal point and the reference, from 0 to 1.

    None where there is no trial, or the box is flat. What lies beyond the reference in an objective counts as there.
    """
    import numpy as np
    from optuna._hypervolume import compute_hypervolume

    if not values:
        return None
    low, high = _losses([ideal, reference], directions) / 2  # so that the difference of two losses is finite
    if (high <= low).any():
        return None
    places = np.clip((_losses(values, directions) / 2 - low) / (high - low), 0.0, 1.0)
    return float(compute_hypervolume(places, np.ones(len(low))))


def _losses(values: Sequence[Sequence[float]], directions: Sequence[Direction]) -> NDArray[np.float64]:
    import numpy as np

    return np.array(values, dtype=float) * [-direction.sign for direction in directions]
