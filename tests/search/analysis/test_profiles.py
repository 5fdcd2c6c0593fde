"""Performance profiles, their area, and ranks, worked by hand."""

from __future__ import annotations

import math

import pytest

from search.analysis import AnalysisError, Ties, mean_ranks, performance_profiles, rank

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
    assert rank(values, direction="maximize") == {"a": 1, "b": 2, "c": 2, "d": 4, "e": None, "f": None}
    assert rank(values, direction="maximize", ties=Ties.MEAN)["b"] == 2.5
    assert rank(values, direction="minimize")["d"] == 1


def test_mean_ranks_by_hand() -> None:
    # Task 1 (maximize): a 1, b and c 2.5. Task 2 (minimize): b 1; a and c failed and share ranks 2 and 3: 2.5.
    tasks = [
        ({"a": 3.0, "b": 1.0, "c": 1.0}, "maximize"),
        ({"a": None, "b": 1.0, "c": math.inf}, "minimize"),
    ]
    assert mean_ranks(tasks) == {"a": 1.75, "b": 1.75, "c": 2.5}
    assert mean_ranks([]) == {}
