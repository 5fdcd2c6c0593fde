"""The best of n trials and the time to a target: expected values, and simultaneous confidence bands by a sample.

Owns the bands of the empirical distribution function and what follows from them. The trials must be independent draws,
as those of the random sampler are; for another sampler the bands describe repeated draws from the trials it made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from admeta.client.models import ReachedView
from search.analysis.summary import AnalysisError, finite
from search.states import Direction


def expected_best_curve(values: Sequence[float], *, direction: Direction) -> list[float]:
    """Expected best value of n random trials, for n = 1 … B, exactly (no sampling).

    The n are drawn with replacement: the empirical distribution stands for the true one. Biased low: at n = B the
    curve stays below the observed best.

    Args:
        values: final objective of each of the B trials, in any order; all finite. Empty gives [].
        direction: which values are better.

    Returns:
        B numbers in the objective's unit; the first is the mean. Monotone towards the better side.

    Raises:
        AnalysisError: a value is not finite.

    Source: Dodge et al., "Show Your Work", EMNLP 2019.
    """
    sign = direction.sign
    ordered = np.sort(sign * np.array(finite(values, what="values"), dtype=np.float64))
    if not len(ordered):
        return []
    n_trials = len(ordered)
    i = np.arange(1, n_trials, dtype=np.float64)
    gaps = np.diff(ordered)
    # E[max of n] = v_B − Σ_{i<B} P(max ≤ v_i)·(v_{i+1} − v_i): summation by parts, where ties need no care.
    below = np.ones(n_trials - 1)
    curve = []
    for _ in range(n_trials):
        below *= i / n_trials
        curve.append(sign * float(ordered[-1] - below @ gaps))
    return curve


def best_so_far(values: Sequence[float | None], *, direction: Direction) -> list[float | None]:
    """The best value among the first i, for every i; None before the first finite one.

    Args:
        values: in order of time; None, NaN and ±inf (a failed trial, a diverged one) never are the best.
        direction: which values are better.
    """
    best: float | None = None
    curve: list[float | None] = []
    for value in values:
        if value is not None and math.isfinite(value):
            best = value if best is None else direction.best([best, value])
        curve.append(best)
    return curve


Floats = NDArray[np.float64]

N_DRAWS = 20_000
"""Samples simulated for the level of a band: a coverage of 0.95 ± 0.0015."""


@cache
def distribution_band(n: int, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """Bounds of F(v) at each order statistic v of a sample of n, simultaneously.

    For any continuous distribution F(v₍ᵢ₎) is Beta(i, n + 1 − i). Each order statistic gets the central interval of its
    own Beta distribution, all with one probability, chosen by simulation so that all intervals hold together.

    Args:
        n: size of the sample, at least 1.
        confidence: probability that all bounds hold.

    Returns:
        low, high: arrays of n; low[i] ≤ F(v₍ᵢ₎) ≤ high[i].

    Raises:
        AnalysisError: n is below 1, or the confidence not between 0 and 1.

    Source: Aldor-Noiman et al., "The power to see", 2013; Lourie et al., "Show Your Work with Confidence", 2024.
    """
    if n < 1 or not 0 < confidence < 1:
        raise AnalysisError(f"n is {n} and confidence {confidence}; n must be at least 1, confidence between 0 and 1")
    rank = np.arange(1, n + 1)
    sums = np.random.default_rng(0).standard_exponential((max(1_000, N_DRAWS // max(1, n // 20)), n + 1)).cumsum(axis=1)
    uniform = sums[:, :-1] / sums[:, -1:]  # order statistics of n uniform values

    def bounds(level: float) -> tuple[Floats, Floats]:
        tails = (special.betaincinv(rank, n + 1 - rank, tail) for tail in (level, 1 - level))
        return next(tails), next(tails)

    narrow, wide = (1 - confidence) / 2, (1 - confidence) / 2 / n  # one interval alone; all by Bonferroni
    for _ in range(20):
        level = math.sqrt(narrow * wide)
        low, high = bounds(level)
        if ((low <= uniform) & (uniform <= high)).all(axis=1).mean() >= confidence:
            wide = level
        else:
            narrow = level
    return bounds(wide)


@dataclass(frozen=True, kw_only=True)
class BestOfN:
    """The best of n trials drawn at random, for n = 1 … B, in the objective's unit.

    Attributes:
        median: of the best of n trials.
        low, high: simultaneous band of the median for all n. None on the better side where the B trials set no bound:
            a better value than any observed may exist.
        expected: mean of the best of n, by the trials as they are (Dodge et al., 2019); None where trials diverged and
            no worst value was given for them.
    """

    median: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    expected: tuple[float | None, ...]


def best_of_n(
    values: Sequence[float | None], *, direction: Direction, worst: float | None = None, confidence: float = 0.95
) -> BestOfN:
    """How good the best of n random trials is, with a simultaneous band.

    Args:
        values: one a trial, all trials: a pruned one by its last value. A diverged one (None, NaN or infinite) is worse
            than every other.
        direction: which values are better.
        worst: what a diverged trial counts as in `expected`, for example the worst value of the study.
        confidence: of the band.

    Source: Lourie et al., "Show Your Work with Confidence", 2024; Dodge et al., "Show Your Work", 2019.
    """
    n_trials = len(values)
    if not n_trials:
        return BestOfN(median=(), low=(), high=(), expected=())
    sign = direction.sign
    ordered = np.sort([-math.inf if value is None or not math.isfinite(value) else sign * value for value in values])
    f_low, f_high = distribution_band(n_trials, confidence)
    n = np.arange(1, n_trials + 1)
    quantile = 0.5 ** (1 / n)  # the best of n is below v with probability F(v)^n
    steps = np.arange(1, n_trials + 1) / n_trials
    median = ordered[np.minimum(np.searchsorted(steps, quantile - 1e-12), n_trials - 1)]
    # F⁻¹(q) ≥ v where F may not exceed `f_high` at v, and ≤ v where F is at least `f_low` there.
    at_least = np.searchsorted(f_high, quantile, side="left") - 1
    at_most = np.searchsorted(f_low, quantile, side="left")
    worse = [float(ordered[i]) if i >= 0 else -math.inf for i in at_least]
    better = [float(ordered[i]) if i < n_trials else math.inf for i in at_most]
    known = [worst if value is None or not math.isfinite(value) else value for value in values]
    counted = [value for value in known if value is not None]
    bounds = (worse, better) if direction.is_maximize else (better, worse)
    return BestOfN(
        median=_told(sign * median),
        low=_told([sign * v for v in bounds[0]]),
        high=_told([sign * v for v in bounds[1]]),
        expected=tuple(expected_best_curve(counted, direction=direction))
        if len(counted) == n_trials
        else (None,) * n_trials,
    )


def _told(values: Sequence[float] | Floats) -> tuple[float | None, ...]:
    return tuple(float(value) if math.isfinite(value) else None for value in values)


def reached_by(times: Sequence[float], *, confidence: float = 0.95) -> ReachedView:
    """Distribution of the time to a target, in the unit of the times.

    Args:
        times: one a run; infinite where the run never reached the target.
        confidence: of the band, for all times at once.
    """
    n = len(times)
    if not n:
        return ReachedView(times=[], share=[], low=[], high=[], before=1.0)
    f_low, f_high = distribution_band(n, confidence)
    ordered = np.sort(np.array(times, dtype=np.float64))
    known = [i for i in range(n) if math.isfinite(ordered[i]) and (i == n - 1 or ordered[i] < ordered[i + 1])]
    return ReachedView(
        times=[float(ordered[i]) for i in known],
        share=[(i + 1) / n for i in known],
        low=[float(f_low[i]) for i in known],
        high=[float(f_high[i + 1]) if i + 1 < n else 1.0 for i in known],
        before=float(f_high[0]),
    )
