"""The range of a parameter in which results are nearly as good as at its best, against curves of known width."""

from __future__ import annotations

import math
import warnings

import pytest

from search.analysis import good_range
from search.states import Direction

DECADES = [10 ** (k / 2) for k in range(-3, 4)]  # 1/30 to 30


def parabola(x: float, *, width: float = 4.0) -> float:
    """1 at x = 1, and 1 % more at 1/width and at width."""
    return 1 + 0.01 * (math.log(x) / math.log(width)) ** 2


def test_both_ends_of_a_parabola() -> None:
    points = [(x, [parabola(x)]) for x in DECADES]
    found = good_range(points, direction=Direction.MINIMIZE, within=0.01)
    assert found is not None
    assert found.best == pytest.approx(1.0, abs=1e-6)
    assert found.best_at == pytest.approx(1.0, rel=0.02)
    assert found.tolerance == pytest.approx(0.01, rel=1e-6)
    assert found.low.at == pytest.approx(1 / 4, rel=0.08)
    assert found.high.at == pytest.approx(4, rel=0.08)
    assert not found.low.is_open
    assert found.low.inner is None  # the spread is not known
    # Mean over u of 0.01 (u / log 4)², u uniform to ± log 31.6: its second moment is (log 31.6)² / 3.
    assert found.deviation == pytest.approx(0.01 * math.log(DECADES[-1]) ** 2 / 3 / math.log(4) ** 2, rel=0.05)


def test_accuracy_is_the_same_upside_down() -> None:
    losses = [(x, [parabola(x)]) for x in DECADES]
    found = good_range(losses, direction=Direction.MINIMIZE, within=0.01)
    accuracies = [(x, [2 - parabola(x)]) for x in DECADES]
    mirrored = good_range(accuracies, direction=Direction.MAXIMIZE, within=0.01)
    assert found is not None
    assert mirrored is not None
    assert mirrored.low.at == pytest.approx(found.low.at)
    assert mirrored.high.at == pytest.approx(found.high.at)


def test_a_margin_holds_where_a_share_of_the_best_says_nothing() -> None:
    points = [(x, [parabola(x) - 1]) for x in DECADES]  # the best is 0
    share = good_range(points, direction=Direction.MINIMIZE, within=0.01)
    assert share is not None
    assert share.high.at / share.low.at < 1.1
    found = good_range(points, direction=Direction.MINIMIZE, within=0.01, margin=0.01)
    assert found is not None
    assert (found.low.at, found.high.at) == pytest.approx((1 / 4, 4), rel=0.08)


def test_a_divergence_ends_the_range_in_the_middle_before_it() -> None:
    points = [(x, [1.0] if x <= 1 else [1.0, None]) for x in DECADES]
    found = good_range(points, direction=Direction.MINIMIZE, within=0.01, std=0.0001, worst=2.0)
    assert found is not None
    assert found.high.at == pytest.approx(10**0.25)
    assert (found.high.inner, found.high.outer) == pytest.approx((1.0, 10**0.5))
    assert found.low.is_open
    assert found.low.at == pytest.approx(DECADES[0])
    assert found.low.outer is None
    # From 10^0.25 on, everything counts as 2: 1.25 of 3 decades.
    assert found.deviation == pytest.approx(1.25 / 3, rel=0.02)


def test_what_is_sure_widens_with_the_spread() -> None:
    points = [(x, [parabola(x)]) for x in DECADES]
    ends = []
    for std in (0.0, 0.002, 0.03):
        found = good_range(points, direction=Direction.MINIMIZE, within=0.01, std=std)
        assert found is not None
        assert found.low.inner is not None
        assert (found.low.outer or 0.0) < 1 / 4 < found.low.inner
        ends.append((found.low.inner, found.low.outer))
    assert ends[0] == pytest.approx((10**-0.5, 0.1))
    assert ends[2] == (pytest.approx(1.0), None)


def test_noise_is_taken_out_of_the_best() -> None:
    """Alternating errors: through the points, the range would end beside the luckiest one."""
    points = [(10 ** (k / 4), [1.0 + 0.008 * (-1) ** k]) for k in range(-6, 7)]
    raw = good_range(points, direction=Direction.MINIMIZE, within=0.01)
    smooth = good_range(points, direction=Direction.MINIMIZE, within=0.01, std=0.008)
    assert raw is not None
    assert smooth is not None
    assert not raw.low.is_open
    assert smooth.low.is_open
    assert smooth.high.is_open
    assert smooth.best == pytest.approx(1.0, abs=0.003)


def test_a_linear_parameter() -> None:
    points = [(x, [1 + 0.01 * ((x - 0.5) / 0.2) ** 2]) for x in (0.0, 0.25, 0.5, 0.75, 1.0)]
    found = good_range(points, direction=Direction.MINIMIZE, within=0.01, log=False)
    assert found is not None
    assert (found.low.at, found.high.at) == pytest.approx((0.3, 0.7), abs=0.03)


@pytest.mark.parametrize(
    "points",
    [[], [(1.0, [1.0]), (2.0, [1.0])], [(1.0, [1.0]), (2.0, [1.0]), (3.0, [])], [(x, [None]) for x in DECADES]],
)
def test_too_little_says_nothing(points: list[tuple[float, list[float | None]]]) -> None:
    assert good_range(points, direction=Direction.MINIMIZE, within=0.01) is None


def test_one_value_that_did_not_diverge() -> None:
    points: list[tuple[float, list[float | None]]] = [(1.0, [None]), (10.0, [0.5]), (100.0, [None])]
    found = good_range(points, direction=Direction.MINIMIZE, within=0.01, std=0.1)
    assert found is not None
    assert (found.low.at, found.best_at, found.high.at) == pytest.approx((10**0.5, 10, 10**1.5))
    assert found.deviation is None  # nothing is known of how bad a divergence is
    known = good_range(points, direction=Direction.MINIMIZE, within=0.01, worst=2.5)
    assert known is not None
    assert known.deviation is not None
    assert known.deviation > 0.5


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("std", [None, 0.0, 1e-320, 1e-9, 1.0, 1e308])
def test_results_of_any_size(direction: Direction, std: float | None) -> None:
    nearly = math.nextafter(0.1, 1)
    values = (1e308, -1e308, math.nan, 1e-320, 1.0, 1.1, 0.9)
    points = list(zip((1e-300, 0.001, 0.01, 0.1, nearly, 1.0, 1e300), ([one] for one in values), strict=True))
    with warnings.catch_warnings(action="error"):
        found = good_range(points, direction=direction, within=0.01, std=std, worst=1e308)
    assert found is not None
    assert all(map(math.isfinite, (found.best, found.best_at, found.tolerance, found.low.at, found.high.at)))
