"""Time to target: hits, misses as ∞, and their JSON."""

from __future__ import annotations

import json
import math

import pytest

from search.analysis import AnalysisError, time_to_target
from search.records import Point
from search.states import Direction
from tasks.engine.protocol import Cost


def _curve(*values: float | None) -> list[Point]:
    """One epoch of 10 steps and 2 s of training (and 5 s of evaluation) a value."""
    return [
        Point(epoch=i, step=10 * i, value=value, metrics={}, cost=Cost(train_s=2.0, eval_s=5.0))
        for i, value in enumerate(values, start=1)
    ]


def test_first_evaluation_that_meets_the_target() -> None:
    times = time_to_target([_curve(0.5, 0.9, 0.8, 0.95)], target=0.9, direction=Direction.MAXIMIZE)
    assert (times.epochs, times.steps, times.train_s) == ((2,), (20,), (4.0,))


def test_minimizing() -> None:
    assert time_to_target([_curve(3, 2, 1)], target=2, direction=Direction.MINIMIZE).steps == (20,)


def test_a_miss_is_infinite_and_counts_in_the_median() -> None:
    curves = [_curve(0.9), _curve(0.1, 0.9), _curve(0.1, 0.2)]
    times = time_to_target(curves, target=0.9, direction=Direction.MAXIMIZE)
    assert times.steps == (10, 20, math.inf)
    assert (times.n, times.n_reached, times.median_steps, times.median_train_s) == (3, 2, 20, 4.0)
    assert time_to_target(curves[1:], target=0.9, direction=Direction.MAXIMIZE).median_steps == math.inf


def test_gaps_and_divergence_never_meet_it() -> None:
    curve = _curve(None, math.nan, math.inf, 0.3)
    assert time_to_target([curve, []], target=0.9, direction=Direction.MAXIMIZE).steps == (math.inf, math.inf)
    assert time_to_target([_curve(-math.inf)], target=0.9, direction=Direction.MINIMIZE).n_reached == 0


def test_json_is_strict() -> None:
    times = time_to_target([_curve(0.9), _curve(0.1)], target=0.9, direction=Direction.MAXIMIZE)
    text = json.dumps(times.to_json(), allow_nan=False)
    assert json.loads(text) == {
        "target": 0.9,
        "n": 2,
        "n_reached": 1,
        "epochs": [1, None],
        "steps": [10, None],
        "train_s": [2.0, None],
        "median_steps": None,
        "median_train_s": None,
    }


def test_no_runs() -> None:
    times = time_to_target([], target=1, direction=Direction.MAXIMIZE)
    assert (times.n, times.median_steps) == (0, None)


def test_refuses_an_infinite_target() -> None:
    with pytest.raises(AnalysisError, match="target is inf"):
        time_to_target([], target=math.inf, direction=Direction.MAXIMIZE)
