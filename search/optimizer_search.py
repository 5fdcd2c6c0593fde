"""One optimizer of a study definition: its search space, its constant parameters and its first trials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

import admeta.registry
from admeta.errors import AdmetaError
from admeta.info import OptimInfo
from search.errors import field_error
from search.named_spaces import resolve_spaces
from search.roles import ROLES_SCHEMA, resolve_roles
from search.space import Space, Strict, check_conditions, why_not

BASELINE = ".defaults"
"""What follows an optimizer's label in that of its baseline."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}$"
Name = Annotated[
    str,
    Field(
        pattern=NAME_PATTERN,
        description="1 to 100 letters, digits, '-', '_' or '.', not starting with a mark.",
    ),
]


def _known_optimizer(name: str) -> str:
    try:
        return admeta.registry.get(name).name
    except AdmetaError as error:
        raise PydanticCustomError("unknown_optimizer", "{message}", {"message": str(error)}) from None


def _show_roles(schema: dict[str, Any]) -> None:
    """Add the input field that `resolve_roles` replaces."""
    schema["properties"]["roles"] = ROLES_SCHEMA


class OptimizerSearch(Strict):
    """One optimizer and its search space. Give a `label` to list an optimizer more than once."""

    model_config = ConfigDict(json_schema_extra=_show_roles)

    name: Annotated[str, Field(max_length=100), AfterValidator(_known_optimizer)] = Field(
        description="A name from GET /v1/optimizers, or an import path, where the service allows its package: "
        "'torch.optim:NAdam'. 'a+b' is a on the hidden matrices and b on all other parameters; beside the name a "
        "`roles: {others: {name: b, space: {…}, fixed: {…}}}` writes the same, with a space for b.",
        examples=["admetar", "torch.optim:NAdam", "muon+lion"],
    )
    label: Name = Field(description="Name of this search within the study; default: the optimizer's name.")
    space: Space = Field(
        description="Parameters to search, or the name of a space: 'default', 'finetune', 'paper' or 'paper-best' (the "
        "space that the paper searched, starting with its best settings). Default: 'finetune' if the task trains a "
        "pretrained model, otherwise 'default'."
    )
    fixed: dict[str, JsonValue] = Field(description="Parameters with a constant value. Default: the registry's.")
    first: list[dict[str, JsonValue]] = Field(
        default=[],
        max_length=100,
        description="Settings of the first trials, one entry for each; parameters left out are drawn. Also "
        "'paper-best': the paper's best settings of this task and model.",
    )

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
            return raw
        try:
            raw = resolve_roles(raw)
            info = admeta.registry.get(raw["name"])
        except AdmetaError:  # the validator of `name` reports it
            return {"name": raw["name"], "label": "unknown", "space": {}, "fixed": {}}
        return resolve_spaces(info, raw)

    @field_validator("space")
    @classmethod
    def _space_fits(cls, space: Space, context: ValidationInfo) -> Space:
        if "name" not in context.data:
            return space
        info = admeta.registry.get(context.data["name"])
        if not space:
            raise ValueError("is empty; name at least one parameter, or leave 'space' out for the default")
        for name, parameter in space.items():
            for value in parameter.end_points():
                _check_parameter(info, name, value)
        check_conditions(space)
        return space

    @field_validator("fixed")
    @classmethod
    def _fixed_fits(cls, fixed: dict[str, JsonValue], context: ValidationInfo) -> dict[str, JsonValue]:
        if "name" not in context.data:
            return fixed
        info = admeta.registry.get(context.data["name"])
        for name, value in fixed.items():
            _check_parameter(info, name, value)
            if name in context.data.get("space", {}):
                raise field_error(
                    "twice", "is in both 'space' and 'fixed'; remove it from one of them", at=name, value=value
                )
        return fixed

    @model_validator(mode="after")
    def _can_be_constructed(self) -> Self:
        if errors := list(_conflicts(self, admeta.registry.get(self.name))):
            raise ValidationError.from_exception_data("", errors)
        return self

    def end_points(self, name: str) -> list[Any]:
        """The least and the greatest value, or all choices, that a parameter can have in this search."""
        if name in self.space:
            return self.space[name].end_points()
        return [self.fixed.get(name, admeta.registry.get(self.name).parameters[name].default)]

    def are_drawn_together(self, values: Mapping[str, Any]) -> bool:
        """Whether the conditions of the space let these parameters have these values in one trial."""
        conditions = [self.space[name].when or {} for name in values if name in self.space]
        return all(values.get(parent, want) == want for when in conditions for parent, want in when.items())

    def at_defaults(self) -> OptimizerSearch:
        """The optimizer with the searched parameters at their defaults: no search, one trial. `fixed` stays.

        Raises:
            ValidationError: the optimizer does not take these settings together.
        """
        info = admeta.registry.get(self.name)
        fixed = {name: _plain(parameter.default) for name, parameter in info.parameters.items() if name in self.space}
        met = {name for name in self.space if all({**self.fixed, **fixed}.get(p) == v for p, v in self._when(name))}
        fixed = {**{name: value for name, value in fixed.items() if name in met}, **self.fixed}
        update = {"label": self.label + BASELINE, "space": {}, "fixed": fixed, "first": []}
        found = self.model_copy(update=update)
        if errors := list(_conflicts(found, info)):
            raise ValidationError.from_exception_data("", errors)
        return found

    def _when(self, name: str) -> Iterable[tuple[str, JsonValue]]:
        return (self.space[name].when or {}).items()

    @field_validator("first")
    @classmethod
    def _first_fits(cls, first: list[dict[str, JsonValue]], context: ValidationInfo) -> list[dict[str, JsonValue]]:
        space = context.data.get("space", {})
        for i, values in enumerate(first):
            for name, value in values.items():
                if name not in space:
                    rule = f"is not a parameter of 'space', which has {', '.join(space) or 'none'}"
                    raise field_error("outside", rule, at=(i, name), value=value)
                if rule := why_not(space[name], value) or _unmet(name, values, space):
                    raise field_error("outside", rule, at=(i, name), value=value)
        return first


def _conflicts(optimizer: OptimizerSearch, info: OptimInfo) -> Iterator[InitErrorDetails]:
    """Settings in the corners of the space that the optimizer's constructor would refuse, as an error of each field."""
    for rule in info.requirements:
        for value in optimizer.end_points(rule.parameter):
            for other in optimizer.end_points(rule.where):
                if other != rule.value or rule.domain.accepts(value):
                    continue
                if not optimizer.are_drawn_together({rule.parameter: value, rule.where: other}):
                    continue
                message = f"{rule.rule()}; it can be {value!r} here. Change either of them"
                kind = PydanticCustomError("requirement", "{message}", {"message": message})
                for name, met in ((rule.parameter, value), (rule.where, other)):
                    part = "space" if name in optimizer.space else "fixed"
                    yield InitErrorDetails(type=kind, loc=(part, name), input=met)
                break


def _unmet(name: str, values: Mapping[str, JsonValue], space: Space) -> str:
    """The condition under which the parameter is drawn, where these values contradict it; empty where they don't."""
    for parent, value in (space[name].when or {}).items():
        if parent in values and values[parent] != value:
            return f"is only drawn when {parent} = {value!r}, and here {parent} = {values[parent]!r}"
    return ""


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check_parameter(info: OptimInfo, name: str, value: object) -> None:
    try:
        info.check(name, value)
    except AdmetaError as error:
        raise field_error("parameter", str(error), at=name, value=value) from None


@dataclass(frozen=True, kw_only=True)
class PlannedSearch:
    """One search that a study makes.

    Attributes:
        optimizer: as the definition has it, under the label of this search.
        of: the optimizer's label in the definition.
        repeat: how many searches of the same optimizer come before it.
        is_baseline: whether it is one trial of the optimizer's default settings and no search.
    """

    optimizer: OptimizerSearch
    of: str
    repeat: int
    is_baseline: bool = False
