"""Welch, Wilcoxon and Holm against hand-worked numbers, published examples and scipy."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr

from search.analysis import AnalysisError, holm, paired_wilcoxon, welch

FLOATS = st.floats(-100, 100).map(lambda x: round(x, 3))


def test_welch_by_hand() -> None:
    # a: mean 2, variance 1, over n 1/3. b: mean 5, deviations ±2, variance 16/3, over n 4/3.
    # t = (2 − 5)/√(5/3) = −2.3238; df = (5/3)²/((1/3)²/2 + (4/3)²/3) = 2.7778/0.64815 = 4.2857.
    result = welch([1, 2, 3], [3, 3, 7, 7])
    assert result.statistic == pytest.approx(-3 / math.sqrt(5 / 3))
    assert result.difference == -3
    assert result.sign == -1
    assert result.p_value == pytest.approx(2 * stdtr((25 / 9) / (1 / 18 + 16 / 27), result.statistic))


def test_welch_with_two_values_a_side_by_hand() -> None:
    # a = 0, 2 and b = 4, 6: variances 2, t = −4/√2 = −2.8284, df = 2. For df = 2 the distribution is in closed form:
    # p = 1 − |t|/√(2 + t²) = 1 − 2.8284/√10 = 0.105573.
    result = welch([0, 2], [4, 6])
    assert result.p_value == pytest.approx(1 - math.sqrt(8 / 10), rel=1e-9)


@given(st.lists(FLOATS, min_size=2, max_size=8), st.lists(FLOATS, min_size=2, max_size=8))
def test_welch_equals_scipy(a: list[float], b: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")
    result = welch(a, b)
    if len(set(a)) == 1 or len(set(b)) == 1:  # scipy warns of lost precision there
        return
    reference = stats.ttest_ind(a, b, equal_var=False)
    assert result.p_value == pytest.approx(reference.pvalue, rel=1e-8, abs=1e-14)
    assert result.statistic == pytest.approx(reference.statistic, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(
    ("a", "b", "note"),
    [
        ([], [1.0, 2.0], "no values"),
        ([1.0], [1.0, 2.0], "at least 2 values a side; there are 1 and 2"),
        ([1.0, 1.0], [2.0, 2.0], "neither side has any spread"),
        ([1.0, 1.0], [1.0, 1.0], "neither side has any spread"),
        ([0.0, 1e-200], [0.0, 1e-200], "neither side has any spread"),
    ],
)
def test_welch_says_why_it_says_nothing(a: list[float], b: list[float], note: str) -> None:
    result = welch(a, b)
    assert result.p_value is None
    assert note in (result.note or "")


def test_welch_with_spread_on_one_side_only() -> None:
    # b has none: t = 1/√(1/3) = √3, df = n_a − 1 = 2, p = 1 − √3/√(2 + 3) = 0.225403.
    result = welch([1, 2, 3], [1, 1, 1])
    assert result.p_value == pytest.approx(1 - math.sqrt(3 / 5))


def test_wilcoxon_three_pairs_all_one_way() -> None:
    # Ranks 1, 2, 3, all positive: W+ = 6. Of 8 sign patterns, one has W+ = 6 and one 0: p = 2/8.
    result = paired_wilcoxon([0.92, 0.94, 0.96], [0.91, 0.92, 0.93])
    assert result.statistic == 6
    assert result.p_value == 0.25
    assert result.note == "3 pairs that differ: p cannot be below 0.25"


def test_wilcoxon_mixed_by_hand() -> None:
    # Differences 1, 2, 3, −4: W+ = 6 of 10, mean 5. |W+ − 5| ≥ 1: all of the 16 patterns but those with W+ = 5.
    # Subsets of {1, 2, 3, 4} that sum to 5: {1, 4} and {2, 3}: p = 14/16.
    result = paired_wilcoxon([1, 2, 3, 0], [0, 0, 0, 4])
    assert result.statistic == 6
    assert result.p_value == 14 / 16
    assert result.sign == 1
    assert result.difference == 0.5


def test_wilcoxon_ties_and_zeros_by_hand() -> None:
    # Differences 0, 1, 1, −1, 2: the zero goes; ranks 2, 2, 2, 4; W+ = 8 of 10, mean 5. As far: W+ ≥ 8 or ≤ 2:
    # W+ = 10 once, 8 three times (one 2 missing), and by symmetry as many below: p = 8/16.
    result = paired_wilcoxon([5, 1, 1, 0, 2], [5, 0, 0, 1, 0])
    assert result.statistic == 8
    assert result.p_value == 0.5
    assert result.difference == pytest.approx(0.6)


def test_wilcoxon_sees_ties_that_floating_point_hides() -> None:
    # 0.95 − 0.94 and 0.96 − 0.95 differ in the last bits only.
    a, b = [0.95, 0.96, 0.90], [0.94, 0.95, 0.91]
    assert paired_wilcoxon(a, b).statistic == 4  # ranks 2, 2, 2


def test_wilcoxon_of_equal_pairs() -> None:
    assert paired_wilcoxon([1, 2], [1, 2]).p_value == 1.0
    assert paired_wilcoxon([0, 0], [0, 0]).note == "every pair is equal"
    assert paired_wilcoxon([], []).p_value is None


def test_wilcoxon_refuses_unpaired() -> None:
    with pytest.raises(AnalysisError, match="a has 1 values and b 2"):
        paired_wilcoxon([1], [1, 2])


@given(st.lists(st.integers(-6, 6), min_size=1, max_size=8))
def test_wilcoxon_equals_enumeration(differences: list[int]) -> None:
    moved = [d for d in differences if d]
    if not moved:
        return
    size = sorted(abs(d) for d in moved)
    ranks = [sum(s < abs(d) for s in size) + (sum(s == abs(d) for s in size) + 1) / 2 for d in moved]
    mean = sum(ranks) / 2
    observed = abs(sum(r for r, d in zip(ranks, moved, strict=True) if d > 0) - mean)
    patterns = list(itertools.product([0, 1], repeat=len(ranks)))
    extreme = sum(abs(sum(r * s for r, s in zip(ranks, signs, strict=True)) - mean) >= observed for signs in patterns)
    result = paired_wilcoxon([float(d) for d in differences], [0.0] * len(differences))
    assert result.p_value == pytest.approx(extreme / len(patterns))


def test_wilcoxon_equals_scipy_exact_and_for_many_pairs() -> None:
    stats = pytest.importorskip("scipy.stats")
    differences = [(-1) ** (i % 3) * (i + 1.0) for i in range(40)]
    zeros = [0.0] * len(differences)
    exact = stats.wilcoxon(differences, method="exact").pvalue
    assert paired_wilcoxon(differences, zeros).p_value == pytest.approx(exact, rel=1e-9)
    many = [(-1) ** i * (i + 1.0) for i in range(301)]
    for n, tolerance in ((301, 1e-9), (300, 0.01)):  # approximate in both; exact here and approximate there
        approximate = stats.wilcoxon(many[:n], method="asymptotic").pvalue
        assert paired_wilcoxon(many[:n], [0.0] * n).p_value == pytest.approx(approximate, rel=tolerance)


def test_holm_by_hand() -> None:
    # Sorted .01 .02 .03 .04: times 4, 3, 2, 1 → .04 .06 .06 .04, made monotone: .04 .06 .06 .06.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, None, 0.5]) == [1.0, None, 1.0]  # 2·.5 = 1, and the test that gave none is not counted
    assert holm([]) == []
