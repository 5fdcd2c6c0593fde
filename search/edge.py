"""Whether the best trial of a search lies at the edge of its space, and the space that reaches further.

Pure functions on a search space and the results of its trials.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError
from scipy import special

from search.definition import StudyDefinition
from search.space import CategoricalParameter, FloatParameter, IntParameter, Space
from search.states import Direction

EDGE = 0.05
"""Share of a parameter's range, on its own scale, that counts as its edge."""

LEVEL = 0.1
"""Level of the test that trials get better towards the edge. docs/search.md says how often it warns for nothing."""

MIN_TRIALS = 8
"""Trials below which nothing is said."""

WIDENED = (0.5, 0.25, 0.1)
"""By which shares of its range a parameter is widened: the first that its rules allow."""

Numeric = FloatParameter | IntParameter
End = Literal["low", "high"]


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A parameter whose best value lies at an end of its range.

    Attributes:
        label: of the optimizer in the definition.
        parameter: its name.
        value: of the best trial.
        end: which end of the range.
        bound: the value at that end.
        wider: the value at that end of the wider space.
        change: the same as a change of the definition, PATH=VALUE.
    """

    label: str
    parameter: str
    value: float
    end: End
    bound: float
    wider: float
    change: str

    @property
    def sentence(self) -> str:
        """The warning in words."""
        side = {"low": "lower", "high": "upper"}[self.end]
        return (
            f"{self.label}: the best {self.parameter} = {self.value:.4g} lies at the {side} end of its space, "
            f"{self.bound:g}, and trials get better towards it. A wider space ends at {self.wider:g}"
        )


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What a search found: the parameters of its best trial, and those of each trial with its value.

    Attributes:
        label: of the optimizer in the definition.
        trials: parameters and last value; None where the trial diverged.
    """

    label: str
    best: Mapping[str, Any]
    trials: Sequence[tuple[Mapping[str, Any], float | None]]


def edges(definition: StudyDefinition, searches: Iterable[Searched]) -> list[Edge]:
    """The parameters that the best trials have at an end of their range, where trials get better towards that end.

    Left out are ends beyond which the optimizer takes no value. An optimizer that is searched several times has an
    entry where any of its searches ends there.
    """
    found: dict[tuple[str, str, str], Edge] = {}
    wide = definition.to_json()
    for search in searches:
        place = _place(definition, search.label)
        for name, parameter, end in _ends(definition, place, search):
            if (search.label, name, end) in found or (wider := _wider(wide, place, name, parameter, end)) is None:
                continue
            wide = _with(wide, place, name, end, wider)
            found[search.label, name, end] = Edge(
                label=search.label,
                parameter=name,
                value=search.best[name],
                end=end,
                bound=getattr(parameter, end),
                wider=wider,
                change=f"optimizers.{place}.space.{name}.{end}={wider!r}",
            )
    return list(found.values())


def widened(definition: StudyDefinition, found: Sequence[Edge]) -> StudyDefinition:
    """The study with the wider spaces, under a name of its own."""
    raw = definition.to_json()
    for edge in found:
        raw = _with(raw, _place(definition, edge.label), edge.parameter, edge.end, edge.wider)
    return StudyDefinition.model_validate({**raw, "name": f"{definition.name[:94]}-wider"})


def is_near_an_end(space: Space, params: Mapping[str, Any]) -> bool:
    """Whether any parameter lies at an end of its range: only then the other trials matter."""
    return any(_end_of(parameter, params.get(name)) is not None for name, parameter in space.items())


def _ends(definition: StudyDefinition, place: int, search: Searched) -> Iterator[tuple[str, Numeric, End]]:
    """The parameters with the end of their range that the best trial lies at and trials get better towards."""
    for name, parameter in definition.optimizers[place].space.items():
        end = _end_of(parameter, search.best.get(name))
        if end is None or isinstance(parameter, CategoricalParameter):
            continue
        seen = [(params[name], value) for params, value in search.trials if name in params]
        if gets_better_towards(parameter, end, seen, direction=definition.objective.direction):
            yield name, parameter, end


def _place(definition: StudyDefinition, label: str) -> int:
    return [one.label for one in definition.optimizers].index(label)


def _end_of(parameter: Numeric | CategoricalParameter, value: Any) -> End | None:
    if isinstance(parameter, CategoricalParameter) or value is None:
        return None
    at = parameter.position(value) if parameter.low <= value <= parameter.high else 0.5
    return "low" if at <= EDGE else "high" if at >= 1 - EDGE else None


def gets_better_towards(
    parameter: Numeric,
    end: End,
    seen: Sequence[tuple[float, float | None]],
    *,
    direction: Direction,
) -> bool:
    """Whether trials are shown to get better towards that end: a test of the slope there at `LEVEL`.

    A parabola in the parameter's place is fitted to the ranks of the trials, so that an optimum within the range
    slopes down at its end.

    Args:
        seen: value of the parameter and result of each trial; None for one that diverged, the worst.
    """
    if len(seen) < MIN_TRIALS:
        return False
    from scipy.stats import rankdata  # takes half a second to import

    results = [-math.inf if value is None else direction.sign * value for _, value in seen]
    rank = rankdata(results)
    place = np.array([parameter.position(value) for value, _ in seen])
    inward = 1 - place if end == "high" else place
    x = np.stack([np.ones_like(inward), -inward, inward**2], axis=1)
    effects, _, n_effects, _ = np.linalg.lstsq(x, rank, rcond=None)
    df = len(seen) - 3
    if n_effects < 3:
        return False
    rest = float(((rank - x @ effects) ** 2).sum()) / df
    error = math.sqrt(rest * np.linalg.inv(x.T @ x)[1, 1])
    return bool(effects[1] > 0 and special.stdtr(df, -effects[1] / max(error, 1e-12)) < LEVEL)


def _wider(raw: Mapping[str, Any], place: int, name: str, parameter: Numeric, end: End) -> float | None:
    """The end of a wider range; None where the optimizer, or the grid, takes no value beyond the present one.

    Args:
        raw: the definition, with the ends that are wider already.
    """
    alone = {**raw, "optimizers": [raw["optimizers"][place]], "contrasts": None, "baseline": None}
    for share in WIDENED:
        value = _beyond(parameter, end, share)
        try:
            StudyDefinition.model_validate(_with(alone, 0, name, end, value))
        except ValidationError:
            continue
        return value
    return None


def _beyond(parameter: Numeric, end: End, share: float) -> float:
    """The value beyond this end by a share of the range on its scale: a whole number or a step where it has them."""
    low, high, outward = float(parameter.low), float(parameter.high), 1 if end == "high" else -1
    bound = high if end == "high" else low
    if parameter.log:
        value = bound * math.pow(high / low, outward * share)
        if isinstance(parameter, IntParameter):
            return max(math.ceil(value), parameter.high + 1) if end == "high" else math.floor(value)
        return _rounded(value, beyond=bound)
    width = share * (high - low)
    if parameter.step is None:
        return _rounded(bound + outward * width, beyond=bound)
    n_steps = max(1, round(width / parameter.step))
    return parameter.at(n_steps + parameter.grid_size() - 1) if end == "high" else parameter.at(-n_steps)


def _rounded(value: float, *, beyond: float) -> float:
    """The value with three digits, or as many more as a narrow range needs to be wider by about as much."""
    rounded = (float(f"{value:.{digits}g}") for digits in range(3, 18))
    return next(short for short in rounded if abs(short - value) <= 0.1 * abs(value - beyond))


def _with(raw: Mapping[str, Any], place: int, name: str, end: str, value: float) -> dict[str, Any]:
    changed = copy.deepcopy(dict(raw))
    changed["optimizers"][place]["space"][name][end] = value
    return changed
