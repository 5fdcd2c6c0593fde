"""Search spaces of a study definition, and how a trial's parameters are drawn from one.

There are three kinds of parameter: float, int and categorical. Optuna does not store lists as choices correctly (tuples
are read as lists, and the next ask fails), so every choice that is not a plain scalar is stored as JSON text.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

import admeta.spaces
from tasks.config import Flag, Number

if TYPE_CHECKING:
    import optuna


MAX_INTEGER = 2**53
"""Largest bound of an integer parameter: Optuna stores floats, which do not represent all larger integers."""

MAX_STEPS = 10**9
MAX_PARAMETERS = 100
_MAX_LISTED = 20

Integer = Annotated[int, Field(strict=True, ge=-MAX_INTEGER, le=MAX_INTEGER)]


class Strict(BaseModel):
    """Base of all parts of a study definition: no unknown fields, no NaN or infinity, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Parameter(Strict):
    when: dict[str, JsonValue] | None = Field(
        default=None, description="Only drawn when these other parameters have these values.", min_length=1
    )


class FloatParameter(_Parameter):
    """A real number between low and high, both included."""

    type: Literal["float"]
    low: Number
    high: Number
    log: Flag = Field(default=False, description="Draw uniformly in the logarithm.")
    step: Annotated[Number, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_range(self.low, self.high, log=self.log)
        if not math.isfinite(self.high - self.low):
            raise ValueError(f"high - low = {self.high} - {self.low} is not a finite number; choose nearer bounds")
        if self.log and self.step is not None:
            raise ValueError("log and step cannot be combined; leave one out")
        if self.step is not None:
            _check_step(self.low, self.high, step=self.step)
        return self

    def end_points(self) -> list[Any]:
        return [self.low, self.high]

    def position(self, value: float) -> float:
        """The place of a value in the range, from 0 to 1 on the declared scale."""
        return _position(self.low, self.high, value, log=self.log)

    def value_at(self, position: float) -> float:
        """The value at this place of the range, the nearest one where there are steps."""
        value = _value_at(self.low, self.high, position, log=self.log)
        return value if self.step is None else float(as_drawn(self, value))

    def distribution(self) -> optuna.distributions.BaseDistribution:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self._last(), log=self.log, step=self.step)

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        return trial.suggest_float(name, self.low, self._last(), log=self.log, step=self.step)

    def draw(self, rng: random.Random) -> float:
        """A uniform draw, on its own scale."""
        if self.step is not None:
            return self.at(rng.randrange(self.grid_size()))
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            return min(max(drawn, self.low), self.high)
        return rng.uniform(self.low, self.high)

    def grid_size(self) -> int:
        if self.step is None:
            raise ValueError("a grid needs a step or choices")
        return int((_decimal(self.high) - _decimal(self.low)) // _decimal(self.step)) + 1

    def grid_values(self) -> list[Any]:
        return [self.at(i) for i in range(self.grid_size())]

    def _last(self) -> float:
        """The largest value that can be drawn; Optuna warns at every draw if it is not the upper bound."""
        return self.high if self.step is None else self.at(self.grid_size() - 1)

    def at(self, i: int) -> float:
        """low + i·step in decimal arithmetic, as in Optuna: 0.1 + 2·0.1 is 0.3."""
        return float(_decimal(self.low) + i * _decimal(self.step or 0.0))


class IntParameter(_Parameter):
    """An integer between low and high, both included."""

    type: Literal["int"]
    low: Integer
    high: Integer
    log: Flag = False
    step: Annotated[Integer, Field(gt=0)] = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_range(self.low, self.high, log=self.log)
        if self.log and self.step != 1:
            raise ValueError("log and step cannot be combined; leave one out")
        if self.step != 1:
            _check_step(self.low, self.high, step=self.step)
        return self

    def end_points(self) -> list[Any]:
        return [self.low, self.high]

    def position(self, value: float) -> float:
        """The place of a value in the range, from 0 to 1 on the declared scale."""
        return _position(self.low, self.high, value, log=self.log)

    def value_at(self, position: float) -> int:
        """The nearest value to this place of the range."""
        return int(as_drawn(self, _value_at(self.low, self.high, position, log=self.log)))

    def distribution(self) -> optuna.distributions.BaseDistribution:
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self._last(), log=self.log, step=self.step)

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        return trial.suggest_int(name, self.low, self._last(), log=self.log, step=self.step)

    def draw(self, rng: random.Random) -> int:
        """A uniform draw, on its own scale."""
        if self.log:
            drawn = round(math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5))))
            return min(max(drawn, self.low), self.high)
        return self.at(rng.randrange(self.grid_size()))

    def grid_size(self) -> int:
        return (self.high - self.low) // self.step + 1

    def grid_values(self) -> list[Any]:
        return list(range(self.low, self.high + 1, self.step))

    def at(self, i: int) -> int:
        """low + i·step."""
        return self.low + i * self.step

    def _last(self) -> int:
        return self.at(self.grid_size() - 1)


class CategoricalParameter(_Parameter):
    """One of several values, which may be lists, such as betas."""

    type: Literal["categorical"]
    choices: list[JsonValue] = Field(min_length=1, max_length=1000)

    @field_validator("choices")
    @classmethod
    def _check(cls, choices: list[JsonValue]) -> list[JsonValue]:
        equal: dict[Hashable, JsonValue] = {}  # by Python's equality: 1 == 1.0 == True, one choice to Optuna
        stored: dict[Hashable, JsonValue] = {}
        for choice in choices:
            _check_finite(choice)
            key, text = _hashable(choice), encode_choice(choice)
            if key in equal:
                raise ValueError(f"choices {equal[key]!r} and {choice!r} are equal; every choice must be another value")
            if text in stored:
                raise ValueError(f"choices {stored[text]!r} and {choice!r} are stored as the same text; leave one out")
            equal[key] = stored[text] = choice
        return choices

    def end_points(self) -> list[Any]:
        return list(self.choices)

    def distribution(self) -> optuna.distributions.BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.grid_values())

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        stored = trial.suggest_categorical(name, self.grid_values())
        return self.choices[self.grid_values().index(stored)]

    def draw(self, rng: random.Random) -> Any:
        """One of the choices, as Optuna stores it."""
        return rng.choice(self._stored)

    def grid_size(self) -> int:
        return len(self.choices)

    def grid_values(self) -> list[Any]:
        return list(self._stored)

    @property
    def numbers(self) -> list[float]:
        """The choices, where all of them are numbers; else none."""
        numbers = [one for one in self.choices if isinstance(one, int | float) and not isinstance(one, bool)]
        return numbers if len(numbers) == len(self.choices) else []

    @cached_property
    def _stored(self) -> tuple[Any, ...]:
        return tuple(encode_choice(choice) for choice in self.choices)


Parameter = Annotated[FloatParameter | IntParameter | CategoricalParameter, Field(discriminator="type")]
Space = Annotated[dict[str, Parameter], Field(max_length=MAX_PARAMETERS)]


def encode_choice(choice: JsonValue) -> bool | int | float | str | None:
    """The form in which Optuna stores a choice: scalars as they are, lists and objects as JSON text."""
    if choice is None or isinstance(choice, bool | int | float | str):
        return choice
    return json.dumps(choice)


def _hashable(value: JsonValue) -> Hashable:
    """Equal for equal values, as `==` compares them, and usable as a key."""
    if isinstance(value, list):
        return ("list", *map(_hashable, value))
    if isinstance(value, dict):
        return frozenset((name, _hashable(item)) for name, item in value.items())
    return value


def from_registry(space: Mapping[str, admeta.spaces.ParamSpace]) -> Space:
    """A search space of the optimizer registry, as parameters of a definition."""
    return {name: _from_registry(parameter) for name, parameter in space.items()}


def _from_registry(
    parameter: admeta.spaces.ParamSpace,
) -> FloatParameter | IntParameter | CategoricalParameter:
    match parameter:
        case admeta.spaces.Float():
            return FloatParameter(
                type="float", low=parameter.low, high=parameter.high, log=parameter.log, step=parameter.step
            )
        case admeta.spaces.Int():
            return IntParameter(
                type="int",
                low=parameter.low,
                high=parameter.high,
                log=parameter.log,
                step=parameter.step or 1,
            )
        case admeta.spaces.Categorical():
            choices: list[Any] = [list(c) if isinstance(c, tuple) else c for c in parameter.choices]
            return CategoricalParameter(type="categorical", choices=choices)


def ordered(space: Space) -> list[str]:
    """Names, every parent before the parameters that depend on it, otherwise sorted: a database may reorder keys.

    Raises:
        ValueError: the conditions are circular.
    """
    order: list[str] = []
    left = dict(space)
    while left:
        ready = sorted(name for name, p in left.items() if not (set(p.when or ()) & left.keys()))
        if not ready:
            raise ValueError(f"the conditions of parameters {sorted(left)} are circular; remove one 'when'")
        for name in ready:
            order.append(name)
            del left[name]
    return order


def fit(settings: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """The settings that are values of the space, as Optuna stores them; the others are left out."""
    fitting: dict[str, Any] = {}
    for name, value in settings.items():
        if name in space and why_not(space[name], value) is None:
            fitting[name] = as_drawn(space[name], value)
    return fitting


def why_not(parameter: Parameter, value: Any) -> str | None:
    """The rule that this value breaks; None if the parameter can have it."""
    if isinstance(parameter, CategoricalParameter):
        if encode_choice(value) in parameter._stored:
            return None
        return f"must be one of the choices {_listed(parameter.choices)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    if not parameter.low <= value <= parameter.high:
        return f"must be from {parameter.low} to {parameter.high}"
    if parameter.step is not None and not math.isclose(as_drawn(parameter, value), value, rel_tol=1e-9):
        return f"must be {parameter.low} plus a multiple of step = {parameter.step}"
    return None


def _listed(choices: Sequence[JsonValue]) -> str:
    """The choices for an error message, which names at most 20 of 1,000."""
    return ", ".join(map(repr, choices[:_MAX_LISTED])) + (", …" if len(choices) > _MAX_LISTED else "")


def as_drawn(parameter: Parameter, value: Any) -> Any:
    """The value as the space itself would draw it: the nearest step, where there are steps."""
    if isinstance(parameter, CategoricalParameter):
        return encode_choice(value)
    if parameter.step is None:
        return value
    nearest = round((_decimal(value) - _decimal(parameter.low)) / _decimal(parameter.step))
    return parameter.at(min(nearest, parameter.grid_size() - 1))


def check_conditions(space: Space) -> None:
    """Check that every condition can be met.

    Raises:
        ValueError: a parent is missing, depends on the parameter itself, or cannot have the value.
    """
    for name, parameter in space.items():
        for parent, value in (parameter.when or {}).items():
            if parent not in space:
                raise ValueError(f"parameter '{name}' depends on '{parent}', which is not in the space")
            _check_condition(name, parent, value, space[parent])
    ordered(space)


def _check_condition(name: str, parent: str, value: JsonValue, of: Parameter) -> None:
    match of:
        case CategoricalParameter():
            if value not in of.choices:
                known = _listed(of.choices)
                raise ValueError(f"parameter '{name}' depends on {parent} = {value!r}, which is not one of [{known}]")
        case IntParameter():
            if not isinstance(value, int) or value not in range(of.low, of.high + 1, of.step):
                raise ValueError(
                    f"parameter '{name}' depends on {parent} = {value!r}, which is not among the integers from "
                    f"{of.low} to {of.high} in steps of {of.step}"
                )
        case FloatParameter():
            raise ValueError(
                f"parameter '{name}' depends on {parent} = {value!r}, but a draw from a range of real numbers never "
                f"equals one value. Make '{parent}' categorical"
            )


def draw(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """Draw the trial's parameters; those whose condition is not met are left out.

    May be repeated on a trial that was interrupted: the parameters that it has are kept.
    """
    params: dict[str, Any] = {}
    for name in ordered(space):
        when = space[name].when or {}
        if all(parent in params and params[parent] == value for parent, value in when.items()):
            params[name] = space[name].suggest(trial, name)
    return params


def _check_range(low: float, high: float, *, log: bool) -> None:
    if low >= high:
        raise ValueError(f"low = {low} must be less than high = {high}; for one value only, put it under 'fixed'")
    if log and low <= 0:
        raise ValueError(f"low = {low} must be greater than 0 on a log scale; raise low or set log: false")


def _check_step(low: float, high: float, *, step: float) -> None:
    width = _decimal(high) - _decimal(low)
    if _decimal(step) > width:
        raise ValueError(f"step = {step} must be at most high - low = {width}; or put one value under 'fixed'")
    if width / _decimal(step) > MAX_STEPS:
        raise ValueError(f"step = {step} makes more than {MAX_STEPS:,} steps from {low} to {high}; choose a larger one")


def _position(low: float, high: float, value: float, *, log: bool) -> float:
    scale = math.log if log else float
    return (scale(value) - scale(low)) / (scale(high) - scale(low))


def _value_at(low: float, high: float, position: float, *, log: bool) -> float:
    if log:
        value = math.exp(math.log(low) + position * (math.log(high) - math.log(low)))
    else:
        value = low + position * (high - low)
    return min(max(value, low), high)


def _decimal(number: float) -> Decimal:
    return Decimal(str(number))


def _check_finite(value: JsonValue) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if isinstance(value, list):
        for item in value:
            _check_finite(item)
    if isinstance(value, dict):
        for item in value.values():
            _check_finite(item)
