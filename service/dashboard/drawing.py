"""Where things of a drawing lie that the server makes: dots with whiskers, as percent of the width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.models import ComparisonRow, SpreadView


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Mean and one standard deviation to either side, in percent of the drawing's width."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What the drawing's ends stand for, in the metric's unit."""

    low: float
    high: float

    def mark(self, spread: SpreadView, *, fallback: float | None = None) -> Mark | None:
        """Where the mean and its whiskers lie; `fallback` stands for the mean of nothing."""
        mean = spread.mean if spread.mean is not None else fallback
        if mean is None:
            return None
        std = spread.std or 0.0
        return Mark(low=self._at(mean - std), mean=self._at(mean), high=self._at(mean + std))

    def _at(self, value: float) -> float:
        share = 0.5 if self.high == self.low else (value - self.low) / (self.high - self.low)
        return 3.0 + 94.0 * share


def common_scale(rows: Sequence[ComparisonRow]) -> Scale | None:
    """A scale that holds the validation means of all optimizers with their whiskers; None where there are none."""
    ends: list[float] = []
    for row in rows:
        mean = row.validation.mean if row.validation.mean is not None else row.search_value
        if mean is not None:
            std = row.validation.std or 0.0
            ends += [mean - std, mean + std]
    return Scale(low=min(ends), high=max(ends)) if ends else None
