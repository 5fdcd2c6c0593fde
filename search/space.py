"""Search spaces as a study writes them, and how a trial's parameters are drawn from one.

Owns the three kinds of parameter (float, int, categorical), their checks against the optimizer's registry entry,
and the translation to Optuna. Optuna keeps a categorical's lists badly (tuples come back as lists and the next ask
fails), so every choice that is not a plain scalar is stored there as its JSON text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

import admeta.spaces

if TYPE_CHECKING:
    import optuna


class Strict(BaseModel):
    """Base of everything a study definition is made of: no unknown fields, no NaN or infinity, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Parameter(Strict):
    when: dict[str, JsonValue] | None = Field(
        default=None, description="Only drawn when these other parameters have these values.", min_length=1
    )


class FloatParameter(_Parameter):
    """A real number between low and high, both included."""

    type: Literal["float"]
    low: float
    high: float
    log: bool = Field(default=False, description="Draw uniformly in the logarithm.")
    step: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_range(self.low, self.high, log=self.log)
        if self.log and self.step is not None:
            raise ValueError("log and step cannot be combined; leave one out")
        return self

    def end_points(self) -> list[Any]:
        return [self.low, self.high]

    def distribution(self) -> optuna.distributions.BaseDistribution:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        return trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step)

    def grid_values(self) -> list[Any]:
        if self.step is None:
            raise ValueError("a grid needs a step or choices")
        n = math.floor((self.high - self.low) / self.step + 1e-9) + 1
        return [self.low + i * self.step for i in range(n)]


class IntParameter(_Parameter):
    """An integer between low and high, both included."""

    type: Literal["int"]
    low: int
    high: int
    log: bool = False
    step: Annotated[int, Field(gt=0)] = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_range(self.low, self.high, log=self.log)
        if self.log and self.step != 1:
            raise ValueError("log and step cannot be combined; leave one out")
        return self

    def end_points(self) -> list[Any]:
        return [self.low, self.high]

    def distribution(self) -> optuna.distributions.BaseDistribution:
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high, log=self.log, step=self.step)

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        return trial.suggest_int(name, self.low, self.high, log=self.log, step=self.step)

    def grid_values(self) -> list[Any]:
        return list(range(self.low, self.high + 1, self.step))


class CategoricalParameter(_Parameter):
    """One of some values; lists such as betas are values too."""

    type: Literal["categorical"]
    choices: list[JsonValue] = Field(min_length=1, max_length=1000)

    @field_validator("choices")
    @classmethod
    def _check(cls, choices: list[JsonValue]) -> list[JsonValue]:
        for i, choice in enumerate(choices):
            _check_finite(choice)
            for other in choices[:i]:
                if choice == other:  # Python's equality: 1 == 1.0 == True, which Optuna would take for one choice
                    raise ValueError(f"choices {other!r} and {choice!r} are equal; every choice must be another value")
        return choices

    def end_points(self) -> list[Any]:
        return list(self.choices)

    def distribution(self) -> optuna.distributions.BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.grid_values())

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        stored = trial.suggest_categorical(name, self.grid_values())
        return self.choices[self.grid_values().index(stored)]

    def grid_values(self) -> list[Any]:
        return [encode_choice(choice) for choice in self.choices]


Parameter = Annotated[FloatParameter | IntParameter | CategoricalParameter, Field(discriminator="type")]
Space = dict[str, Parameter]


def encode_choice(choice: JsonValue) -> bool | int | float | str | None:
    """The form in which Optuna stores a choice: scalars as they are, lists and objects as JSON text."""
    if choice is None or isinstance(choice, bool | int | float | str):
        return choice
    return json.dumps(choice)


def from_registry(space: Mapping[str, admeta.spaces.ParamSpace]) -> Space:
    """The optimizer registry's search space as a study would write it."""
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
    """Names with every parent before the parameters that depend on it, otherwise by name: a database may reorder keys.

    Raises:
        ValueError: the conditions form a circle.
    """
    order: list[str] = []
    left = dict(space)
    while left:
        ready = sorted(name for name, p in left.items() if not (set(p.when or ()) & left.keys()))
        if not ready:
            raise ValueError(f"parameters {sorted(left)} depend on one another in a circle; 'when' must end somewhere")
        for name in ready:
            order.append(name)
            del left[name]
    return order


def fit(settings: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Those of the settings that the space could have drawn, as Optuna stores them."""
    stored = {name: encode_choice(value) for name, value in settings.items() if name in space}
    return {name: value for name, value in stored.items() if _holds(space[name], value)}


def _holds(parameter: FloatParameter | IntParameter | CategoricalParameter, value: Any) -> bool:
    if isinstance(parameter, CategoricalParameter):
        return value in parameter.grid_values()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(parameter, IntParameter) and value != int(value):
        return False
    return parameter.low <= value <= parameter.high


def draw(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """Draw the trial's parameters; those whose condition does not hold are left out.

    May be repeated on a trial that was interrupted half-way: what it has already is kept.
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


def _check_finite(value: JsonValue) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if isinstance(value, list):
        for item in value:
            _check_finite(item)
    if isinstance(value, dict):
        for item in value.values():
            _check_finite(item)
