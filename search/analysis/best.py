"""The best of several trials: what a budget of n trials is expected to reach, and the best seen so far.

Owns order statistics of final values. Does not own which trials count, nor curves over training
(search.analysis.curves).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from search.analysis.checks import finite, is_maximize
from search.states import Direction


class Draws(StrEnum):
    """How n of the B observed trials are drawn, when their expected best is asked for."""

    WITH_REPLACEMENT = "with_replacement"
    """The empirical distribution stands for the true one (Dodge et al., 2019). Biased low: at n = B it
    stays below the observed best."""

    WITHOUT_REPLACEMENT = "without_replacement"
    """All n-subsets alike: the unbiased U-statistic (Tang et al., 2020). At n = B it is the observed best."""


def expected_best_curve(
    values: Sequence[float], *, direction: Direction | str, draws: Draws = Draws.WITH_REPLACEMENT
) -> list[float]:
    """Expected best value of n random trials, for n = 1 … B, exactly (no sampling).

    Args:
        values: final objective of each of the B trials, in any order; all finite. Empty gives [].
        direction: "maximize" or "minimize".
        draws: with replacement as Dodge et al. define it, or without.

    Returns:
        B numbers in the objective's unit; the first is the mean. Monotone towards the better side.

    Raises:
        AnalysisError: a value is not finite, or the direction is unknown.

    Source: Dodge et al., "Show Your Work", EMNLP 2019; Tang et al., "Showing Your Work Doesn't Always Work",
    ACL 2020.
    """
    sign = 1.0 if is_maximize(direction) else -1.0
    ordered = np.sort(sign * np.array(finite(values, what="values"), dtype=np.float64))
    if not len(ordered):
        return []
    n_trials = len(ordered)
    i = np.arange(1, n_trials, dtype=np.float64)
    gaps = np.diff(ordered)
    # E[max of n] = v_B − Σ_{i<B} P(max ≤ v_i)·(v_{i+1} − v_i): summation by parts, where ties need no care.
    below = np.ones(n_trials - 1)
    curve = []
    for drawn in range(n_trials):
        if draws is Draws.WITH_REPLACEMENT:
            below *= i / n_trials
        else:
            below *= np.maximum(i - drawn, 0.0) / (n_trials - drawn)
        curve.append(sign * float(ordered[-1] - below @ gaps))
    return curve


def best_so_far(values: Sequence[float | None], *, direction: Direction | str) -> list[float | None]:
    """The best value among the first i, for every i; None before the first finite one.

    Args:
        values: in order of time; None, NaN and ±inf (a failed trial, a diverged one) never are the best.
        direction: "maximize" or "minimize".
    """
    better = max if is_maximize(direction) else min
    best: float | None = None
    curve: list[float | None] = []
    for value in values:
        if value is not None and math.isfinite(value):
            best = value if best is None else better(best, value)
        curve.append(best)
    return curve
