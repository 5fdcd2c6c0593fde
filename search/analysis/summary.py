"""One optimizer's runs in a few numbers: mean and spread over seeds, and how often training diverged.

Owns what is counted, and what is left out of the count; also the error of this package and the rule that its inputs
share, finite numbers. Does not own comparisons (search.analysis.significance).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from scipy import special

from admeta.client.models import RateView, SpreadView
from search.errors import SearchError
from search.records import RunOutcome
from search.states import SETTINGS_FAILURES, FailureKind, RunState


class AnalysisError(SearchError):
    """Numbers that cannot be analysed as asked."""


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


Z_95 = statistics.NormalDist().inv_cdf(0.975)


def spread(values: Sequence[float | None]) -> SpreadView:
    """Mean and sample standard deviation of the values that there are, in their unit; std is None for n < 2.

    Args:
        values: one a seed; None, NaN and ±inf stand for a run that failed.
    """
    good = [float(value) for value in values if value is not None and math.isfinite(value)]
    return SpreadView(
        n=len(good),
        n_failed=len(values) - len(good),
        mean=_mean(good) if good else None,
        std=_std(good) if len(good) > 1 else None,
    )


def typical_std(groups: Iterable[Sequence[float]]) -> float | None:
    """Standard deviation of a run between seeds: the median over groups, so that one unstable group does not count.

    Each variance is divided by the median of its chi-square distribution, without which that of three runs would be
    0.69 of the true one.

    Args:
        groups: finite values of runs that differ in the seed alone; groups of one run are left out.

    Returns:
        In the unit of the values; None where no group has two runs, or where the median variance is 0.
    """
    variances = [
        statistics.variance(values) / (float(special.chdtri(df, 0.5)) / df)
        for values in groups
        if (df := len(values) - 1) > 0
    ]
    return math.sqrt(statistics.median(variances)) or None if variances else None


def divergence_rate(outcomes: Sequence[RunOutcome]) -> RateView:
    """How often the settings made training diverge, with Wilson's score interval (95 %), which lies within [0, 1].

    Args:
        outcomes: one a run. A run that ended by an error, a lost worker or a cancellation says nothing of its
            settings and is left out of n; a pruned or a complete one counts as not diverged.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.
    """
    telling = [
        outcome
        for outcome in outcomes
        if outcome.state in (RunState.COMPLETE, RunState.PRUNED) or outcome.failure in SETTINGS_FAILURES
    ]
    count = sum(outcome.failure is FailureKind.DIVERGED for outcome in telling)
    return _wilson(count, len(telling))


def _wilson(count: int, n: int) -> RateView:
    if n == 0:
        return RateView(count=0, n=0, rate=None, low=None, high=None)
    p, z2 = count / n, Z_95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    # At count = 0 and count = n the interval ends exactly at 0 and 1; rounding must not move it.
    low = 0.0 if count == 0 else max(0.0, centre - half)
    high = 1.0 if count == n else min(1.0, centre + half)
    return RateView(count=count, n=n, rate=p, low=low, high=high)


def _mean(values: list[float]) -> float:
    return float(statistics.mean(values))  # exact: values near the largest float don't overflow


def _std(values: list[float]) -> float | None:
    try:
        return float(statistics.stdev(values))
    except OverflowError:  # a spread beyond the largest float
        return None
