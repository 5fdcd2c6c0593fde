"""Expected best of n and best so far, against numbers worked by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.analysis import AnalysisError, best_so_far, expected_best_curve
from search.states import Direction

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=5)


def test_with_replacement_by_hand() -> None:
    # 1, 2, 3 drawn twice: 9 pairs; the maximum is 1 once, 2 three times, 3 five times: (1 + 6 + 15)/9 = 22/9.
    # Drawn three times, 27 triples: 1 once, 2 seven times, 3 nineteen times: (1 + 14 + 57)/27 = 72/27.
    assert expected_best_curve([2, 1, 3], direction=Direction.MAXIMIZE) == pytest.approx([2, 22 / 9, 72 / 27])


def test_minimize_is_the_mirror_image() -> None:
    # Of the same nine pairs the minimum is 1 five times, 2 three times, 3 once: (5 + 6 + 3)/9 = 14/9.
    assert expected_best_curve([2, 1, 3], direction=Direction.MINIMIZE) == pytest.approx(
        [2, 14 / 9, (19 + 14 + 3) / 27]
    )


def test_ties_by_hand() -> None:
    # 1, 2, 2 drawn twice: the maximum is 1 for one pair of nine, else 2: (1 + 16)/9 = 17/9.
    assert expected_best_curve([2, 1, 2], direction=Direction.MAXIMIZE)[1] == pytest.approx(17 / 9)


@given(VALUES)
def test_equals_enumeration(values: list[float]) -> None:
    curve = expected_best_curve(values, direction=Direction.MAXIMIZE)
    for n in range(1, len(values) + 1):
        drawn = [max(draw) for draw in itertools.product(values, repeat=n)]
        assert curve[n - 1] == pytest.approx(math.fsum(drawn) / len(drawn), abs=1e-9)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60))
def test_starts_at_the_mean_rises_and_stays_below_the_best(values: list[float]) -> None:
    curve = expected_best_curve(values, direction=Direction.MAXIMIZE)
    assert curve[0] == pytest.approx(math.fsum(values) / len(values), abs=1e-9)
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(curve))
    assert curve[-1] <= max(values) + 1e-9


def test_a_thousand_trials_stay_exact() -> None:
    curve = expected_best_curve(list(range(1000)), direction=Direction.MAXIMIZE)
    # The expected maximum of n draws of 0 … B−1 is the sum of P(max ≥ i) = 1 − (i/B)^n over i = 1 … B−1.
    for n in (1, 2, 3, 10, 100, 1000):
        assert curve[n - 1] == pytest.approx(math.fsum(1 - (i / 1000) ** n for i in range(1, 1000)))


def test_no_trial_gives_no_curve() -> None:
    assert expected_best_curve([], direction=Direction.MINIMIZE) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_refuses_what_is_not_finite(bad: float) -> None:
    with pytest.raises(AnalysisError, match=r"values\[1\] is"):
        expected_best_curve([0.5, bad], direction=Direction.MAXIMIZE)


def test_best_so_far() -> None:
    values = [None, math.nan, 0.3, 0.1, math.inf, 0.5, None]
    assert best_so_far(values, direction=Direction.MAXIMIZE) == [None, None, 0.3, 0.3, 0.3, 0.5, 0.5]
    assert best_so_far(values, direction=Direction.MINIMIZE) == [None, None, 0.3, 0.1, 0.1, 0.1, 0.1]
    assert best_so_far([], direction=Direction.MINIMIZE) == []
