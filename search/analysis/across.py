"""Optimizers across tasks: which of them can be compared, and what profiles and ranks say.

Owns the choice of tasks and optimizers, and what a failed run counts as. Does not own where outcomes come from, nor the
statistics (search.analysis.profiles).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from search.analysis.profiles import (
    DISTANCE_MAX,
    Friedman,
    PerformanceProfile,
    friedman,
    groups,
    performance_profiles,
    step_profile,
)
from search.analysis.summary import spread, typical_std
from search.states import Direction

ALPHA = 0.05
MAX_SETS = 1000
"""Sets of optimizers that are looked at for the largest comparison."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one optimizer reached on one task.

    Attributes:
        values: final validation values of the runs that ended well, in the objective's unit.
        n_failed: the other runs. With one or more the optimizer ranks behind all with a smaller share of them.
        time: steps or seconds to the target; ∞ for a miss, None where the task has no target.
    """

    values: tuple[float, ...]
    n_failed: int = 0
    time: float | None = None

    def place(self, direction: Direction) -> tuple[float, float] | None:
        """What it is ranked by, smaller is better: its share of failed runs, then its mean. None without a value."""
        mean = spread(self.values).mean
        if mean is None:
            return None
        return self.n_failed / (self.n_failed + len(self.values)), direction.cost(mean)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task with the outcomes of the optimizers on it; the same optimizers on every task of a comparison."""

    direction: Direction
    outcomes: Mapping[str, Outcome]

    @property
    def is_void(self) -> bool:
        """Whether it says nothing of the optimizers: all have failed, or all have the same result."""
        return len({outcome.place(self.direction) for outcome in self.outcomes.values()}) == 1

    def positions(self) -> dict[str, float | None]:
        """By optimizer, a number to rank by, smaller is better; None without a value."""
        places = {name: outcome.place(self.direction) for name, outcome in self.outcomes.items()}
        order = sorted({place for place in places.values() if place is not None})
        return {name: None if place is None else float(order.index(place)) for name, place in places.items()}

    def std(self) -> float | None:
        """Standard deviation of a run between seeds; None where no optimizer has runs that differ and no failed one."""
        return typical_std(outcome.values for outcome in self.outcomes.values() if not outcome.n_failed)

    def distances(self, std: float) -> dict[str, float]:
        """By optimizer, how far its mean lies behind the best one's, in standard deviations; ∞ with a failed run."""
        places = {name: outcome.place(self.direction) for name, outcome in self.outcomes.items()}
        costs = {name: place[1] for name, place in places.items() if place is not None and place[0] == 0}
        best = min(costs.values(), default=math.inf)
        return {name: (costs[name] - best) / std if name in costs else math.inf for name in self.outcomes}


@dataclass(frozen=True, kw_only=True)
class Across:
    """Optimizers compared across tasks.

    Attributes:
        by_time: performance profile of the time to the target, by optimizer; empty where no task has a target.
        by_value: by optimizer, the share of tasks on which its mean is at most x standard deviations behind the best
            one's, for x from 0 to 4; empty where no task has a standard deviation.
        without_time, without_value: why a task is not in these profiles, by task.
        stds: standard deviation of a run, by task, where known.
        test: Friedman's, over all tasks.
        groups: optimizers that are not shown to be different, best first: all of them unless Friedman's test shows a
            difference.
    """

    by_time: Mapping[str, PerformanceProfile]
    by_value: Mapping[str, PerformanceProfile]
    without_time: Mapping[str, str]
    without_value: Mapping[str, str]
    stds: Mapping[str, float]
    test: Friedman
    groups: Sequence[Sequence[str]]


def across(tasks: Mapping[str, Task]) -> Across:
    """Compare optimizers across tasks.

    Args:
        tasks: by any name; each has the same optimizers, and none is void.

    Raises:
        AnalysisError: tasks have different optimizers.
    """
    names = list(next(iter(tasks.values())).outcomes) if tasks else []
    stds = {key: std for key, task in tasks.items() if (std := task.std())}
    without_time = {key: why for key, task in tasks.items() if (why := _why_untimed(task))}
    distances = {key: tasks[key].distances(std) for key, std in stds.items()}
    test = friedman([(task.positions(), Direction.MINIMIZE) for task in tasks.values()], alpha=ALPHA)
    timed = [key for key in tasks if key not in without_time]
    times = {name: {key: tasks[key].outcomes[name].time or math.inf for key in timed} for name in names}
    return Across(
        by_time=performance_profiles(times) if timed else {},
        by_value={
            name: step_profile({key: of[name] for key, of in distances.items()}, low=0.0, high=DISTANCE_MAX)
            for name in names
            if distances
        },
        without_time=without_time,
        without_value={
            key: "no optimizer has two runs that differ and none that failed" for key in tasks if key not in stds
        },
        stds=stds,
        test=test,
        groups=told_apart(test),
    )


def _why_untimed(task: Task) -> str | None:
    times = [outcome.time for outcome in task.outcomes.values() if outcome.time is not None]
    if len(times) < len(task.outcomes):
        return "it has no target: neither the study's budget.target nor the task's own"
    if min(times) == math.inf:
        return "no optimizer reached the target"
    return None if min(times) > 0 else "a run reached the target in no time"


def told_apart(test: Friedman) -> list[list[str]]:
    """The groups of optimizers that are not shown to be different; see `Across.groups`."""
    if test.p_value is None or test.critical_difference is None or test.p_value > ALPHA:
        return [sorted(test.mean_ranks, key=lambda name: test.mean_ranks[name])] if test.mean_ranks else []
    return groups(test.mean_ranks, critical_difference=test.critical_difference)


def sentence(test: Friedman, groups: Sequence[Sequence[str]]) -> str:
    """What the test of ranks shows, in words."""
    n, k = test.n_tasks, len(test.mean_ranks)
    if k < 2:
        return "No task has results of two optimizers, so there is nothing to compare."
    if test.p_value is None or test.critical_difference is None:
        return "Ranks are tested over two tasks or more that tell optimizers apart."
    told = f"Friedman's test over {n} tasks gives p = {test.p_value:.2g}"
    if test.p_value > ALPHA:
        least = 1 + math.ceil(math.log(1 / ALPHA) / math.lgamma(k + 1))  # k!^(1 − n): the same order on all tasks
        few = f" With {k} optimizers no order can be shown by fewer than {least} tasks." if n < least else ""
        return f"{told}: no order of the {k} optimizers is shown.{few}"
    behind = list(dict.fromkeys(name for group in groups[1:] for name in group if name not in groups[0]))
    apart = f"mean ranks that differ by more than {test.critical_difference:.3g} are shown to be different"
    if not behind:
        return f"{told}: the optimizers differ, but no two of them are told apart; {apart}."
    return f"{told}: the optimizers differ. {groups[0][0]} is shown to rank better than {', '.join(behind)}; {apart}."


def largest_comparison(found: Mapping[str, Collection[str]]) -> tuple[list[str], list[str]]:
    """The optimizers and the tasks with a result of each of them on each, so that there are most results.

    Two tasks or more come before one. Fewer than two optimizers are no comparison: both lists are empty.

    Args:
        found: by task, the optimizers with a result.
    """
    of_task = {task: frozenset(of) for task, of in found.items()}
    sets = set(of_task.values())
    closed = frontier = {one for one in sets if len(one) > 1}
    while frontier and len(closed) < MAX_SETS:
        met = (a & b for a in sorted(frontier, key=sorted) for b in sets)
        frontier = {one for one in islice(met, 10 * MAX_SETS) if len(one) > 1} - closed
        closed = closed | frontier
    # Where there are too many sets to look at: those optimizers that are on most tasks.
    count = Counter(name for of in of_task.values() for name in of)
    common = sorted(count, key=lambda name: (-count[name], name))
    closed = closed | {frozenset(common[:n]) for n in range(2, min(len(common), 100) + 1)}

    def tasks_of(optimizers: frozenset[str]) -> list[str]:
        return [task for task, of in of_task.items() if optimizers <= of]

    def merit(optimizers: frozenset[str]) -> tuple[bool, int, int, list[str]]:
        n = sum(optimizers <= of for of in of_task.values())
        return n > 1, n * len(optimizers), n, sorted(optimizers)

    best = max(closed, key=merit, default=frozenset[str]())
    return (sorted(best), tasks_of(best)) if best and tasks_of(best) else ([], [])
