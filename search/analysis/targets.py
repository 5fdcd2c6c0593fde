"""Time and steps to a target value: how fast an optimizer gets to a result that is good enough.

Owns the reading of a curve against a target and the summary over runs, in which a miss is ∞ and counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search.analysis.checks import AnalysisError, finite_or_none, is_maximize
from search.states import Direction

if TYPE_CHECKING:
    from search.records import Point


@dataclass(frozen=True, kw_only=True)
class TargetTimes:
    """When each of several runs first met the target; ∞ where it never did.

    Attributes:
        target: the value to reach, in the objective's unit.
        epochs, steps: epochs and optimizer steps done at the first evaluation that meets it, one a run.
        train_s: seconds of training until then, evaluation not counted, one a run.
    """

    target: float
    epochs: tuple[float, ...]
    steps: tuple[float, ...]
    train_s: tuple[float, ...]

    @property
    def n(self) -> int:
        """Runs in all."""
        return len(self.steps)

    @property
    def n_reached(self) -> int:
        """Runs that met the target."""
        return sum(math.isfinite(step) for step in self.steps)

    @property
    def median_steps(self) -> float | None:
        """∞ if at least half of the runs missed; None without runs."""
        return _median(self.steps)

    @property
    def median_train_s(self) -> float | None:
        """∞ if at least half of the runs missed; None without runs."""
        return _median(self.train_s)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: ∞ is null; `n` and `n_reached` tell it from having no runs."""
        return {
            "target": self.target,
            "n": self.n,
            "n_reached": self.n_reached,
            "epochs": [finite_or_none(value) for value in self.epochs],
            "steps": [finite_or_none(value) for value in self.steps],
            "train_s": [finite_or_none(value) for value in self.train_s],
            "median_steps": finite_or_none(self.median_steps),
            "median_train_s": finite_or_none(self.median_train_s),
        }


def time_to_target(curves: Sequence[Sequence[Point]], *, target: float, direction: Direction | str) -> TargetTimes:
    """When each run's validation first met the target.

    Args:
        curves: one a run, its evaluations in order of time. A run that failed before its first evaluation is an
            empty curve: a miss.
        target: in the objective's unit; met by `value >= target` when maximizing, `<=` when minimizing.
        direction: "maximize" or "minimize".

    Raises:
        AnalysisError: the target is not finite, or the direction is unknown.

    Nothing is interpolated: the first evaluation that meets the target is taken, as AlgoPerf does (Dahl et al.,
    "Benchmarking Neural Network Training Algorithms", 2023).
    """
    if not math.isfinite(target):
        raise AnalysisError(f"target is {target}; it must be finite")
    maximize = is_maximize(direction)
    firsts = [_first(curve, target=target if maximize else -target, sign=1 if maximize else -1) for curve in curves]
    return TargetTimes(
        target=target,
        epochs=tuple(epoch for epoch, _, _ in firsts),
        steps=tuple(step for _, step, _ in firsts),
        train_s=tuple(seconds for _, _, seconds in firsts),
    )


def _first(curve: Sequence[Point], *, target: float, sign: int) -> tuple[float, float, float]:
    train_s = 0.0
    for point in curve:
        train_s += point.cost.train_s
        if point.value is not None and math.isfinite(point.value) and sign * point.value >= target:
            return float(point.epoch), float(point.step), train_s
    return math.inf, math.inf, math.inf


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
