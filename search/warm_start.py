"""What a search takes over from earlier studies: which of their best trials it begins with.

`warm_start: {from: everything}` begins with a portfolio. The best trials of each earlier search of the optimizer speak
for the settings near theirs, those of alike studies most, and settings are chosen one after another so that each adds
most to what is spoken for. While the best trial of the search comes from a study of the same task and model, every
second proposal is near it instead of the sampler's: where the task was met in another form, the optimum is near.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import admeta.registry
import tasks.registry
from search.definition import StudyDefinition
from search.optimizer_search import OptimizerSearch
from search.samplers import SEED_BITS, TpeSampler
from search.space import CategoricalParameter, Parameter, encode_choice, fit
from search.states import Direction
from tasks.engine.seeds import derive_seed
from tasks.errors import TaskError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)

BEST_OF_EACH = 3
"""Trials of each earlier search that speak for their settings."""

MAX_SEARCHES = 50
"""Earlier searches that are read: those of the most alike studies, of these the newest."""

LESS_ALIKE = 0.1
"""Weight of a study that is one degree less alike."""

NEXT_BEST = 0.7
"""Weight of a search's second trial as a share of its first one's, and so on."""

REACH = 0.15
"""Distance, as a share of each parameter's range, over which a trial speaks for other settings."""

STEP = 0.1
"""Standard deviation of a step away from the best settings, as a share of each parameter's range."""

SWITCHED = 0.2
"""Probability that such a step draws a choice anew."""

TAKEN_FROM = "taken_from"
"""Name of a trial's user attribute with the trials of earlier studies that its settings are taken from, or near to."""

IS_STEP = "is_step"
"""Name in the first of these trials: the settings are not its own but a step, or several, from them."""

DEGREE = "taken_from_degree"
"""Name of a trial's user attribute with the `degree` of the study that its settings are taken from, or near to."""

MAX_DEGREE = 1
"""Steps are taken from settings of studies of the same task and model alone: from another model's they gain nothing."""

_MAX_STEPS = 20  # until one is allowed and was not tried
_REPEATS = 0.9  # settings that are nearer than this to chosen ones would repeat them
_NAMED, _MAX_NAMED = 0.8, 5


@dataclass(frozen=True, kw_only=True)
class EarlierTrial:
    """A finished trial of an ended study.

    Attributes:
        study: its name.
        settings: what was held fixed and what was drawn, with the names of a search space.
        same_recipe: whether its result is comparable with those of the study that takes it over.
        place: among its search's trials, from 1 for the best; confirmed ones come first.
    """

    study: str
    label: str
    trial: int
    task: str
    model: str | None
    metric: str
    settings: Mapping[str, Any]
    same_recipe: bool
    place: int

    @property
    def source(self) -> dict[str, Any]:
        """Where it can be found."""
        return {"study": self.study, "label": self.label, "trial": self.trial}


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Settings that are taken over, as Optuna stores them, and the trials that they come from, the first one first.

    Attributes:
        degree: of the first one's study; 0 for one of the same recipe.
    """

    params: Mapping[str, Any]
    sources: Sequence[Mapping[str, Any]]
    degree: int = 0

    @property
    def attributes(self) -> dict[str, Any]:
        """The user attributes of its trial in Optuna."""
        return {TAKEN_FROM: [dict(one) for one in self.sources], DEGREE: self.degree}


def degree(task: str, model: str | None, like: StudyDefinition) -> int:
    """How far an earlier study of this task and model is from this one; 0 is left to studies of the same recipe.

    1: the same task and model; 2: the same task; 3: a task with the same kind of examples and of
    training, from fresh or from trained weights; 4: any other.
    """
    if task == like.task.name:
        return 1 if model == like.task.model else 2
    try:
        info, other = tasks.registry.get(like.task.name), tasks.registry.get(task)
    except TaskError:  # its package is no longer installed
        return 4
    return 3 if (info.kind, info.space) == (other.kind, other.space) else 4


def best_alone(earlier: Sequence[EarlierTrial], spec: OptimizerSearch) -> list[Taken]:
    """These trials in their order, with what the space holds of them."""
    fitting = [(one, fit(one.settings, spec.space)) for one in earlier]
    return [Taken(params=params, sources=[one.source]) for one, params in fitting if _may_begin(spec, params)]


def portfolio(earlier: Sequence[EarlierTrial], spec: OptimizerSearch, *, like: StudyDefinition, n: int) -> list[Taken]:
    """At most n settings, each of one earlier trial, that together cover what the earlier searches found best.

    Args:
        spec: the search that begins with them; what its space or its conditions do not hold is left out.
    """
    known = [(one, params) for one in earlier if (params := _within(one, spec))]
    far = [0 if one.same_recipe else degree(one.task, one.model, like) for one, _ in known]
    weights = [LESS_ALIKE**d * NEXT_BEST ** (one.place - 1) for (one, _), d in zip(known, far, strict=True)]
    near = [[nearness(a, b, spec.space) for _, b in known] for _, a in known]
    covered = [0.0] * len(known)
    chosen: list[int] = []
    while len(chosen) < n and (left := [i for i, share in enumerate(covered) if share < _REPEATS]):
        best = max(left, key=lambda i: _gain(near[i], covered, weights))
        chosen.append(best)
        covered = [max(c, k) for c, k in zip(covered, near[best], strict=True)]
    return [replace(_taken(i, known, near[i], weights), degree=far[i]) for i in chosen]


def _within(one: EarlierTrial, spec: OptimizerSearch) -> dict[str, Any]:
    """Its settings, as the search would draw them; none where the space or `when` excludes one of them.

    What its study left at the default counts. What it did not have, such as a field of the recipe, is drawn.
    """
    parameters = admeta.registry.get(spec.name).parameters
    settings = {**{name: parameter.default for name, parameter in parameters.items()}, **one.settings}
    params = fit(settings, spec.space)
    is_whole = all(name in params for name in spec.space if name in settings)
    return params if is_whole and _may_begin(spec, params) else {}


def _may_begin(spec: OptimizerSearch, params: Mapping[str, Any]) -> bool:
    if params and not spec.can_begin_with(params):
        logger.info("%s: %s is not taken over: it does not meet %s", spec.label, params, spec.when)
        return False
    return bool(params)


def _gain(near: Sequence[float], covered: Sequence[float], weights: Sequence[float]) -> float:
    """How much more of what the trials speak for is covered with settings that are so near to theirs."""
    return sum(w * max(0.0, k - c) for w, k, c in zip(weights, near, covered, strict=True))


def _taken(
    i: int, known: Sequence[tuple[EarlierTrial, dict[str, Any]]], near: Sequence[float], weights: Sequence[float]
) -> Taken:
    """The settings with their trial, then those that speak most for them."""
    others = sorted((j for j in range(len(known)) if j != i), key=lambda j: -weights[j] * near[j])
    named = [i, *(j for j in others if near[j] >= _NAMED)][:_MAX_NAMED]
    return Taken(params=known[i][1], sources=[known[j][0].source for j in named])


def nearness(a: Mapping[str, Any], b: Mapping[str, Any], space: Mapping[str, Parameter]) -> float:
    """1 for equal settings, towards 0 with their mean squared distance over the parameters."""
    squares = [_distance(space[name], a.get(name), b.get(name)) ** 2 for name in space if name in a or name in b]
    return math.exp(-sum(squares) / (2 * REACH**2 * len(squares)))


def _distance(parameter: Parameter, a: Any, b: Any) -> float:
    """From 0 to 1, on the parameter's own scale; 1 where one of the trials does not have it."""
    if a is None or b is None or isinstance(parameter, CategoricalParameter):
        return float(encode_choice(a) != encode_choice(b))
    return abs(parameter.position(a) - parameter.position(b))


# While it searches -------------------------------------------------------------------------------------------------


def near_best(
    trials: Sequence[FrozenTrial], spec: OptimizerSearch, sampler: TpeSampler, direction: Direction
) -> Taken | None:
    """Settings near the best complete trial, for every second trial; None where the sampler shall propose.

    The sampler proposes alone during its random start, and as soon as its own trials are better than those taken over:
    then what was taken over misleads, and the search goes on as one without it.

    Args:
        trials: all of the search's so far. What is proposed depends on them and the sampler's seed alone.
    """
    if len(trials) < sampler.n_startup_trials or len(trials) % 2:
        return None
    complete = [trial for trial in trials if trial.state.name == "COMPLETE" and trial.value is not None]
    best = min(complete, key=lambda trial: direction.cost(trial.value or 0.0), default=None)
    if best is None or best.user_attrs.get(DEGREE, math.inf) > MAX_DEGREE:
        return None
    rng = random.Random(derive_seed(sampler.seed, spec.label, len(trials), "near", bits=SEED_BITS))
    tried = [trial.params for trial in trials]
    for _ in range(_MAX_STEPS):
        params = {name: _step(spec.space[name], value, rng) for name, value in best.params.items()}
        params = spec.complete(params, lambda name: spec.space[name].draw(rng))
        if params not in tried and spec.meets(params):
            first, *others = best.user_attrs[TAKEN_FROM]
            sources = [{**first, IS_STEP: True}, *others]
            return Taken(params=params, sources=sources, degree=best.user_attrs[DEGREE])
    return None


def _step(parameter: Parameter, value: Any, rng: random.Random) -> Any:
    """A value near this one. A step beyond an end of the range is reflected there."""
    if isinstance(parameter, CategoricalParameter):
        return parameter.draw(rng) if rng.random() < SWITCHED else value
    grid = 0.0 if parameter.step is None else 1 / (parameter.grid_size() - 1)  # a smaller step would stay where it is
    position = abs(parameter.position(value) + rng.gauss(0, max(STEP, grid)))
    return parameter.value_at(1 - abs(1 - position))
