"""Bands of the best of n trials and of the time to a target: coverage by simulation, corners by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from search.analysis import best_of_n, expected_best_curve, reached_by
from search.analysis.bands import distribution_band
from search.states import Direction


@pytest.mark.parametrize("n", [1, 4, 20, 64])
def test_the_band_holds_everywhere_in_95_of_100_samples(n: int) -> None:
    low, high = distribution_band(n)
    uniform = np.sort(np.random.default_rng(9).random((4000, n)), axis=1)
    held = ((low <= uniform) & (uniform <= high)).all(axis=1).mean()
    assert held == pytest.approx(0.95, abs=0.015)


def test_expected_best_is_that_of_dodge() -> None:
    values = [0.3, 0.9, 0.5, 0.7]
    for direction in Direction:
        found = best_of_n(values, direction=direction)
        assert found.expected == pytest.approx(expected_best_curve(values, direction=direction))


def test_diverged_trials_are_the_worst() -> None:
    values = [0.9, None, math.nan, None, math.inf]
    found = best_of_n(values, direction=Direction.MAXIMIZE)
    assert found.median[0] is None  # one trial diverges more often than not
    assert found.median[-1] == 0.9
    assert found.expected == (None,) * 5
    counted = best_of_n(values, direction=Direction.MAXIMIZE, worst=0.1)
    assert counted.expected[0] == pytest.approx((0.9 + 4 * 0.1) / 5)


def test_the_better_side_is_open_where_no_trial_bounds_it() -> None:
    found = best_of_n([0.1, 0.2, 0.3], direction=Direction.MAXIMIZE)
    assert found.high[-1] is None
    minimized = best_of_n([0.1, 0.2, 0.3], direction=Direction.MINIMIZE)
    assert minimized.low[-1] is None
    assert best_of_n([], direction=Direction.MAXIMIZE).median == ()


def test_the_median_of_the_best_of_n_is_covered() -> None:
    """Uniform trials: the best of n has median 0.5^(1/n)."""
    rng = np.random.default_rng(0)
    truth = 0.5 ** (1 / np.arange(1, 17))
    held = 0
    for _ in range(400):
        band = best_of_n(list(rng.random(16)), direction=Direction.MAXIMIZE)
        low = np.array([-np.inf if v is None else v for v in band.low])
        high = np.array([np.inf if v is None else v for v in band.high])
        held += bool(((low <= truth) & (truth <= high)).all())
    assert held / 400 > 0.93


def test_time_to_target_counts_misses() -> None:
    found = reached_by([3.0, math.inf, 1.0, 3.0])
    assert found.times == [1.0, 3.0]
    assert found.share == [0.25, 0.75]
    assert all(low <= share <= high for low, share, high in zip(found.low, found.share, found.high, strict=True))
    assert reached_by([]).times == []
    assert reached_by([math.inf]).times == []
    none = reached_by([math.inf] * 20)
    assert none.times == []
    assert (
        1 - 0.025 ** (1 / 20) < none.before < 0.35
    )  # wider than the interval of one share, 0 of 20 (Clopper, Pearson)


def test_the_band_of_the_share_covers_the_truth() -> None:
    """Exponential times, of which those beyond 1 never arrive; 300 samples of 12."""
    rng = np.random.default_rng(0)
    at = np.linspace(0.001, 0.999, 200)
    held = 0
    for _ in range(300):
        times = rng.exponential(size=12)
        found = reached_by([float(time) if time < 1 else math.inf for time in times])
        n = np.searchsorted(found.times, at, side="right") - 1
        low = np.where(n < 0, 0.0, np.array([*found.low, 0.0])[n])
        high = np.where(n < 0, found.before, np.array([*found.high, 0.0])[n])
        truth = 1 - np.exp(-at)
        held += bool(((low <= truth) & (truth <= high)).all())
    assert held / 300 > 0.93
