"""A study's ladder of sizes: what a definition says of it, and each optimizer's search at each size.

What follows from the results is in `search.prediction`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

import admeta.registry
from admeta.errors import AdmetaError
from admeta.info import OptimInfo
from admeta.spaces import RECIPE
from search.errors import field_error
from search.optimizer_search import OptimizerSearch
from search.space import CategoricalParameter, FloatParameter, Parameter, Strict
from tasks.config import Count, Number

LARGEST = 2**53
"""Integers above it are not exact as floats, which a line is fitted in."""

Size = Annotated[
    Annotated[Count, Field(gt=0, le=LARGEST)] | Annotated[Number, Field(gt=0, le=LARGEST)],
    Field(union_mode="left_to_right"),
]

Kind = Literal["log", "linear"]
"""The scale on which a parameter's best values are fitted over size."""

OPENED = (100.0, 10.0, 3.0)
"""Factors by which the space at the predicted size reaches beyond that of the search: the first that is allowed."""

MIN_SIZES = 3
"""Sizes below which a line has no interval."""


class Scale(Strict):
    """Sizes of the model at which every optimizer is searched, and the size that its settings are predicted for."""

    field: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        description="A field of the task that is a number and may be searched, such as `width`."
    )
    values: list[Size] = Field(
        max_length=20, description="Three sizes or more: each optimizer has a search of the whole budget at each."
    )
    predict: Size = Field(
        description="The size that settings are predicted for, by a line through those that were best."
    )
    verify: Annotated[Count, Field(ge=0, le=21)] = Field(
        default=5,
        description="Trials of each optimizer at that size, an odd number: the predicted settings, and around them "
        "learning rates 2, 4, … times lower and higher, which can refute the prediction. 0: none.",
    )

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if len(self.values) < MIN_SIZES:
            message = f"has {len(self.values)} sizes; a line with an interval needs {MIN_SIZES} or more"
            raise field_error("too_few_sizes", message, at="values", value=self.values)
        if len(set(self.values)) != len(self.values):
            message = f"{self.values} are not all different; list each size once"
            raise field_error("sizes", message, at="values", value=self.values)
        if self.predict in self.values:
            message = f"{self.predict:g} is among 'values'; predict a size that is not searched"
            raise field_error("sizes", message, at="predict", value=self.predict)
        if self.verify and self.verify % 2 == 0:
            message = (
                f"must be odd, with as many learning rates below the predicted one as above, or 0; it is {self.verify}"
            )
            raise field_error("verify", message, at="verify", value=self.verify)
        return self

    @property
    def sizes(self) -> list[float]:
        """Those that are searched, in ascending order, then the predicted one where it is verified."""
        return [*sorted(self.values), *([self.predict] if self.verify else [])]


def sizes_of(definition: Mapping[str, Any]) -> list[float | None]:
    """The sizes of a stored definition, in the order of each optimizer's searches; None alone where it has one size.

    Rules that a later version has added are not checked again: its results are shown all the same.
    """
    raw = definition.get("scale")
    return [None] if raw is None else [*Scale.model_construct(**raw).sizes]


def at_size(optimizer: OptimizerSearch, scale: Scale, size: float) -> OptimizerSearch:
    """The optimizer's search at one size; at the predicted one its space has room for what is predicted."""
    fields: dict[str, Any] = {name: getattr(optimizer, name) for name in OptimizerSearch.model_fields}
    shown = str(size).replace("+", "")  # 1e+20 is no name
    fields["label"] = f"{optimizer.label}.{scale.field}{shown}"
    fields["fixed"] = {**optimizer.fixed, f"{RECIPE}{scale.field}": size}
    if size == scale.predict:
        info = admeta.registry.get(optimizer.name)
        space = {name: _opened(info, name, parameter) for name, parameter in optimizer.space.items()}
        fields |= {"space": space, "first": [], "when": [], "n_trials": scale.verify}
    return OptimizerSearch.model_construct(**fields)  # a copy would keep what is cached of the other space


def _opened(info: OptimInfo, name: str, parameter: Parameter) -> Parameter:
    """The parameter in a range that reaches farther on both sides, as far as the optimizer allows."""
    kind = _kind(name, parameter)
    if kind is None:
        return parameter
    low, high = range_of(parameter)

    def allowed(values: Iterator[float], otherwise: float) -> float:
        for value in values:
            try:
                info.check(name, value)
            except AdmetaError:
                continue
            return value
        return otherwise

    span = high - low
    lows = (low / by if kind == "log" else low - span for by in OPENED)
    highs = (high * by if kind == "log" else high + span for by in OPENED)
    return FloatParameter(
        type="float", low=allowed(lows, low), high=allowed(highs, high), log=kind == "log", when=parameter.when
    )


def _kind(name: str, parameter: Parameter) -> Kind | None:
    """The scale on which the parameter's best values are fitted over size; None for one that has no line."""
    if name.startswith(RECIPE) or parameter.when:
        return None
    if isinstance(parameter, FloatParameter):
        return "log" if parameter.log else "linear"
    if not isinstance(parameter, CategoricalParameter):
        return None
    numbers = parameter.numbers
    real = len(numbers) > 1 and any(isinstance(one, float) for one in numbers)
    return "log" if real and min(numbers) > 0 else None


def range_of(parameter: Parameter) -> tuple[float, float]:
    """The least and the greatest value of a parameter that `fitted` names."""
    if isinstance(parameter, FloatParameter):
        return parameter.low, parameter.high
    assert isinstance(parameter, CategoricalParameter)
    numbers = [float(one) for one in parameter.numbers]
    return min(numbers), max(numbers)


def fitted(optimizer: OptimizerSearch) -> dict[str, Kind]:
    """The searched parameters whose best values have a line over size, with its scale."""
    kinds = {name: _kind(name, parameter) for name, parameter in optimizer.space.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}
