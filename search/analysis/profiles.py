"""Optimizers across tasks: performance profiles, the area below them, and ranks with Friedman's test.

Owns what is made of one number a task and an optimizer. Does not own where the number comes from, nor which tasks are
compared (search.analysis.across).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from search.analysis.summary import AnalysisError
from search.states import Direction

TAU_MAX = 4.0
"""How many times slower than the fastest still earns anything; AlgoPerf's value."""
DISTANCE_MAX = 4.0
"""How far behind the best still earns anything, in standard deviations of a run."""
N_DRAWS = 20_000
"""Permutations behind a p-value: it has a standard error of at most 0.0016 at 0.05."""

_PERMUTED, _FEWEST_DRAWS = 4e7, 2_000  # ranks permuted, in a second; 0.05 ± 0.005 with the fewest


@dataclass(frozen=True, kw_only=True)
class PerformanceProfile:
    """For one optimizer, ρ(τ): on what share of the tasks it needs at most τ times the best optimizer's time.

    Attributes:
        ratios: its time over the best time, by task; ∞ where it missed. In a profile of distances, its distance.
        tau, rho: the corners of the step function on [1, tau_max]: rho[i] holds from tau[i] up to tau[i + 1].
        area: the mean of ρ over [1, tau_max], between 0 and 1: AlgoPerf's benchmark score.
    """

    ratios: Mapping[str, float]
    tau: tuple[float, ...]
    rho: tuple[float, ...]
    area: float


def performance_profiles(
    times: Mapping[str, Mapping[str, float]], *, tau_max: float = TAU_MAX
) -> dict[str, PerformanceProfile]:
    """Performance profile and its area for each optimizer.

    Args:
        times: by optimizer and task the time (or steps) to the target, above 0; ∞ for a miss. Every optimizer needs
            the same tasks. A task that nobody solves counts against all.
        tau_max: where the profile ends; above 1.

    Raises:
        AnalysisError: tasks differ between optimizers, there are none, or a time is not above 0.

    Source: Dolan and Moré, "Benchmarking optimization software with performance profiles", 2002; Dahl et al.,
    "Benchmarking Neural Network Training Algorithms", 2023, with τ_max = 4.
    """
    if not (math.isfinite(tau_max) and tau_max > 1):
        raise AnalysisError(f"tau_max is {tau_max}; it must be finite and above 1")
    tasks = _same_tasks(times)
    best = {task: min(of[task] for of in times.values()) for task in tasks}
    profiles = {}
    for optimizer, of in times.items():
        ratios = {task: of[task] / best[task] if math.isfinite(of[task]) else math.inf for task in tasks}
        profiles[optimizer] = step_profile(ratios, low=1.0, high=tau_max)
    return profiles


def step_profile(ratios: Mapping[str, float], *, low: float, high: float) -> PerformanceProfile:
    """The share of tasks at or below each value between `low` and `high`.

    Args:
        ratios: by task, `low` for the best optimizer there; ∞ for a miss. At least one.
    """
    corners = sorted({low, high} | {ratio for ratio in ratios.values() if ratio <= high})
    rho = [sum(ratio <= tau for ratio in ratios.values()) / len(ratios) for tau in corners]
    earned = math.fsum(max(0.0, high - ratio) for ratio in ratios.values())
    return PerformanceProfile(
        ratios=dict(ratios), tau=tuple(corners), rho=tuple(rho), area=earned / ((high - low) * len(ratios))
    )


def _same_tasks(times: Mapping[str, Mapping[str, float]]) -> list[str]:
    tasks = list(next(iter(times.values()), {}))
    if times and not tasks:
        raise AnalysisError("times name no task; at least one is needed")
    for optimizer, of in times.items():
        if of.keys() != set(tasks):
            odd = sorted(of.keys() ^ set(tasks))
            raise AnalysisError(
                f"optimizer {optimizer!r} and {next(iter(times))!r} differ in the tasks {odd}; a profile compares them "
                "on the same ones. Leave those tasks out, or give ∞ for a task that was tried and missed"
            )
        for task, time in of.items():
            if not time > 0:  # NaN too
                raise AnalysisError(f"time of {optimizer!r} on {task!r} is {time}; it must be above 0, or ∞ for a miss")
    return tasks


class Ties(StrEnum):
    """What rank equal values get."""

    COMPETITION = "competition"
    """The best of the ranks they span: 1, 2, 2, 4."""

    MEAN = "mean"
    """The mean of the ranks they span: 1, 2.5, 2.5, 4; ranks then add up the same on every task."""


def rank(
    values: Mapping[str, float | None], *, direction: Direction, ties: Ties = Ties.COMPETITION
) -> dict[str, float | None]:
    """Ranks by value, 1 the best; None for those without a finite value.

    Args:
        values: by optimizer, on one task.
        direction: which values are better.
        ties: what equal values get.
    """
    finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    costs = {name: direction.cost(value) for name, value in finite.items()}
    ranks: dict[str, float | None] = {}
    for name in values:
        if name not in costs:
            ranks[name] = None
            continue
        n_better = sum(cost < costs[name] for cost in costs.values())
        n_equal = sum(cost == costs[name] for cost in costs.values())
        ranks[name] = n_better + (1 if ties is Ties.COMPETITION else (n_equal + 1) / 2)
    return ranks


def full_ranks(values: Mapping[str, float | None], *, direction: Direction) -> dict[str, float]:
    """Ranks by value, 1 the best, ties by their mean rank; those without a finite value share the last ranks."""
    ranks = rank(values, direction=direction, ties=Ties.MEAN)
    n_failed = sum(of is None for of in ranks.values())
    last = len(ranks) - (n_failed - 1) / 2
    return {name: last if of is None else of for name, of in ranks.items()}


@dataclass(frozen=True, kw_only=True)
class Friedman:
    """Friedman's test of equal ranks over tasks, with the critical difference of mean ranks.

    Attributes:
        mean_ranks: by optimizer; 1 is the best.
        n_tasks: tasks on which every optimizer has a rank.
        statistic: Friedman's chi-square with the correction for ties; None where it is undefined (fewer than two tasks
            or optimizers, or all ranks tied).
        p_value: of the null that all optimizers perform alike; by permutation of the ranks within tasks.
        critical_difference: two mean ranks that differ by more are shown to be different: Nemenyi's, or what the same
            permutations give where that is larger, as with few tasks.
    """

    mean_ranks: Mapping[str, float]
    n_tasks: int
    statistic: float | None
    p_value: float | None
    critical_difference: float | None


def friedman(
    tasks: Sequence[tuple[Mapping[str, float | None], Direction]], *, alpha: float = 0.05, n_draws: int = N_DRAWS
) -> Friedman:
    """Whether optimizers rank differently over tasks, and by how much mean ranks must differ.

    The chi-square approximation needs many tasks, and Nemenyi's difference with two optimizers and four tasks calls
    equal ones different with probability 1/8. Permutations are exact at any number of tasks, ties included.

    Args:
        tasks: for each task the values by optimizer and the direction; a failed optimizer has None and the last rank.
            All tasks must name the same optimizers.
        alpha: level of the critical difference.
        n_draws: permutations, with a fixed seed; fewer where there are very many ranks.

    Raises:
        AnalysisError: tasks name different optimizers.

    Source: Friedman, 1937; Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006, for
    Nemenyi's critical difference.
    """
    names = list(tasks[0][0]) if tasks else []
    if any(set(values) != set(names) for values, _ in tasks):
        raise AnalysisError("the tasks name different optimizers; Friedman's test needs a rank of each on every task")
    rows = [full_ranks(values, direction=direction) for values, direction in tasks]
    n, k = len(tasks), len(names)
    means = {name: math.fsum(row[name] for row in rows) / n for name in names}
    silent = Friedman(mean_ranks=means, n_tasks=n, statistic=None, p_value=None, critical_difference=None)
    if n < 2 or k < 2:
        return silent
    ranks = np.array([[row[name] for name in names] for row in rows])
    within = float((ranks**2).sum() - n * k * (k + 1) ** 2 / 4)
    if within < 1e-9:
        return silent
    n_draws = min(n_draws, max(_FEWEST_DRAWS, int(_PERMUTED / ranks.size)))
    sums = _permuted_sums(ranks, n_draws)
    spread = ((ranks.sum(axis=0) - n * (k + 1) / 2) ** 2).sum()
    drawn = ((sums - n * (k + 1) / 2) ** 2).sum(axis=1)
    of_permutations = np.quantile(np.ptp(sums, axis=1), 1 - alpha, method="higher") / n
    return replace(
        silent,
        statistic=float((k - 1) * spread / within),
        p_value=(1 + int((drawn >= spread - 1e-9).sum())) / (1 + n_draws),
        critical_difference=max(_nemenyi(k, alpha) * math.sqrt(k * (k + 1) / (6 * n)), float(of_permutations)),
    )


def _permuted_sums(ranks: NDArray[np.float64], n_draws: int) -> NDArray[np.float64]:
    """Sums of each optimizer's ranks, of shape (n_draws, optimizers), where no task prefers any."""
    rng = np.random.default_rng(0)
    sums = np.zeros((n_draws, ranks.shape[1]))
    for row in ranks:
        sums += rng.permuted(np.tile(row, (n_draws, 1)), axis=1)
    return sums


@lru_cache(maxsize=1000)  # 50 ms each
def _nemenyi(k: int, alpha: float) -> float:
    """Nemenyi's q: the studentized range of k groups with infinite degrees of freedom, over the root of 2."""
    from scipy import stats  # takes a second to import

    return float(stats.studentized_range.ppf(1 - alpha, k, np.inf)) / math.sqrt(2)


def groups(ranks: Mapping[str, float], *, critical_difference: float) -> list[list[str]]:
    """The largest sets of optimizers whose mean ranks do not differ by more than the critical difference, best first.

    Every optimizer is in at least one; two that no set has in common are shown to be different.
    """
    ordered = sorted(ranks, key=lambda name: ranks[name])
    found: list[list[str]] = []
    for i, first in enumerate(ordered):
        together = [name for name in ordered[i:] if ranks[name] - ranks[first] <= critical_difference + 1e-9]
        if not found or together[-1] not in found[-1]:
            found.append(together)
    return found
