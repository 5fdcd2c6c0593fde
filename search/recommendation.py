"""Which optimizer to use now, how sure that is, and what further hours are best spent on: search, seeds or nothing.

Pure functions of results: the service reads them. Both ways to spend hours are measured by what they are expected to
gain in the metric's unit. Seeds: how much better the best of the candidates is than the present choice on average,
once so many more seeds have told (the expected value of sample information). Search: what the latter half of its
trials gained, per doubling.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.analysis.moderated import Contrast, contrasts, errors_of_means
from search.analysis.verdicts import Sample, groups_of
from search.definition import StudyDefinition
from search.space import Space, why_not
from search.states import Direction, Spend

N_SEEDS = 3
"""Confirm seeds of a planned search."""

MAX_SEEDS, MAX_TRIALS = 20, 100
"""Most of each in a plan."""

MIN_TRIALS = 4
"""A planned search with fewer trials of each optimizer is made of fewer optimizers."""

LIKELY = 0.05
"""Candidates that are less likely to be the best are not in a plan."""

MAX_PLANNED = 4

KEPT = 0.3
"""Share of the hours that a search leaves where the cost of a training is not known; it confirms nothing then."""

MIN_HOURS = 1 / 3600
"""A second; fewer hours pay for no study."""

VISIBLE = 0.1
"""Gains below this share of the standard deviation between seeds are not worth hours: 800 seeds would show them."""


SAME_WITH_EACH_SEED = "what was confirmed has the same value with each of its seeds, as if the seed had no effect"
"""Why no spread between seeds is known although settings were confirmed with several."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An optimizer with its best settings in one recipe.

    Attributes:
        values: of its confirm runs, or its search run alone, by study and seed.
        n_failed: confirm runs that failed.
        search_values: of its search's trials in their order; None for one that did not complete.
    """

    optimizer: str
    values: Mapping[Hashable, float]
    n_failed: int = 0
    search_values: Sequence[float | None] = ()

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def std(self) -> float | None:
        """None for one value."""
        return stdev(self.values.values()) if self.n > 1 else None


@dataclass(frozen=True, kw_only=True)
class Sureness:
    """How sure the choice is.

    Attributes:
        chances: by optimizer, the probability that its settings have the best mean.
        against: by optimizer, its comparison with the chosen one.
        std: typical standard deviation between seeds.
        errors: draws of the errors of the means, in the order of `names`.
    """

    names: Sequence[str]
    chances: Mapping[str, float]
    against: Mapping[str, Contrast]
    std: float
    errors: NDArray[np.float64]
    means: NDArray[np.float64]
    n: NDArray[np.float64]
    sign: float

    def gain_of_seeds(self, n_more: int) -> float:
        """By how much the best is expected to be better than the present choice after so many more seeds of each."""
        if n_more < 1:
            return 0.0
        told = np.sqrt(n_more / (self.n + n_more))[:, None]  # share of the error that the seeds will have told
        after = self.sign * (self.means[:, None] + told * self.errors)
        return float(after.max(axis=0).mean() - (self.sign * self.means).max())


def in_order(candidates: Sequence[Candidate], direction: Direction) -> list[Candidate]:
    """Best first; those with failed runs come after all others."""
    return sorted(candidates, key=lambda one: (one.n_failed > 0, direction.cost(one.mean), one.optimizer))


def sureness(candidates: Sequence[Candidate], direction: Direction) -> Sureness | None:
    """How sure the first of the candidates, `in_order`, is the best; None where no spread between seeds is known.

    Settings with failed runs do not take part. Where all are of one study and the same seeds, and the seed matters,
    they are paired by seed, as in that study's comparison.
    """
    sound = [one for one in candidates if not one.n_failed]
    spreads = [one.std for one in sound if one.std]
    if not spreads:
        return None
    groups = groups_of({one.optimizer: Sample(values=one.values) for one in sound})
    errors = errors_of_means(groups)
    means = np.array([one.mean for one in sound])
    best = (direction.sign * (means[:, None] + errors)).argmax(axis=0)
    shares = np.bincount(best, minlength=len(sound)) / errors.shape[1]
    found = contrasts(groups, [(i, 0) for i in range(1, len(sound))]) if len(sound) > 1 else ()
    return Sureness(
        names=[one.optimizer for one in sound],
        chances={one.optimizer: float(share) for one, share in zip(sound, shares, strict=True)},
        against={sound[one.a].optimizer: one for one in found},
        std=float(np.median(spreads)),
        errors=errors,
        means=means,
        n=np.array([one.n for one in sound], dtype=float),
        sign=direction.sign,
    )


def gain_of_search(one: Candidate, direction: Direction, *, n_more: float) -> float | None:
    """What so many more trials are expected to gain: as much for each doubling as the latter half gained.

    None where fewer than `MIN_TRIALS` trials are known.
    """
    values = [-math.inf if value is None else direction.sign * value for value in one.search_values]
    if len(values) < MIN_TRIALS:
        return None
    best = list(accumulate(values, max))
    half = best[(len(best) - 1) // 2]
    if not math.isfinite(half):
        return None
    return (best[-1] - half) * math.log2(1 + max(0.0, n_more) / len(values))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Hours of a full training, and of a trial of a search, many of which are stopped early."""

    training_hours: float
    trial_hours: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the hours are best spent on, and why."""

    spend: Spend
    why: str


def choose(
    candidates: Sequence[Candidate], sure: Sureness | None, direction: Direction, *, cost: Cost | None, hours: float
) -> Choice:
    """What the hours are best spent on, of candidates `in_order`; without any: a search."""
    if hours < MIN_HOURS:
        return Choice(
            spend=Spend.NOTHING,
            why="none were given to spend" if hours <= 0 else f"{hours:.3g} hours are less than a second",
        )
    if cost is not None and hours < cost.training_hours:
        why = f"{hours:.3g} hours are less than the {cost.training_hours:.3g} hours of one training"
        return Choice(spend=Spend.NOTHING, why=why)
    if not candidates:
        return Choice(spend=Spend.SEARCH, why="no study of this task, model and fields has a result")
    n_trials = _n_trials(1, cost, hours)
    searched = gain_of_search(candidates[0], direction, n_more=n_trials)
    if sure is None:
        same = any(one.n > 1 for one in candidates if not one.n_failed)
        known = SAME_WITH_EACH_SEED if same else "nothing was confirmed with several seeds"
        if searched is None or searched > 0:
            return Choice(spend=Spend.SEARCH, why=f"{known}, and searches are short")
        return Choice(spend=Spend.NOTHING if same else Spend.SEEDS, why=f"{known}, and its search gained no more")
    names = likely(candidates, sure)
    told = sure.gain_of_seeds(_n_seeds(len(names), cost, hours)) if len(names) > 1 else 0.0
    if searched is None:
        why = f"its search has fewer than {MIN_TRIALS} trials, or none in its first half was complete"
        return Choice(spend=Spend.SEARCH, why=why)
    gains = (
        f"if each doubling of the trials gains what the last did, a search gains {searched:.2g}; further seeds are "
        f"expected to gain {told:.2g}"
    )
    if max(told, searched) < VISIBLE * sure.std:
        return Choice(
            spend=Spend.NOTHING, why=f"{gains}; both are little beside the spread between seeds, {sure.std:.2g}"
        )
    return Choice(spend=Spend.SEEDS if told > searched else Spend.SEARCH, why=gains)


def likely(candidates: Sequence[Candidate], sure: Sureness | None) -> list[str]:
    """The optimizers that may be the best, the most likely first; at most `MAX_PLANNED`."""
    if sure is None:
        return [one.optimizer for one in candidates if not one.n_failed][:MAX_PLANNED] or [candidates[0].optimizer]
    chances = sure.chances
    names = sorted(chances, key=lambda name: -chances[name])
    return [name for name in names if chances[name] >= LIKELY or name == candidates[0].optimizer][:MAX_PLANNED]


def _n_trials(n_optimizers: int, cost: Cost | None, hours: float) -> int:
    """Trials of each optimizer that the hours pay for beside its confirm runs."""
    if cost is None:
        return MAX_TRIALS
    left = hours - n_optimizers * N_SEEDS * cost.training_hours
    return max(0, min(MAX_TRIALS, math.floor(left / (n_optimizers * cost.trial_hours))))


def _n_seeds(n_optimizers: int, cost: Cost | None, hours: float) -> int:
    """Seeds of each optimizer that the hours pay for beside a training of each in the search stage."""
    if cost is None:
        return N_SEEDS
    return max(0, min(MAX_SEEDS, math.floor(hours / (n_optimizers * cost.training_hours)) - 1))


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A study that spends the hours, and how many at most; None where the cost is not known."""

    definition: dict[str, Any]
    hours: float | None


def plan(
    spend: Spend,
    optimizers: Sequence[Mapping[str, Any]],
    *,
    name: str,
    task: Mapping[str, Any],
    cost: Cost | None,
    hours: float,
    first: Sequence[Mapping[str, Any]] = (),
    first_seed: int = 0,
) -> Planned | None:
    """A study that spends the hours on a search, or on seeds; None where they do not pay for one.

    Args:
        optimizers: as in a study's definition, the most likely first; fewer take part where the hours are few.
        first: for seeds, the settings of each that are confirmed.
        first_seed: for seeds, the least that none of the settings was confirmed with.
    """
    make = _search_plan if spend is Spend.SEARCH else partial(_seeds_plan, first_seed=first_seed)
    raw = {"name": name, "task": dict(task)}
    labelled = [{**one, "label": f"o{i}"} for i, one in enumerate(optimizers)]
    spaces = [one.space for one in StudyDefinition.model_validate({**raw, "optimizers": labelled}).optimizers]
    for n in range(len(optimizers), 0, -1):
        taking_part: list[Mapping[str, Any]] = list(optimizers[:n])
        if spend is Spend.SEEDS:
            listed = zip(taking_part, first[:n], spaces[:n], strict=True)
            taking_part = [_with_settings(one, settings, space) for one, settings, space in listed]
        found = make(taking_part, cost, hours, is_last=n == 1)
        if found is not None:
            definition = StudyDefinition.model_validate({**raw, **found.definition})
            return Planned(definition=_short(definition), hours=found.hours)
    return None


def _with_settings(one: Mapping[str, Any], settings: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """The optimizer, whose search begins with these settings; what its space does not hold becomes the only choice.

    Such are the settings of a baseline, which are those of no search.
    """
    known = {name: settings[name] for name in space if name in settings}
    outside = {name: value for name, value in known.items() if why_not(space[name], value) is not None}
    if outside:
        held = {name: parameter.model_dump(mode="json") for name, parameter in space.items()}
        one = {**one, "space": {**held, **{n: {"type": "categorical", "choices": [v]} for n, v in outside.items()}}}
    return {**one, "first": [known]}


def _search_plan(
    optimizers: list[Mapping[str, Any]], cost: Cost | None, hours: float, *, is_last: bool
) -> Planned | None:
    k, n = len(optimizers), _n_trials(len(optimizers), cost, hours)
    if n < (1 if is_last else MIN_TRIALS):
        return None
    confirm = 0.0 if cost is None else k * N_SEEDS * cost.training_hours
    share = 1.0 if cost is not None else 1 - KEPT  # confirm runs are made whatever is left
    definition = {
        "optimizers": optimizers,
        "budget": {"trials_per_optimizer": n, "gpu_hours": _rounded(share * (hours - confirm))},
        "confirm": {"top_k": 0} if cost is None else {"top_k": 1, "seeds": list(range(N_SEEDS))},
        "warm_start": {"from": "everything"},
    }
    spent = None if cost is None else min(hours, confirm + k * n * cost.trial_hours)
    return Planned(definition=definition, hours=spent)


def _seeds_plan(
    optimizers: list[Mapping[str, Any]], cost: Cost | None, hours: float, *, is_last: bool, first_seed: int
) -> Planned | None:
    k, n = len(optimizers), _n_seeds(len(optimizers), cost, hours)
    if n < 2:
        return None
    training_seed = StudyDefinition.model_fields["training_seed"].default
    seeds = [seed for seed in range(first_seed, first_seed + n + 1) if seed != training_seed][:n]
    until_decided = {"seeds": seeds[:N_SEEDS], "until": "decided", "max_seeds": n}
    definition = {
        "optimizers": optimizers,
        "pruner": {"name": "none"},
        "budget": {"trials_per_optimizer": 1, "gpu_hours": _rounded(hours)},
        "confirm": until_decided if n > N_SEEDS and k > 1 else {"top_k": 1, "seeds": seeds},
    }
    return Planned(definition=definition, hours=None if cost is None else k * (n + 1) * cost.training_hours)


def _short(definition: StudyDefinition) -> dict[str, Any]:
    """The definition without what is at its default, so that it is read at a glance."""
    shown = definition.model_dump(mode="json", exclude_defaults=True)
    task = {"name": definition.task.name, **shown["task"]}
    optimizers = [
        {"name": one.name, **listed} for one, listed in zip(definition.optimizers, shown["optimizers"], strict=True)
    ]
    return {**shown, "task": task, "optimizers": optimizers}


def _rounded(hours: float) -> float:
    """Three digits, rounded down, so that a plan never asks for more than there is."""
    if hours <= 0:
        return hours
    unit: float = 10.0 ** (math.floor(math.log10(hours)) - 2)
    return float(f"{math.floor(hours / unit * (1 + 1e-12)) * unit:.3g}")
