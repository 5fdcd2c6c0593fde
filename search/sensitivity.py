"""How much an optimizer's result depends on one parameter: what a definition asks, and the runs that show it.

They vary the parameter around the trial that was chosen. What their results say is in `search.analysis`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

import admeta.registry
from admeta.errors import AdmetaError
from admeta.spaces import RECIPE
from search.optimizer_search import OptimizerSearch
from search.space import CategoricalParameter, IntParameter, Strict, as_drawn, why_not
from search.states import SETTINGS_FAILURES, FailureKind, RunState, Stage
from tasks.config import Count, Number

if TYPE_CHECKING:
    from search.definition import StudyDefinition
    from search.records import RunRecord


class Sensitivity(Strict):
    """Runs that show how each optimizer's result depends on one parameter, the others at what its search chose."""

    parameter: Annotated[str, Field(max_length=100)] = Field(
        default="lr", description="A parameter that is a number; optimizers without it are left out."
    )
    points: Annotated[Count, Field(ge=3, le=51)] = Field(
        default=7,
        description="Values of the parameter, the chosen one among them; an odd number. Trials that lie there already "
        "are not trained again.",
    )
    span: Annotated[Number, Field(gt=1, le=1e6)] = Field(
        default=30,
        description="The values go from the chosen one / span to the chosen one * span, in equal factors. A searched "
        "parameter that is not on a log scale has values over its space instead; of choices, those next to the chosen "
        "one are the values.",
    )
    seeds: Annotated[Count, Field(ge=1, le=100)] = Field(
        default=1, description="Runs at each value, with the first of the confirm seeds."
    )

    @field_validator("points")
    @classmethod
    def _odd(cls, points: int) -> int:
        if points % 2 == 0:
            raise ValueError(f"must be odd, with as many values below the chosen one as above; it is {points}")
        return points


def varies_on_log_scale(optimizer: OptimizerSearch, name: str) -> bool:
    """Whether sensitivity to this parameter is measured in factors rather than in differences."""
    parameter = optimizer.space.get(name)
    if isinstance(parameter, CategoricalParameter):
        return all(choice > 0 for choice in parameter.numbers)
    return parameter is None or parameter.log


def n_values(optimizer: OptimizerSearch, asked: Sensitivity) -> int:
    """At most so many values of the parameter in question; 0 where this search has none to vary."""
    parameter = optimizer.space.get(asked.parameter)
    if not optimizer.space:
        return 0
    if isinstance(parameter, CategoricalParameter):
        n = len(parameter.numbers)
        return min(n, asked.points) if n > 1 else 0
    if parameter is None and not (optimizer.number(asked.parameter, {}) or 0) > 0:
        return 0
    return asked.points


def values_around(optimizer: OptimizerSearch, params: Mapping[str, Any], asked: Sensitivity) -> list[float]:
    """Values of the parameter in question around that of a trial, which is one of them, in ascending order.

    None that the optimizer or `when` would refuse. Empty where the parameter is no number, or decides which others
    are drawn.
    """
    name, half = asked.parameter, asked.points // 2
    at = optimizer.number(name, params)
    if at is None or any(name in (parameter.when or ()) for parameter in optimizer.space.values()):
        return []
    parameter = optimizer.space.get(name)
    values: Iterable[float]
    if isinstance(parameter, CategoricalParameter):
        choices = sorted(parameter.numbers)
        place = choices.index(at)
        values = choices[max(0, place - half) : place + half + 1]
    elif parameter is not None and not parameter.log:
        apart = (parameter.high - parameter.low) / (asked.points - 1)
        evenly = [parameter.low + i * apart for i in range(asked.points)]
        values = [as_drawn(parameter, value) for value in evenly if abs(value - at) > apart / 2]
    elif at > 0:
        values = [float(f"{at * asked.span ** (i / half):.4g}") for i in range(-half, half + 1) if i]
    else:
        return []
    if _is_whole(optimizer, name, at):
        values = map(round, filter(math.isfinite, values))
    return sorted({at, *(value for value in values if _accepts(optimizer, name, value, params))})


def _is_whole(optimizer: OptimizerSearch, name: str, at: float) -> bool:
    """Whether the parameter has whole numbers alone; 1 may also be how a learning rate of 1.0 was written."""
    if name in optimizer.space:
        return isinstance(optimizer.space[name], IntParameter)
    known = admeta.registry.get(optimizer.name).parameters.get(name)
    return isinstance(at, int) and (known is None or not known.domain.accepts(float(at)))


def _accepts(optimizer: OptimizerSearch, name: str, value: float, params: Mapping[str, Any]) -> bool:
    if not optimizer.meets({**params, name: value}):
        return False
    if name.startswith(RECIPE):  # the definition's rules hold for what is searched
        return name in optimizer.space and why_not(optimizer.space[name], value) is None
    info, settings = admeta.registry.get(optimizer.name), {**optimizer.fixed, **params}
    try:
        info.check(name, value)
    except AdmetaError:
        return False
    rules = (rule for rule in info.requirements if rule.parameter == name)
    return all(rule.domain.accepts(value) for rule in rules if settings.get(rule.where) == rule.value)


def without(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The other parameters: trials that have the same ones lie on one line of the search space."""
    return {key: value for key, value in params.items() if key != name}


def _tells_of_settings(run: RunRecord) -> bool:
    """Whether the run's end is a result of its settings: a value at full length, or a divergence."""
    return run.state is RunState.COMPLETE or run.failure in SETTINGS_FAILURES


def sensitivity_runs(
    definition: StudyDefinition, optimizer: OptimizerSearch, runs: Sequence[RunRecord], chosen: RunRecord
) -> list[tuple[dict[str, Any], int]]:
    """Parameters and seed of each run that is still to be made around the chosen trial.

    A trial that has the same other parameters and lies within a quarter of the distance between two values takes the
    place of a run: further seeds are trained at its own value. The chosen trial itself does not, since its value was
    selected for being good; its confirm runs do.

    Args:
        runs: of the search, all stages.
    """
    asked = definition.sensitivity
    if asked is None:
        return []
    name, at = asked.parameter, optimizer.number(asked.parameter, chosen.params)
    seeds = definition.confirm.seeds[: asked.seeds]
    log = varies_on_log_scale(optimizer, name)
    values = values_around(optimizer, chosen.params, asked)
    apart = min((_distance(a, b, log=log) for a, b in pairwise(values)), default=0.0)
    trials = [
        (value, run)
        for run in runs
        if run.stage is Stage.SEARCH and run.id != chosen.id and _tells_of_settings(run)
        and without(name, run.params) == without(name, chosen.params)
        and (value := optimizer.number(name, run.params)) is not None
    ]  # fmt: skip
    wanted: list[tuple[dict[str, Any], int]] = []
    for value in values:
        params = {**chosen.params, name: value}
        if value == at:
            wanted += [(dict(chosen.params), seed) for seed in seeds if not definition.confirm.top_k]
            continue
        near = min(trials, key=lambda one: _distance(one[0], value, log=log), default=None)
        if near is not None and _distance(near[0], value, log=log) <= apart / 4:
            wanted += [(dict(near[1].params), seed) for seed in seeds[:-1]]
        else:
            wanted += [(params, seed) for seed in seeds]
    made = [run for run in runs if run.stage is Stage.SENSITIVITY and run.failure is not FailureKind.REPLACED]
    known = [(run.params, run.seed) for run in made]
    return [one for one in wanted if one not in known]


def _distance(a: float, b: float, *, log: bool) -> float:
    return abs(math.log(a / b)) if log else abs(a - b)
