"""Numbers and times as text."""

from __future__ import annotations

import pytest

from admeta.client.formatting import chance, duration, rough_duration


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1, "0 s"), (59, "59 s"), (61, "1 min"), (7199, "1 h"), (90_000, "1 d")]
)
def test_rough_durations(seconds: float, shown: str) -> None:
    assert rough_duration(seconds) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (3723, "1:02:03"), (-1, "0:00")])
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_probability_is_neither_none_nor_whole() -> None:
    assert [chance(p) for p in (0.0, 0.004, 0.01, 0.5, 0.99, 0.996, 1.0)] == [
        *("<0.01", "<0.01", "0.01", "0.50", "0.99", ">0.99", ">0.99")
    ]
