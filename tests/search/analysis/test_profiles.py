"""Performance profiles, their area and ranks, worked by hand; Friedman's test against scipy and an enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from search.analysis import AnalysisError, Ties, friedman, performance_profiles, rank
from search.analysis.profiles import groups
from search.states import Direction

INF = math.inf


def test_profile_and_area_by_hand() -> None:
    # Best times: t1 10, t2 20, t3 30. Ratios of a: 1, 2, ∞; of b: 3, 1, 1.
    # a: ρ = 1/3 on [1, 2), 2/3 on [2, 4]: (1·1/3 + 2·2/3)/3 = 5/9.
    # b: ρ = 2/3 on [1, 3), 1 on [3, 4]: (2·2/3 + 1)/3 = 7/9.
    times = {"a": {"t1": 10, "t2": 40, "t3": INF}, "b": {"t1": 30, "t2": 20, "t3": 30}}
    profiles = performance_profiles(times)
    assert profiles["a"].ratios == {"t1": 1, "t2": 2, "t3": INF}
    assert (profiles["a"].tau, profiles["a"].rho) == ((1, 2, 4), pytest.approx((1 / 3, 2 / 3, 2 / 3)))
    assert profiles["a"].area == pytest.approx(5 / 9)
    assert (profiles["b"].tau, profiles["b"].rho) == ((1, 3, 4), pytest.approx((2 / 3, 1, 1)))
    assert profiles["b"].area == pytest.approx(7 / 9)


def test_slower_than_tau_max_earns_nothing() -> None:
    profiles = performance_profiles({"a": {"t": 1}, "b": {"t": 4}, "c": {"t": 5}})
    assert [profiles[name].area for name in "abc"] == [1, 0, 0]
    assert profiles["b"].rho == (0, 1)  # reached at τ = 4 itself, where no width is left
    assert performance_profiles({"a": {"t": 1}, "c": {"t": 5}}, tau_max=9)["c"].area == 0.5


def test_a_task_that_nobody_solves_counts_against_all() -> None:
    profiles = performance_profiles({"a": {"t": 1, "u": INF}, "b": {"t": 1, "u": INF}})
    assert [p.area for p in profiles.values()] == [0.5, 0.5]


def test_area_is_the_integral_of_the_steps() -> None:
    times = {"a": {"t": 3, "u": 7, "v": 2}, "b": {"t": 2, "u": 9, "v": 5}, "c": {"t": INF, "u": 5, "v": 1}}
    for profile in performance_profiles(times).values():
        widths = [b - a for a, b in zip(profile.tau, profile.tau[1:], strict=False)]
        assert profile.area == pytest.approx(sum(w * r for w, r in zip(widths, profile.rho, strict=False)) / 3)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({"a": {"t": 1}, "b": {"u": 1}}, r"differ in the tasks \['t', 'u'\]"),
        ({"a": {"t": 0}}, "time of 'a' on 't' is 0"),
        ({"a": {"t": math.nan}}, "is nan"),
        ({"a": {}}, "name no task"),
    ],
)
def test_refuses(times: dict[str, dict[str, float]], message: str) -> None:
    with pytest.raises(AnalysisError, match=message):
        performance_profiles(times)


def test_no_optimizers() -> None:
    assert performance_profiles({}) == {}


def test_rank_with_ties() -> None:
    values = {"a": 0.9, "b": 0.8, "c": 0.8, "d": 0.7, "e": None, "f": math.nan}
    assert rank(values, direction=Direction.MAXIMIZE) == {"a": 1, "b": 2, "c": 2, "d": 4, "e": None, "f": None}
    assert rank(values, direction=Direction.MAXIMIZE, ties=Ties.MEAN)["b"] == 2.5
    assert rank(values, direction=Direction.MINIMIZE)["d"] == 1


def test_mean_ranks_by_hand() -> None:
    # Task 1 (maximize): a 1, b and c 2.5. Task 2 (minimize): b 1; a and c failed and share ranks 2 and 3: 2.5.
    tasks = [
        ({"a": 3.0, "b": 1.0, "c": 1.0}, Direction.MAXIMIZE),
        ({"a": None, "b": 1.0, "c": math.inf}, Direction.MINIMIZE),
    ]
    assert friedman(tasks).mean_ranks == {"a": 1.75, "b": 1.75, "c": 2.5}
    assert friedman([]).mean_ranks == {}


Row = tuple[dict[str, float | None], Direction]


def rows(values: np.ndarray) -> list[Row]:
    """Tasks of the rows of a matrix, less is better."""
    return [({f"o{j}": float(value) for j, value in enumerate(row)}, Direction.MINIMIZE) for row in values]


@pytest.mark.parametrize(("n", "k", "decimals"), [(40, 3, 8), (60, 5, 8), (50, 4, 1), (30, 9, 0)])
def test_friedman_is_scipys_with_many_tasks(n: int, k: int, decimals: int) -> None:
    values = np.random.default_rng(n).normal(size=(n, k)).round(decimals) + 0.1 * np.arange(k)
    expected = stats.friedmanchisquare(*values.T)
    found = friedman(rows(values))
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, abs=0.02)
    for column, name in zip(stats.rankdata(values, axis=1).mean(axis=0), found.mean_ranks, strict=True):
        assert found.mean_ranks[name] == pytest.approx(column)


@pytest.mark.parametrize("values", [[[1, 2, 3], [1, 3, 2], [1, 2, 3]], [[1, 1, 3], [2, 1, 3], [1, 2, 2]]])
def test_friedmans_p_is_that_of_all_permutations(values: list[list[float]]) -> None:
    matrix = stats.rankdata(values, axis=1)
    every = [np.sum(orders, axis=0) for orders in itertools.product(*(itertools.permutations(r) for r in matrix))]
    spread = [float(((sums - 6) ** 2).sum()) for sums in every]
    observed = float(((matrix.sum(axis=0) - 6) ** 2).sum())
    expected = np.mean([one >= observed - 1e-9 for one in spread])
    assert friedman(rows(np.array(values))).p_value == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (9, 3.102), (10, 3.164)])
def test_the_critical_difference_is_nemenyis(k: int, q: float) -> None:
    """q of Demsar's table 5, and of the studentized range; ranks of few optimizers are coarse."""
    assert stats.studentized_range.ppf(0.95, k, np.inf) / math.sqrt(2) == pytest.approx(q, abs=1e-3)
    found = friedman(rows(np.random.default_rng(0).normal(size=(60, k))))
    assert found.critical_difference == pytest.approx(q * math.sqrt(k * (k + 1) / (6 * 60)), rel=0.06)


def test_two_optimizers_on_four_tasks_cannot_be_told_apart() -> None:
    """Nemenyi's difference is 0.98 there, and equal optimizers have that of 1 in one of eight cases."""
    found = friedman(rows(np.array([[1.0, 2.0]] * 4)))
    assert found.critical_difference == 1
    assert found.p_value == pytest.approx(1 / 8, abs=0.01)


def test_failures_share_the_last_ranks() -> None:
    found = friedman([({"a": 0.9, "b": None, "c": None}, Direction.MAXIMIZE)] * 3)
    assert found.mean_ranks == {"a": 1, "b": 2.5, "c": 2.5}


def test_friedman_says_nothing_without_ranks() -> None:
    tied = friedman([({"a": 1.0, "b": 1.0}, Direction.MAXIMIZE)] * 3)
    assert (tied.statistic, tied.p_value, tied.critical_difference) == (None, None, None)
    assert friedman([({"a": 1.0, "b": 2.0}, Direction.MAXIMIZE)]).p_value is None
    assert friedman([]).mean_ranks == {}
    with pytest.raises(AnalysisError, match="name different optimizers"):
        friedman([({"a": 1.0}, Direction.MAXIMIZE), ({"b": 1.0}, Direction.MAXIMIZE)])


def test_groups_are_the_largest_sets_within_the_difference() -> None:
    ranks = {"c": 3.0, "a": 1.0, "b": 2.0, "d": 5.0}
    assert groups(ranks, critical_difference=1.0) == [["a", "b"], ["b", "c"], ["d"]]
    assert groups(ranks, critical_difference=9.0) == [["a", "b", "c", "d"]]
    assert groups(ranks, critical_difference=0.5) == [["a"], ["b"], ["c"], ["d"]]
