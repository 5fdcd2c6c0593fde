"""Mean, spread and rates against numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from search.analysis import divergence_rate, spread
from search.records import RunOutcome
from search.states import FailureKind, RunState


def test_spread_by_hand() -> None:
    # Mean of 1, 2, 6 is 3; squares of deviations 4 + 1 + 9 = 14; 14/2 = 7.
    result = spread([1, 2, 6])
    assert (result.mean, result.n, result.n_failed) == (3, 3, 0)
    assert result.std == pytest.approx(math.sqrt(7))


def test_spread_leaves_failures_out_and_counts_them() -> None:
    result = spread([0.5, None, math.nan, math.inf, 0.7])
    assert (result.n, result.n_failed) == (2, 3)
    assert result.mean == pytest.approx(0.6)


def test_spread_of_one_has_no_std_and_of_none_no_mean() -> None:
    assert (spread([0.5]).mean, spread([0.5]).std) == (0.5, None)
    assert (spread([]).mean, spread([]).std, spread([None]).n_failed) == (None, None, 1)


def test_spread_of_equal_values_is_exactly_zero() -> None:
    assert spread([0.1] * 3).std == 0.0
    assert spread([0.1] * 3).mean == 0.1


def test_spread_of_huge_values() -> None:
    assert spread([1.7e308, 1.7e308]).mean == 1.7e308
    assert spread([1.7e308, -1.7e308]).std is None


def _ended(state: RunState, failure: FailureKind | None = None) -> RunOutcome:
    return RunOutcome(state=state, failure=failure)


def test_divergence_rate_counts_only_what_tells_of_the_settings() -> None:
    diverged = _ended(RunState.FAIL, FailureKind.DIVERGED)
    outcomes = [
        diverged,
        _ended(RunState.COMPLETE),
        _ended(RunState.PRUNED),
        _ended(RunState.FAIL, FailureKind.NO_METRIC),
        _ended(RunState.FAIL, FailureKind.LOST),
        _ended(RunState.FAIL, FailureKind.ERROR),
        _ended(RunState.FAIL, FailureKind.CANCELLED),
        _ended(RunState.RUNNING),
        _ended(RunState.WAITING),
    ]
    result = divergence_rate(outcomes)
    assert (result.count, result.n, result.rate) == (1, 4, 0.25)
    # Wilson with z² = 3.8415, n = 4: centre (.25 + .48018)/1.96037 = .37247;
    # half the width 1.96·√(.046875 + .060023)/1.96037 = .32688.
    assert result.low == pytest.approx(0.0456, abs=1e-4)
    assert result.high == pytest.approx(0.6994, abs=1e-4)


def test_divergence_rate_at_the_ends() -> None:
    # None of 10: from 0 to z²/(n + z²) = 3.8415/13.8415.
    none = divergence_rate([_ended(RunState.COMPLETE)] * 10)
    assert (none.rate, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(3.8415 / 13.8415, abs=1e-4)
    every = divergence_rate([_ended(RunState.FAIL, FailureKind.DIVERGED)] * 10)
    assert (every.rate, every.high) == (1.0, 1.0)
    nothing = divergence_rate([])
    assert (nothing.rate, nothing.low, nothing.high, nothing.n) == (None, None, None, 0)
