"""Median and band of curves that end early and are evaluated at different steps."""

from __future__ import annotations

import math

import pytest

from search.analysis import AnalysisError, median_band


def test_median_and_quartiles_by_hand() -> None:
    # At x = 1: 1, 2, 3, 5. Quartiles at positions .75 and 2.25 of 0 … 3: 1.75 and 3.5; median 2.5.
    (point,) = median_band([[(1, 1)], [(1, 2)], [(1, 3)], [(1, 5)]])
    assert (point.x, point.n, point.low, point.median, point.high) == (1, 4, 1.75, 2.5, 3.5)


def test_curves_are_steps_between_their_points() -> None:
    band = median_band([[(1, 10.0), (3, 30.0)], [(2, 20.0), (3, 40.0)]])
    assert [(p.x, p.n, p.median) for p in band] == [(1, 1, 10), (2, 2, 15), (3, 2, 35)]


def test_an_ended_curve_drops_out() -> None:
    curves = [[(1, 1.0), (2, 2.0)], [(1, 5.0)]]
    assert [(p.n, p.median) for p in median_band(curves)] == [(2, 3), (1, 2)]


def test_gaps_keep_the_value_before() -> None:
    band = median_band([[(1, None), (2, 4.0), (3, math.nan), (4, math.inf)]])
    assert [(p.x, p.median) for p in band] == [(2, 4), (3, 4), (4, 4)]


def test_the_band_at_chosen_places() -> None:
    curves = [[(1, 1.0), (2, 2.0), (4, 4.0)], [(1, 5.0), (3, None)]]
    assert [(p.x, p.n, p.median) for p in median_band(curves, at=[0, 1, 3, 5])] == [(1, 2, 3), (3, 2, 3.5)]


def test_of_points_at_the_same_x_the_last_counts() -> None:
    assert [(p.x, p.n, p.median) for p in median_band([[(0, 1.0), (0, 2.0), (1, 3.0)]])] == [(0, 1, 2), (1, 1, 3)]


def test_nothing_in_nothing_out() -> None:
    assert median_band([]) == []
    assert median_band([[], [(1, None)]]) == []


def test_refuses() -> None:
    with pytest.raises(AnalysisError, match="x must not fall"):
        median_band([[(2, 0.0), (1, 0.0)]])
