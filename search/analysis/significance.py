"""Whether two optimizers differ by more than their seeds do: Welch's t, Wilcoxon's signed ranks, Holm's correction.

Owns the tests, their small-sample cases, and all pairs at once. Does not own which runs are compared: those of the
confirm stage, since the search stage's values were selected for being high.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from search.analysis.summary import AnalysisError, finite
from search.states import SignificanceTest

N_EXACT = 300
"""Pairs up to which the signed-rank distribution is counted out; above, the normal approximation is as good."""


@dataclass(frozen=True, kw_only=True)
class TwoSampleResult:
    """Two samples compared, two-sided.

    Attributes:
        difference: mean of a − mean of b (of the pairs' differences); None for an empty sample.
        sign: 1 where a is the higher by the test's statistic, −1 where b is, 0 for neither.
        statistic: Welch's t, or the sum W+ of the ranks of positive differences.
        p_value: None where the test says nothing; `note` then says why.
        note: what the reader must know; None when there is nothing.
    """

    difference: float | None
    sign: int = 0
    statistic: float | None = None
    p_value: float | None = None
    note: str | None = None


def welch(a: Sequence[float], b: Sequence[float]) -> TwoSampleResult:
    """Welch's t test of equal means, two-sided.

    No p-value, but a note, with fewer than two values in a sample, or without any spread in both: t is then
    infinite or 0/0, and identical runs show nothing.

    Raises:
        AnalysisError: a value is not finite.

    Source: Welch, "The generalization of 'Student's' problem", Biometrika 1947.
    """
    a, b = finite(a, what="a"), finite(b, what="b")
    if not a or not b:
        return TwoSampleResult(difference=None, note="no values")
    difference = math.fsum(a) / len(a) - math.fsum(b) / len(b)
    silent = TwoSampleResult(difference=difference)
    if min(len(a), len(b)) < 2:
        return replace(silent, note=f"Welch's t needs at least 2 values a side; there are {len(a)} and {len(b)}")
    of_a, of_b = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    if of_a + of_b == 0:
        return replace(silent, note="neither side has any spread: t is undefined")
    share = of_a / (of_a + of_b)
    df = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
    t = difference / math.sqrt(of_a + of_b)
    return replace(silent, sign=_sign(t), statistic=t, p_value=float(2 * special.stdtr(df, -abs(t))))


def paired_wilcoxon(a: Sequence[float], b: Sequence[float]) -> TwoSampleResult:
    """Wilcoxon's signed-rank test of symmetric differences, two-sided, a[i] paired with b[i].

    Zero differences are dropped and equal ones share their mean rank. The p-value is exact given the ranks, ties
    included, up to N_EXACT pairs. Differences that agree to 12 digits of the larger values count as equal: 0.95 − 0.94
    and 0.96 − 0.95 are a tie that floating point hides.

    Raises:
        AnalysisError: lengths differ, or a value is not finite.

    Source: Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1945.
    """
    a, b = finite(a, what="a"), finite(b, what="b")
    if len(a) != len(b):
        raise AnalysisError(f"a has {len(a)} values and b {len(b)}; pairs need as many of each. Pair them by seed")
    differences = _differences(a, b)
    n = len(differences)
    if not n:
        return TwoSampleResult(difference=None, note="there are no pairs")
    result = TwoSampleResult(difference=math.fsum(differences) / n)
    moved = [d for d in differences if d != 0]
    if not moved:
        return replace(result, p_value=1.0, note="every pair is equal")
    ranks = _mean_ranks([abs(d) for d in moved])
    w_plus = math.fsum(r for r, d in zip(ranks, moved, strict=True) if d > 0)
    smallest = 0.5 ** (len(moved) - 1)
    return replace(
        result,
        sign=_sign(w_plus - math.fsum(ranks) / 2),
        statistic=w_plus,
        p_value=_signed_rank_p(ranks, w_plus) if len(moved) <= N_EXACT else _normal_p(moved),
        note=f"{len(moved)} pairs that differ: p cannot be below {smallest:.2g}" if smallest > 0.05 else None,
    )


def _differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    largest = max((abs(value) for value in [*a, *b]), default=0.0)
    if largest == 0:
        return [0.0] * len(a)
    digits = 11 - math.floor(math.log10(largest))
    return [round(x - y, digits) for x, y in zip(a, b, strict=True)]


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _mean_ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [(ordered.index(v) + 1 + len(ordered) - ordered[::-1].index(v)) / 2 for v in values]


def _signed_rank_p(ranks: Sequence[float], w_plus: float) -> float:
    """P(W+ is at least as far from its mean), every rank positive or negative with probability 1/2."""
    doubled = [round(2 * r) for r in ranks]  # mean ranks are halves: doubled, they are whole
    total = sum(doubled)
    chance = np.zeros(total + 1)
    chance[0] = 1.0
    for r in doubled:
        moved = np.zeros_like(chance)
        moved[r:] = chance[: total + 1 - r]
        chance = (chance + moved) / 2
    distance = abs(np.arange(total + 1) - total / 2)
    return min(1.0, float(chance[distance >= abs(2 * w_plus - total / 2)].sum()))


def _normal_p(differences: Sequence[float]) -> float:
    from scipy import stats  # seconds to import, and hardly ever needed

    return float(stats.wilcoxon(differences, method="asymptotic").pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: what each p-value is worth when all of them are looked at.

    Args:
        p_values: of all tests made; None for a test that gave none, which is not counted.

    Returns:
        Adjusted p-values in the same order, within [0, 1]; None stays None.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for i, (p, index) in enumerate(known):
        running = max(running, min(1.0, (len(known) - i) * p))
        adjusted[index] = running
    return adjusted


def compare_two(a: Mapping[Hashable, float], b: Mapping[Hashable, float], *, test: SignificanceTest) -> TwoSampleResult:
    """Two samples by Welch's or Wilcoxon's test.

    Args:
        a, b: values by seed (or by task and seed). Wilcoxon pairs the keys that both have; Welch ignores them.

    Raises:
        AnalysisError: a value is not finite.
    """
    if test is SignificanceTest.WELCH:
        return welch(list(a.values()), list(b.values()))
    common = [key for key in a if key in b]
    return paired_wilcoxon([a[key] for key in common], [b[key] for key in common])
