"""Optimizers across tasks: performance profiles, the area below them, and ranks.

Owns what is made of one number a task and an optimizer. Does not own where the number comes from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

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
            and gets the last rank. One that a task doesn't name is averaged over the others, where fewer rivals
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
