"""Optimizers across tasks: performance profiles, the area below them, and ranks.

Owns what is made of one number a task and an optimizer. Does not own where the number comes from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy import special

from search.analysis.checks import AnalysisError, is_maximize
from search.states import Direction

TAU_MAX = 4.0
"""How many times slower than the fastest still earns anything; AlgoPerf's value."""


@dataclass(frozen=True, kw_only=True)
class PerformanceProfile:
    """For one optimizer, ρ(τ): on what share of the tasks it needs at most τ times the best optimizer's time.

    Attributes:
        ratios: its time over the best time, by task; ∞ where it missed.
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
        profiles[optimizer] = _profile(ratios, tau_max=tau_max)
    return profiles


def _profile(ratios: Mapping[str, float], *, tau_max: float) -> PerformanceProfile:
    corners = sorted({1.0, tau_max} | {ratio for ratio in ratios.values() if ratio <= tau_max})
    rho = [sum(ratio <= tau for ratio in ratios.values()) / len(ratios) for tau in corners]
    earned = math.fsum(max(0.0, tau_max - ratio) for ratio in ratios.values())
    return PerformanceProfile(
        ratios=dict(ratios), tau=tuple(corners), rho=tuple(rho), area=earned / ((tau_max - 1) * len(ratios))
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
    values: Mapping[str, float | None], *, direction: Direction | str, ties: Ties = Ties.COMPETITION
) -> dict[str, float | None]:
    """Ranks by value, 1 the best; None for those without a finite value.

    Args:
        values: by optimizer, on one task.
        direction: "maximize" or "minimize".
        ties: what equal values get.
    """
    sign = -1.0 if is_maximize(direction) else 1.0
    costs = {name: sign * value for name, value in values.items() if value is not None and math.isfinite(value)}
    ranks: dict[str, float | None] = {}
    for name in values:
        if name not in costs:
            ranks[name] = None
            continue
        n_better = sum(cost < costs[name] for cost in costs.values())
        n_equal = sum(cost == costs[name] for cost in costs.values())
        ranks[name] = n_better + (1 if ties is Ties.COMPETITION else (n_equal + 1) / 2)
    return ranks


def mean_ranks(tasks: Sequence[tuple[Mapping[str, float | None], Direction | str]]) -> dict[str, float]:
    """Mean over tasks of each optimizer's rank, ties by their mean rank.

    Args:
        tasks: for each task the values by optimizer and the direction. One that was tried and failed has None there
            and gets the last rank. One that a task doesn't name is averaged over the others, where fewer competitors
            may have been ranked: compare the same optimizers on every task where you can.
    """
    collected: dict[str, list[float]] = {}
    for values, direction in tasks:
        ranks = rank(values, direction=direction, ties=Ties.MEAN)
        failed = [name for name, of in ranks.items() if of is None]
        last = len(ranks) - (len(failed) - 1) / 2  # the mean of the ranks that the failed ones share
        for name, of in ranks.items():
            collected.setdefault(name, []).append(last if of is None else of)
    return {name: math.fsum(of) / len(of) for name, of in collected.items()}


@dataclass(frozen=True, kw_only=True)
class Friedman:
    """Friedman's test of equal ranks over tasks, with the critical difference of mean ranks.

    Attributes:
        mean_ranks: by optimizer; 1 is the best.
        n_tasks: tasks on which every optimizer has a rank.
        statistic: Iman and Davenport's F; None where it is undefined (one task, one optimizer, or all ranks tied).
        p_value: of the null that all optimizers perform alike.
        critical_difference: two mean ranks that differ by more are shown to be different at 5 % (Nemenyi).
    """

    mean_ranks: Mapping[str, float]
    n_tasks: int
    statistic: float | None
    p_value: float | None
    critical_difference: float | None


def friedman(tasks: Sequence[tuple[Mapping[str, float | None], Direction]], *, alpha: float = 0.05) -> Friedman:
    """Whether optimizers rank differently over tasks, and by how much mean ranks must differ.

    Args:
        tasks: for each task the values by optimizer and the direction; a failed optimizer has None and the last rank.
            All tasks must name the same optimizers.
        alpha: level of the critical difference.

    Raises:
        AnalysisError: tasks name different optimizers.

    Source: Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006.
    """
    names = list(tasks[0][0]) if tasks else []
    if any(set(values) != set(names) for values, _ in tasks):
        raise AnalysisError("the tasks name different optimizers; Friedman's test needs a rank of each on every task")
    means, n, k = mean_ranks(tasks), len(tasks), len(names)
    silent = Friedman(mean_ranks=means, n_tasks=n, statistic=None, p_value=None, critical_difference=None)
    if n < 2 or k < 2:
        return silent
    from scipy import stats  # takes a second to import

    critical = (
        float(stats.studentized_range.ppf(1 - alpha, k, np.inf)) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n))
    )
    chi2 = 12 * n / (k * (k + 1)) * (math.fsum(rank**2 for rank in means.values()) - k * (k + 1) ** 2 / 4)
    rest = n * (k - 1) - chi2
    if rest <= 1e-9:  # the same order on every task
        return replace(silent, statistic=math.inf, p_value=0.0, critical_difference=critical)
    statistic = (n - 1) * chi2 / rest
    p_value = float(special.fdtrc(k - 1, (k - 1) * (n - 1), max(0.0, statistic)))
    return replace(silent, statistic=statistic, p_value=p_value, critical_difference=critical)
