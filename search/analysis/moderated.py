"""Simultaneous comparison of several means whose variances are moderated by one another.

With three seeds an optimizer's own variance is hardly known; the variances of the study's other optimizers say more.
Each optimizer's variance is therefore estimated from all of them (empirical Bayes, Smyth 2004), robustly: a share of
optimizers may have any variance, so that an unstable one neither hides behind the others nor spoils them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from search.analysis.summary import AnalysisError

Floats = NDArray[np.float64]

LOG_VARIANCE = np.linspace(-9.0, 9.0, 145)
"""Grid of log variances, relative to the median variance of the groups: a factor of 8,000 to both sides."""

CENTRES = np.linspace(-4.0, 4.0, 41)
SPREADS = np.array([0.08, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5])
SPREAD_SCALE = 0.5
"""Scale of the half-Cauchy prior on the standard deviation of log variances between optimizers. That of 24 recipes of
one GPT (8 to 30 seeds each) is about 0.4."""

OUTLIER_SHARE, OUTLIER_SHARE_OF_TWO, OUTLIER_SPREAD = 0.3, 0.5, 3.0
"""A group's variance is unlike the others' with this probability; it then has a log-normal spread of e³ around them."""

LEVEL = 0.9
"""Share of alpha that a comparison spends. With three values each, a group of unusual variance is too often taken for
one of the others; with this share the family error stays at alpha (`python -m benchmarks.verdicts`)."""

LEVEL_OF_LOOKS = 0.6
"""The same where there are several looks: variances that are known better at a later look count at the earlier ones, so
that more crosses than is spent."""

N_DRAWS = 20_000
"""Draws behind simultaneous p-values and intervals: 0.05 ± 0.0015."""

MANY_PAIRS = 200
"""Above this number of pairs all have one threshold on their own scale: 100 optimizers take 2 s and 0.2 GB, where a
threshold for each would take 25 s and 4 GB."""

_CHUNK, _TAIL = 50, 0.998


@dataclass(frozen=True, kw_only=True)
class Group:
    """The values of one optimizer in a few numbers.

    Attributes:
        mean: of the n values.
        variance: of the values around their mean, with `df` degrees of freedom; None for df = 0.
        n: values at each look, the present one last; they do not decrease. One look unless the number grows as the
            results come in.
        df: degrees of freedom of the variance, n − 1 for independent values.
    """

    mean: float
    variance: float | None
    n: tuple[int, ...]
    df: float


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Two groups compared, a minus b, in the unit of the values.

    Attributes:
        difference: mean of a minus mean of b.
        low, high: interval that holds simultaneously for all contrasts (and looks) with probability 1 − alpha.
        p_value: two-sided, of this contrast and look alone.
        p_adjusted: two-sided, adjusted for all contrasts of this look.
        decided: whether the difference is shown at level alpha. At one look p-values are adjusted step by step
            (Westfall and Young), which may decide a pair whose interval just includes 0.
        detectable: difference that would be shown with a probability of 80 % with as many values, alpha and variances.
    """

    a: int
    b: int
    difference: float
    low: float
    high: float
    p_value: float
    p_adjusted: float
    decided: bool
    detectable: float


def contrasts(
    groups: Sequence[Group],
    pairs: Sequence[tuple[int, int]],
    *,
    alpha: float | Sequence[float] = 0.05,
    earlier: Sequence[tuple[float, float]] = (),
    n_draws: int = N_DRAWS,
) -> tuple[Contrast, ...]:
    """Compare pairs of groups, with p-values and intervals that hold for all pairs at once.

    The posterior of each variance is computed on a grid; means have flat priors. Simultaneous thresholds come from
    simulated errors of all means, so that the correlation between pairs counts. The simulation's seed is fixed: equal
    groups give equal results.

    Args:
        groups: at least two, each with n ≥ 1. A group without a variance takes what the others say.
        pairs: indices of the groups to compare.
        alpha: the chance of any wrong decision; for several looks the share spent at each.
        earlier: (variance, degrees of freedom) of groups of comparable earlier studies, which inform the prior.
        n_draws: of the simulation.

    Returns:
        A contrast for each pair, for the last look.

    Raises:
        AnalysisError: no group has a positive variance, or alpha is not between 0 and 1.

    Source: Smyth, "Linear models and empirical Bayes methods", 2004; Phipson et al., "Robust hyperparameter
    estimation", 2016; simultaneous thresholds as Westfall and Young, 1993; spending over looks as Lan and DeMets, 1983.
    """
    spent = (alpha,) if isinstance(alpha, float) else tuple(alpha)
    if not (all(share > 0 for share in spent) and sum(spent) < 1):
        raise AnalysisError(f"alpha is {alpha}; it must be between 0 and 1")
    if any(len(group.n) != len(spent) for group in groups):
        raise AnalysisError(f"{len(spent)} shares of alpha are given; every group needs its n at as many looks")
    return _contrasts(tuple(groups), tuple(pairs), spent, tuple(earlier), n_draws)


@lru_cache(maxsize=256)  # a page and a driver ask again and again for the same results; nine optimizers take 0.1 s
def _contrasts(
    groups: tuple[Group, ...],
    pairs: tuple[tuple[int, int], ...],
    spent: tuple[float, ...],
    earlier: tuple[tuple[float, float], ...],
    n_draws: int,
) -> tuple[Contrast, ...]:
    a, b = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    rng = np.random.default_rng(0)
    variances = _draw_variances(groups, earlier, n_draws, rng)
    errors = _errors(np.sqrt(variances), np.array([group.n for group in groups]), rng)
    means = np.array([group.mean for group in groups])
    difference = means[a] - means[b]
    of_mean = variances / np.array([group.n[-1] for group in groups])[:, None]
    if len(pairs) > MANY_PAIRS:
        limits, adjusted = _common_thresholds(errors, a, b, np.abs(difference), _shares(spent))
        some = of_mean[:, : max(1, n_draws // 10)]  # p-values of single pairs decide nothing
        p_values = np.array([_p_value(abs(d), some[i] + some[j]) for i, j, d in zip(a, b, difference, strict=True)])
    else:
        limits, tails = _thresholds([np.abs(error[a] - error[b]) for error in errors], _shares(spent))
        p_values = np.array(
            [_p_value(abs(d), of_mean[i] + of_mean[j]) for i, j, d in zip(a, b, difference, strict=True)]
        )
        adjusted = _adjusted(p_values, tails)
    adjusted = np.minimum(1.0, adjusted / LEVEL)
    decided = np.abs(difference) > limits if len(spent) > 1 else adjusted < sum(spent)
    mean_variance = of_mean.mean(axis=1)
    detectable = limits + special.ndtri(0.8) * np.sqrt(mean_variance[a] + mean_variance[b])
    return tuple(
        Contrast(
            a=int(a[i]),
            b=int(b[i]),
            difference=float(difference[i]),
            low=float(difference[i] - limits[i]),
            high=float(difference[i] + limits[i]),
            p_value=float(p_values[i]),
            p_adjusted=float(adjusted[i]),
            decided=bool(decided[i]),
            detectable=float(detectable[i]),
        )
        for i in range(len(pairs))
    )


def _p_value(distance: float, variances: Floats) -> float:
    """Two-sided p-value of one difference, over the draws of its variance."""
    return float((2 * special.ndtr(-distance / np.sqrt(variances))).mean())


def _shares(spent: Sequence[float]) -> list[float]:
    """What is really spent of each look's alpha, so that the family error stays at their sum."""
    return [(LEVEL if len(spent) == 1 else LEVEL_OF_LOOKS) * share for share in spent]


def errors_of_means(
    groups: Sequence[Group], *, earlier: Sequence[tuple[float, float]] = (), n_draws: int = N_DRAWS
) -> Floats:
    """Draws of how far each group's true mean may be from its mean, (groups, n_draws), with a flat prior of the means.

    Variances are moderated as in `contrasts`. The seed is fixed: equal groups give equal draws.

    Raises:
        AnalysisError: no group has a positive variance.
    """
    rng = np.random.default_rng(0)
    variances = _draw_variances(tuple(groups), tuple(earlier), n_draws, rng)
    n = np.array([group.n[-1] for group in groups])[:, None]
    found: Floats = np.sqrt(variances / n) * rng.standard_normal(variances.shape)
    return found


@lru_cache(maxsize=256)
def detectable(
    n_groups: int, n: tuple[int, ...], spent: tuple[float, ...], *, family: Literal["pairs", "one"]
) -> float:
    """`Contrast.detectable` before there are values, for groups of variance 1. Any number of groups takes 0.1 s.

    Args:
        n: values of each group at each look; n[-1] at least 2.
        spent: share of alpha at each look.
        family: all pairs are compared, or each group with the first one.
    """
    group = Group(mean=0.0, variance=1.0, n=n, df=n[-1] - 1)
    rng = np.random.default_rng(0)
    variances = _draw_variances([group] * n_groups, (), N_DRAWS, rng)
    errors = _errors(np.sqrt(variances), np.array([n] * n_groups), rng)
    # Equal groups are exchangeable: the largest error of any pair has the threshold of each.
    if family == "pairs":
        largest = [np.ptp(error, axis=0) for error in errors]
    else:
        largest = [np.abs(error[1:] - error[0]).max(axis=0) for error in errors]
    (limit,), _ = _thresholds([each[None] for each in largest], _shares(spent))
    return float(limit + special.ndtri(0.8) * np.sqrt(2 * variances.mean() / n[-1]))


def _adjusted(p_values: Floats, tails: Floats) -> Floats:
    """Step-down p-values: each pair is compared with the smallest of the pairs that are not more extreme."""
    n_draws = tails.shape[1]
    order = np.argsort(p_values, kind="stable")
    smallest = np.minimum.accumulate(tails[order][::-1], axis=0)[::-1]
    exceeded = (smallest <= p_values[order][:, None]).sum(axis=1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate((exceeded + 1) / (n_draws + 1))
    return adjusted


def _draw_variances(
    groups: Sequence[Group], earlier: Sequence[tuple[float, float]], n_draws: int, rng: np.random.Generator
) -> Floats:
    """Draws from each group's posterior variance, (groups, n_draws).

    Given the centre and spread of the log variances the groups are independent; posteriors are averaged over both.
    """
    known = [(group.variance or 0.0, group.df) for group in groups]
    observed = np.array([*known, *earlier])
    positive = observed[(observed[:, 0] > 0) & (observed[:, 1] > 0)][:, 0]
    if not len(positive):
        raise AnalysisError("no group has any spread; at least one needs two values that differ")
    centre = float(np.log(np.median(positive)))
    log_variance = LOG_VARIANCE + centre
    variance, df = observed[:, :1], observed[:, 1:]
    log_likelihood = -0.5 * df * (log_variance + variance * np.exp(-log_variance))
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    prior, log_weight = _prior(OUTLIER_SHARE_OF_TWO if len(observed) == 2 else OUTLIER_SHARE)
    marginal = likelihood @ prior.T
    log_posterior = log_weight + np.log(np.maximum(marginal, 1e-300)).sum(axis=0)
    weight = np.exp(log_posterior - log_posterior.max())
    posterior = likelihood * ((weight / np.maximum(marginal, 1e-300)) @ prior)
    cumulative = np.cumsum(posterior[: len(groups)], axis=1)
    uniform = rng.random((len(groups), n_draws))
    drawn = [
        np.exp(log_variance[np.searchsorted(row / row[-1], u)]) for row, u in zip(cumulative, uniform, strict=True)
    ]
    return np.array(drawn)


@cache
def _prior(outlier_share: float) -> tuple[Floats, Floats]:
    """Densities of a group's log variance for each (centre, spread), and the log weights of these."""
    centre, spread = (axis.reshape(-1, 1) for axis in np.meshgrid(CENTRES, SPREADS, indexing="ij"))
    alike = np.exp(-0.5 * ((LOG_VARIANCE - centre) / spread) ** 2)
    unlike = np.exp(-0.5 * ((LOG_VARIANCE - centre) / OUTLIER_SPREAD) ** 2)
    alike, unlike = (density / density.sum(axis=1, keepdims=True) for density in (alike, unlike))
    log_weight = -np.log1p((spread[:, 0] / SPREAD_SCALE) ** 2)
    return (1 - outlier_share) * alike + outlier_share * unlike, log_weight


def _errors(std: Floats, n: NDArray[np.int64], rng: np.random.Generator) -> list[Floats]:
    """Errors of the means at each look, (groups, n_draws): sums of independent errors grow with n."""
    total = np.zeros_like(std)
    before = np.zeros(len(n), dtype=n.dtype)
    errors = []
    for count in n.T:
        total = total + np.sqrt(count - before)[:, None] * std * rng.standard_normal(std.shape)
        errors.append(total / count[:, None])
        before = count
    return errors


def _thresholds(looks: Sequence[Floats], spent: Sequence[float]) -> tuple[Floats, Floats]:
    """For the last look, the error that each pair may have, and the tail probability of each simulated error.

    At each look an error counts as too large by its own pair's tail probability, so that a noisy group does not widen
    the other pairs' intervals. The thresholds of the looks before are those of the same simulation.
    """
    n_draws = looks[0].shape[1]
    crossed = np.zeros(n_draws, dtype=bool)
    limits = tails = np.empty(0)
    for errors, total in zip(looks, np.cumsum(spent), strict=True):
        order = np.argsort(-errors, axis=1)
        tails = np.empty_like(errors)
        np.put_along_axis(tails, order, np.broadcast_to(np.arange(1, n_draws + 1) / n_draws, errors.shape), axis=1)
        smallest = tails.min(axis=0)
        open_ = smallest[~crossed]
        n_more = min(len(open_) - 1, max(1, round(total * n_draws) - int(crossed.sum())))
        threshold = np.partition(open_, n_more)[n_more]
        crossed |= smallest < threshold
        rank = min(n_draws - 1, max(0, int(threshold * n_draws) - 1))
        limits = np.take_along_axis(errors, order[:, rank, None], axis=1)[:, 0]
    return limits, tails


def _common_thresholds(
    errors: Sequence[Floats],
    a: NDArray[np.intp],
    b: NDArray[np.intp],
    distance: Floats,
    spent: Sequence[float],
) -> tuple[Floats, Floats]:
    """For the last look, the error that each pair may have, and step-down p-values; for many pairs.

    An error counts by its ratio to the pair's scale, which far errors of both means give. The largest ratio of any pair
    has one threshold, so that no pair needs its own tail, and memory does not grow with the pairs.

    Args:
        errors: as `_errors`, of each look.
        a, b: indices of the pairs' groups.
        distance: of the means of each pair.
        spent: share of alpha at each look.
    """
    n_draws = errors[0].shape[1]
    crossed = np.zeros(n_draws, dtype=bool)
    scale, threshold = np.empty(0), 0.0
    for error, total in zip(errors, np.cumsum(spent), strict=True):
        far = np.quantile(np.abs(error), _TAIL, axis=1)
        scale = np.hypot(far[a], far[b])
        largest = np.zeros(n_draws)
        for some in np.array_split(np.arange(len(a)), math.ceil(len(a) / _CHUNK)):
            np.maximum(largest, _ratios(error, a, b, scale, some).max(axis=0), out=largest)
        open_ = -np.sort(-largest[~crossed])
        n_more = max(1, round(total * n_draws) - int(crossed.sum()))
        threshold = float(open_[min(n_more, len(open_) - 1)])
        crossed |= largest > threshold
    order = np.argsort(distance / scale, kind="stable")
    largest, exceeded = np.zeros(n_draws), np.empty(len(a))
    for some in np.array_split(order, math.ceil(len(a) / _CHUNK)):
        ratios = np.maximum.accumulate(np.vstack([largest, _ratios(errors[-1], a, b, scale, some)]), axis=0)[1:]
        exceeded[some] = (ratios >= (distance / scale)[some][:, None]).sum(axis=1)
        largest = ratios[-1]
    adjusted = np.empty(len(a))
    adjusted[order[::-1]] = np.maximum.accumulate((exceeded[order[::-1]] + 1) / (n_draws + 1))
    return threshold * scale, adjusted


def _ratios(error: Floats, a: NDArray[np.intp], b: NDArray[np.intp], scale: Floats, some: NDArray[np.intp]) -> Floats:
    """Simulated errors of these pairs over their scales, (pairs, n_draws)."""
    found: Floats = np.abs(error[a[some]] - error[b[some]]) / scale[some][:, None]
    return found
