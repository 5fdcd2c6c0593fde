"""The error of this package, and the rules that its inputs share: directions and finite numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from search.errors import SearchError
from search.states import Direction


class AnalysisError(SearchError):
    """Numbers that cannot be analysed as asked."""


def is_maximize(direction: str) -> bool:
    """Whether more is better.

    Raises:
        AnalysisError: neither "maximize" nor "minimize".
    """
    try:
        return Direction(direction).is_maximize
    except ValueError:
        raise AnalysisError(f"direction {direction!r} is unknown; it must be 'maximize' or 'minimize'") from None


def finite(values: Sequence[float], *, what: str) -> list[float]:
    """The values as floats.

    Raises:
        AnalysisError: one is NaN or infinite.
    """
    for index, value in enumerate(values):
        if not math.isfinite(value):
            raise AnalysisError(
                f"{what}[{index}] is {value}; every value must be finite. Leave failed and diverged trials "
                "out and count them by divergence_rate"
            )
    return [float(value) for value in values]


def finite_or_none(value: float | None) -> float | None:
    """The value as strict JSON can write it: None for NaN and ±inf."""
    return value if value is not None and math.isfinite(value) else None
