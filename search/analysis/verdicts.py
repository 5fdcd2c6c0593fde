"""Verdicts between the optimizers of a study: better, equivalent within a margin, or undecided.

Owns what a failed run counts for, when runs are paired by seed, and the sentence of a verdict. The tests are
those of search.analysis.moderated and search.analysis.significance.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from scipy import special

from search.analysis.moderated import N_DRAWS, Contrast, Group, contrasts, detectable
from search.analysis.significance import compare_two, holm
from search.analysis.summary import AnalysisError, finite
from search.states import Direction, SignificanceTest, Verdict

MAX_MORE = 1000
"""More values than this are not proposed: the difference is then too small to be worth deciding."""

BLOCK_LEVEL = 0.01
"""Runs are paired by seed where an F test shows an effect of the seed at this level."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What an optimizer reached.

    Attributes:
        values: final values by seed (or by search), all finite, in the metric's unit.
        n_failed: further runs that failed or diverged. A failed run is the worst result.
    """

    values: Mapping[Hashable, float]
    n_failed: int = 0

    @property
    def n(self) -> int:
        """Runs, failed ones included."""
        return len(self.values) + self.n_failed


@dataclass(frozen=True, kw_only=True)
class PairVerdict:
    """Two optimizers compared. All differences are a minus b, in the metric's unit.

    Attributes:
        a, b: labels.
        test: how they were compared.
        difference: mean of a minus mean of b over the runs that did not fail; None where a side has none.
        low, high: simultaneous interval for all pairs; None where there is none.
        p_value: of this pair alone.
        p_adjusted: adjusted for all pairs (and for the test of failures where runs failed).
        verdict: BETTER, EQUIVALENT or UNDECIDED.
        better: the label that is better; None for the other verdicts.
        more: values more of each optimizer that would decide the pair if the means stay as they are; None where it is
            decided, or where no reasonable number would.
        unit: what `more` counts: "seeds" or "searches".
        note: what the reader must know besides the numbers; None where there is nothing.
        margin: δ, the difference below which optimizers count as equivalent; None where the study names none.
        confidence: of the interval, 1 − alpha.
    """

    a: str
    b: str
    test: SignificanceTest
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    verdict: Verdict = Verdict.UNDECIDED
    better: str | None = None
    more: int | None = None
    unit: str = "seeds"
    note: str | None = None
    margin: float | None = None
    confidence: float = 0.95

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        interval = ""
        if self.low is not None and self.high is not None:
            low, high = (self.low, self.high) if self.better in (None, self.a) else (-self.high, -self.low)
            interval = f" ({100 * self.confidence:.4g}% interval {low:.4g} to {high:.4g})"
        note = f". {self.note}" if self.note else ""
        if self.verdict is Verdict.BETTER:
            worse = self.b if self.better == self.a else self.a
            by = "" if self.difference is None else f" by {abs(self.difference):.4g}"
            return f"{self.better} is better than {worse}{by}{interval}{note}"
        if self.verdict is Verdict.EQUIVALENT:
            return f"{self.a} and {self.b} are equivalent within {self.margin:g}{interval}{note}"
        text = f"undecided between {self.a} and {self.b}{interval}"
        if self.more is not None:
            text += f": about {self.more} more {self.unit} each would decide it"
        elif self.low is not None and not self.note:
            text += f": the difference is too small to be decided by {MAX_MORE} more {self.unit}"
        return text + note


@dataclass(frozen=True, kw_only=True)
class Looks:
    """The looks at growing samples at which a decision was possible, the present one last.

    Attributes:
        n: values of each optimizer that takes part until then; increasing.
        spent: share of alpha spent at each look.
    """

    n: tuple[int, ...]
    spent: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a study's optimizers are compared.

    Attributes:
        direction: which values are better.
        test: MODERATED, WELCH or WILCOXON.
        alpha: the chance allowed of any wrong decision in the study.
        margin: δ, in the metric's unit; None: nothing is called equivalent.
        against: compare every optimizer with this one only; None: all pairs.
        earlier: (variance, degrees of freedom) between seeds in comparable earlier studies.
        looks: for samples that grow until the question is decided; None: a single look.
        pairs: compare these pairs of labels only; None: those that `against` leaves.
        unit: what a value is the result of: "seeds" or "searches".
        n_draws: of the simulation behind simultaneous p-values.
    """

    direction: Direction
    test: SignificanceTest = SignificanceTest.MODERATED
    alpha: float = 0.05
    margin: float | None = None
    against: str | None = None
    earlier: Sequence[tuple[float, float]] = field(default=())
    looks: Looks | None = None
    pairs: Sequence[tuple[str, str]] | None = None
    unit: str = "seeds"
    n_draws: int = N_DRAWS


def compare(samples: Mapping[str, Sample], rules: Rules) -> list[PairVerdict]:
    """A verdict for each pair of optimizers.

    Values decide by the test of the rules. Failures decide too: an optimizer with failed runs is never better by those
    that survived, and it is worse where its share of failures is shown to be larger (Fisher's exact test). Where any
    run failed, both tests share alpha.

    Returns:
        A verdict a pair, in the order of the labels.

    Raises:
        AnalysisError: a value is not finite, alpha is not between 0 and 1, or `against` is not a label.
    """
    if rules.against is not None and rules.against not in samples:
        raise AnalysisError(f"contrasts are against {rules.against!r}, which has no results; there are {list(samples)}")
    if not 0 < rules.alpha < 1:
        raise AnalysisError(f"alpha is {rules.alpha}; it must be between 0 and 1")
    for label, sample in samples.items():
        finite(list(sample.values.values()), what=f"values of {label}")
    pairs = rules.pairs
    if pairs is None:
        pairs = [(a, b) for a, b in combinations(samples, 2) if rules.against in (None, a, b)]
    if any(sample.n_failed for sample in samples.values()):
        rules = replace(rules, alpha=rules.alpha / 2, looks=rules.looks and _halved(rules.looks))
        by_values = _by_values(samples, pairs, rules)
        return _with_failures(by_values, samples, rules)
    return _by_values(samples, pairs, rules)


def _halved(looks: Looks) -> Looks:
    return replace(looks, spent=tuple(share / 2 for share in looks.spent))


def _by_values(samples: Mapping[str, Sample], pairs: Sequence[tuple[str, str]], rules: Rules) -> list[PairVerdict]:
    if rules.test is SignificanceTest.MODERATED:
        return _moderated(samples, pairs, rules)
    results = [compare_two(samples[a].values, samples[b].values, test=rules.test) for a, b in pairs]
    verdicts = []
    for (a, b), result, p_adjusted in zip(pairs, results, holm([r.p_value for r in results]), strict=True):
        decided = p_adjusted is not None and p_adjusted < rules.alpha and result.sign != 0
        verdicts.append(
            PairVerdict(
                a=a,
                b=b,
                test=rules.test,
                difference=result.difference,
                p_value=result.p_value,
                p_adjusted=p_adjusted,
                verdict=Verdict.BETTER if decided else Verdict.UNDECIDED,
                better=_better(a, b, result.sign, rules.direction) if decided else None,
                unit=rules.unit,
                note=result.note,
                margin=rules.margin,
                confidence=1 - rules.alpha,
            )
        )
    return verdicts


def _moderated(samples: Mapping[str, Sample], pairs: Sequence[tuple[str, str]], rules: Rules) -> list[PairVerdict]:
    known = {label: sample for label, sample in samples.items() if sample.values}
    groups = groups_of(known, rules.looks)
    index = {label: i for i, label in enumerate(known)}
    compared = [(a, b) for a, b in pairs if a in index and b in index]
    silent = [PairVerdict(a=a, b=b, test=rules.test, unit=rules.unit, margin=rules.margin) for a, b in pairs]
    has_spread = any((group.variance or 0) > 0 for group in groups) or any(v > 0 and df > 0 for v, df in rules.earlier)
    if not compared or not has_spread:
        return [_unanswered(verdict, known) for verdict in silent]
    found = contrasts(
        groups,
        [(index[a], index[b]) for a, b in compared],
        alpha=rules.alpha if rules.looks is None else rules.looks.spent,
        earlier=rules.earlier,
        n_draws=rules.n_draws,
    )
    by_pair = dict(zip(compared, found, strict=True))
    return [
        _verdict(verdict, by_pair[verdict.a, verdict.b], known, rules)
        if (verdict.a, verdict.b) in by_pair
        else _unanswered(verdict, known)
        for verdict in silent
    ]


def _unanswered(verdict: PairVerdict, known: Mapping[str, Sample]) -> PairVerdict:
    empty = [label for label in (verdict.a, verdict.b) if label not in known]
    if empty:
        return replace(verdict, note=f"{' and '.join(empty)} has no run that did not fail")
    means = [math.fsum(known[label].values.values()) / len(known[label].values) for label in (verdict.a, verdict.b)]
    rule = f"No optimizer has two {verdict.unit} that differ, so the spread is unknown"
    return replace(verdict, difference=means[0] - means[1], note=rule)


def _verdict(verdict: PairVerdict, contrast: Contrast, known: Mapping[str, Sample], rules: Rules) -> PairVerdict:
    verdict = replace(
        verdict,
        difference=contrast.difference,
        low=contrast.low,
        high=contrast.high,
        p_value=contrast.p_value,
        p_adjusted=contrast.p_adjusted,
        confidence=1 - rules.alpha,
    )
    if rules.margin is not None and -rules.margin < contrast.low and contrast.high < rules.margin:
        return replace(verdict, verdict=Verdict.EQUIVALENT)
    if contrast.decided:
        better = _better(verdict.a, verdict.b, contrast.difference, rules.direction)
        return replace(verdict, verdict=Verdict.BETTER, better=better)
    n = min(len(known[verdict.a].values), len(known[verdict.b].values))
    return replace(verdict, more=_more(contrast, n=n, margin=rules.margin))


def _more(contrast: Contrast, *, n: int, margin: float | None) -> int | None:
    """Values more until the interval, which shrinks with √n, excludes 0 or lies within the margin."""
    half = (contrast.high - contrast.low) / 2
    distance = abs(contrast.difference)
    room = max(distance, 0.0 if margin is None else margin - distance)
    if room <= 0 or (needed := n * (half / room) ** 2 - n) > MAX_MORE:
        return None
    return max(1, math.ceil(needed))


def _better(a: str, b: str, difference: float, direction: Direction) -> str:
    return a if (difference > 0) is direction.is_maximize else b


def groups_of(known: Mapping[str, Sample], looks: Looks | None = None) -> list[Group]:
    """Means and variances; where the seed is shown to matter, around the seeds' means."""
    seeds = [set(sample.values) for sample in known.values()]
    k = len(known)
    common = sorted(seeds[0], key=repr) if seeds and all(keys == seeds[0] for keys in seeds) else []
    blocked = (
        k > 1 and len(common) > 1 and _seed_matters(np.array([[s.values[c] for c in common] for s in known.values()]))
    )
    seed_mean = {c: math.fsum(s.values[c] for s in known.values()) / k for c in common} if blocked else {}
    groups = []
    for sample in known.values():
        n = len(sample.values)
        values = np.array([value - seed_mean.get(key, 0.0) for key, value in sample.values.items()])
        share = (k - 1) / k if blocked else 1.0  # of a value's variance that is left around the seeds' means
        groups.append(
            Group(
                mean=math.fsum(sample.values.values()) / n,
                variance=float(values.var(ddof=1)) / share if n > 1 else None,
                n=(n,) if looks is None else (*(min(n, count) for count in looks.n[:-1]), n),
                df=(n - 1) * share,
            )
        )
    return groups


def _seed_matters(values: np.ndarray) -> bool:
    """F test of the seed's effect in a table of (optimizers, seeds)."""
    k, n = values.shape
    seed_effect = values.mean(axis=0) - values.mean()
    residual = values - values.mean(axis=1, keepdims=True) - seed_effect
    df = (n - 1) * (k - 1)
    rest = float((residual**2).sum()) / df
    if rest <= 1e-12 * float(values.var()):  # runs that agree to the last digit say nothing of the spread
        return False
    f = k * float((seed_effect**2).sum()) / (n - 1) / rest
    return bool(special.fdtrc(n - 1, df, f) < BLOCK_LEVEL)


def _with_failures(verdicts: Sequence[PairVerdict], samples: Mapping[str, Sample], rules: Rules) -> list[PairVerdict]:
    p_failures = holm(
        [
            fisher_exact(samples[v.a].n_failed, samples[v.a].n, samples[v.b].n_failed, samples[v.b].n)
            if samples[v.a].n_failed or samples[v.b].n_failed
            else None
            for v in verdicts
        ]
    )
    return [_after_failures(verdict, samples, p, rules) for verdict, p in zip(verdicts, p_failures, strict=True)]


def _after_failures(
    verdict: PairVerdict, samples: Mapping[str, Sample], p_failures: float | None, rules: Rules
) -> PairVerdict:
    p_values = [min(1.0, 2 * p) for p in (verdict.p_adjusted, p_failures) if p is not None]
    verdict = replace(verdict, p_adjusted=min(p_values, default=None))
    failed = [label for label in (verdict.a, verdict.b) if samples[label].n_failed]
    if not failed:
        return verdict
    counts = " and ".join(f"{samples[label].n_failed} of {samples[label].n} of {label}" for label in failed)
    note = ". ".join(part for part in (f"Failed runs: {counts}", verdict.note) if part)
    if p_failures is not None and p_failures < rules.alpha:
        share_a, share_b = (samples[label].n_failed / samples[label].n for label in (verdict.a, verdict.b))
        better = verdict.a if share_a < share_b else verdict.b
        return replace(verdict, verdict=Verdict.BETTER, better=better, more=None, note=note)
    if verdict.better is not None and verdict.better not in failed:
        return replace(verdict, note=note)
    return replace(verdict, verdict=Verdict.UNDECIDED, better=None, more=None, note=note)


def fisher_exact(failed_a: int, n_a: int, failed_b: int, n_b: int) -> float:
    """Two-sided p-value of equal failure rates: twice the smaller tail of the hypergeometric distribution.

    Source: Fisher, "Statistical Methods for Research Workers", 1934.
    """
    total, failed = n_a + n_b, failed_a + failed_b
    chances = [
        math.comb(n_a, i) * math.comb(n_b, failed - i) for i in range(max(0, failed - n_b), min(n_a, failed) + 1)
    ]
    at = failed_a - max(0, failed - n_b)
    smaller = min(sum(chances[: at + 1]), sum(chances[at:]))
    return min(1.0, 2 * smaller / math.comb(total, failed))


def detectable_difference(rules: Rules, *, n_optimizers: int, n: int, std: float = 1.0) -> float:
    """Difference of two means that a study of equal variances shows with a probability of 80 %.

    Args:
        rules: with looks, the seeds and alpha of each; `against`: every optimizer is compared with one only.
        n_optimizers: at least 2.
        n: values of each at the last look, at least 2.
        std: standard deviation between the values of one optimizer, in the metric's unit; 1: the answer is in
            standard deviations.

    Returns:
        The difference, in the unit of `std`.

    Raises:
        AnalysisError: fewer than two optimizers or values.
    """
    if n_optimizers < 2 or n < 2:
        raise AnalysisError(
            f"{n_optimizers} optimizers with {n} values each show no difference; both must be at least 2"
        )
    looks = rules.looks or Looks(n=(n,), spent=(rules.alpha,))
    return std * detectable(n_optimizers, looks.n, looks.spent, family="pairs" if rules.against is None else "one")
