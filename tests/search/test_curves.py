"""Curves: what is new, what was trained again, and what it cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search.assignment import Curve
from search.records import Point, RunRecord, changed_points, copied_points, with_points
from search.states import RunState, Stage
from tasks.engine.protocol import Cost

RUN = RunRecord(
    id=1, search_id=1, trial_number=0, stage=Stage.SEARCH, seed=0, params={}, state=RunState.RUNNING, epoch=3, step=30
)


def point(epoch: int, value: float = 0.5, *, train_s: float = 1.0) -> Point:
    return Point(epoch=epoch, step=10 * epoch, value=value, metrics={}, cost=Cost(train_s=train_s, gpu_s=train_s))


STORED = [point(1), point(2), point(3)]


@pytest.mark.parametrize(
    ("reported", "new"),
    [
        ([point(4)], [4]),
        ([point(1), point(2), point(3), point(4)], [4]),  # a checkpoint's whole curve
        ([point(2)], []),  # the answer was lost
        ([point(3, 0.6, train_s=1.1), point(2, 0.5, train_s=1.2)], [2, 3]),  # trained again, otherwise
        ([], []),
    ],
)
def test_what_changes_the_curve(reported: list[Point], new: list[int]) -> None:
    assert [p.epoch for p in changed_points(reported, stored=STORED)] == new


def test_a_run_is_as_far_as_its_farthest_point_and_costs_all_that_was_trained() -> None:
    again = with_points(RUN, [point(2, 0.7)])
    assert (again.epoch, again.step, again.value, again.cost.gpu_s) == (3, 30, 0.7, 1.0)
    further = with_points(again, [point(3, 0.8), point(4, 0.9)])
    assert (further.epoch, further.step, further.value, further.cost.train_s) == (4, 40, 0.9, 3.0)


def test_a_copy_holds_no_card() -> None:
    assert copied_points(STORED[:1]) == [replace(STORED[0], cost=Cost(train_s=1.0))]


def test_a_checkpoint_keeps_the_curve_and_one_of_version_0_1_is_read() -> None:
    kept = Curve(points=STORED)
    assert Curve.from_state(kept.to_state()) == kept
    flat = [{**state, **state.pop("cost")} for state in kept.to_state()]
    for state in flat:
        state.pop("cost", None)
    assert Curve.from_state(flat) == kept


def test_seconds_add_up_and_of_memory_the_peak_counts() -> None:
    first, second = Cost(train_s=1.0, gpu_s=0.5, peak_memory_bytes=300), Cost(train_s=2.0, peak_memory_bytes=200)
    assert first + second == Cost(train_s=3.0, gpu_s=0.5, peak_memory_bytes=300)
