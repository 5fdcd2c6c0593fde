"""One optimizer of a study definition: its search space with its conditions, its constant parameters, its first trials.

Named spaces and roles are resolved before it is checked (search.named_spaces).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
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
from admeta.info import OTHERS, OptimInfo
from admeta.spaces import RECIPE, Condition
from search.errors import field_error, nearest_hint
from search.named_spaces import ROLES_SCHEMA, as_list, lift_conditions, resolve_roles, resolve_spaces
from search.recipe import RECIPE_SCHEMA, recipe_parameters
from search.samplers import configurations, n_configurations
from search.space import Space, Strict, check_conditions, encode_choice, fit, ordered, why_not
from tasks.config import Count

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

MAX_CONDITIONS = 3

LEAST_SHARE = 0.01
"""Share of a space that must meet its conditions: what does not is drawn again."""

MAX_UNIFORM = 100_000
"""Uniform draws among which one meets the conditions: at least 1 in 100 does, or 1 in 400 with some settings given."""

N_DRAWN, ENOUGH_MET = 400, 40
"""Uniform draws that estimate the share, and how many that meet the conditions are enough."""


def _known_optimizer(name: str) -> str:
    try:
        return admeta.registry.get(name).name
    except AdmetaError as error:
        raise PydanticCustomError("unknown_optimizer", "{message}", {"message": str(error)}) from None


def _show_resolved(schema: dict[str, Any]) -> None:
    """Add the input fields that are resolved before the model sees them."""
    description = "As the study's `recipe`, for this optimizer alone."
    schema["properties"] |= {"roles": ROLES_SCHEMA, "recipe": {"description": description, **RECIPE_SCHEMA}}


class OptimizerSearch(Strict):
    """One optimizer and its search space. Give a `label` to list an optimizer more than once."""

    model_config = ConfigDict(json_schema_extra=_show_resolved)

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
        "whole pretrained model, otherwise 'default'."
    )
    fixed: dict[str, JsonValue] = Field(description="Parameters with a constant value. Default: the registry's.")
    first: list[dict[str, JsonValue]] = Field(
        default=[],
        max_length=100,
        description="Settings of the first trials, one entry for each; parameters left out are drawn. Also "
        "'paper-best': the paper's best settings of this task and model.",
    )
    n_trials: Annotated[Count, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description="Trials of this optimizer in place of `budget.trials_per_optimizer`. Budgets are then unequal, and "
        "the comparison says so.",
    )
    when: Annotated[list[str], BeforeValidator(as_list, json_schema_input_type=list[str] | str)] = Field(
        default=[],
        max_length=MAX_CONDITIONS,
        description="What all settings of the search meet: a comparison of parameters, 'lr * steady_gain <= 3', or up "
        "to three of them. May also be written inside 'space'.",
    )

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
            return raw
        try:
            raw = resolve_roles(lift_conditions(raw))
            info = admeta.registry.get(raw["name"])
        except AdmetaError:  # the validator of `name` reports it
            return {"name": raw["name"], "label": "unknown", "space": {}, "fixed": {}}
        recipe = recipe_parameters(raw)
        resolved = resolve_spaces(info, {name: value for name, value in raw.items() if name != "recipe"})
        if recipe and isinstance(resolved["space"], dict):
            resolved["space"] = {**resolved["space"], **recipe}
        return resolved

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

    @field_validator("when")
    @classmethod
    def _conditions_fit(cls, when: list[str], info: ValidationInfo) -> list[str]:
        if not {"name", "space", "fixed"} <= info.data.keys():
            return when
        optimizer = admeta.registry.get(info.data["name"])
        for i, text in enumerate(when):
            try:
                names = Condition(text).names
            except ValueError as error:
                raise field_error("condition", str(error), at=i, value=text) from None
            for name in names:
                if fault := _why_not_compared(name, optimizer, info.data["space"], info.data["fixed"]):
                    raise field_error("condition", fault, at=i, value=text)
        return when

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        if not self.when or not self.space:
            return self
        share = self.share_met()
        if share < LEAST_SHARE:
            message = (
                f"only {100 * share:.2g} % of the space meets {_listed(self.when)}, and at least "
                f"{100 * LEAST_SHARE:g} % must; change the condition, or narrow the ranges to where it holds"
            )
            raise field_error("empty", message, at="when", value=self.when)
        for i, values in enumerate(self.first):
            if not self.can_begin_with(values):
                message = f"no trial that begins so meets {_listed(self.when)}; change the setting or the condition"
                raise field_error("outside", message, at=("first", i), value=values)
        return self

    @cached_property
    def _conditions(self) -> list[Condition]:
        return [Condition(text) for text in self.when]

    @cached_property
    def _held(self) -> dict[str, Any]:
        """What the parameters are that a trial does not draw."""
        parameters = admeta.registry.get(self.name).parameters
        return {**{name: one.default for name, one in parameters.items()}, **self.fixed}

    def meets(self, params: Mapping[str, Any]) -> bool:
        """Whether these drawn parameters meet `when`. Those not drawn have their constant value or default.

        A condition does not apply where a parameter that it compares has neither.
        """
        if not self.when:
            return True
        values = {**self._held, **params}
        derived = admeta.registry.get(self.name).derived
        for condition in self._conditions:
            try:
                compared = {n: derived[n].value(values) if n in derived else values.get(n) for n in condition.names}
            except ValueError:  # a derived number is not defined here
                return False
            drawn = {name: value for name, value in compared.items() if value is not None}
            if len(drawn) == len(compared) and not condition.holds(drawn):
                return False
        return True

    def draw_meeting(self, rng: random.Random, given: Mapping[str, Any], *, at_most: int) -> dict[str, Any] | None:
        """A uniform draw among the configurations that meet `when`, as Optuna stores it; None if none was found.

        Args:
            given: parameters that are not drawn.
            at_most: draws to try.
        """
        for _ in range(at_most):
            drawn = self.complete(given, lambda name: self.space[name].draw(rng))
            if self.meets(drawn):
                return drawn
        return None

    def complete(self, given: Mapping[str, Any], draw: Callable[[str], Any]) -> dict[str, Any]:
        """All parameters of a configuration, as Optuna stores them: those given, and a draw of each other it has."""
        params: dict[str, Any] = {}
        for name in self._order:
            when = self.space[name].when or {}
            if all(parent in params and params[parent] == encode_choice(value) for parent, value in when.items()):
                params[name] = given[name] if name in given else draw(name)
        return params

    @cached_property
    def _order(self) -> list[str]:
        return ordered(self.space)

    def can_begin_with(self, given: Mapping[str, Any]) -> bool:
        """Whether a trial with these values can meet `when`: whether one of `N_DRAWN` draws of the others does."""
        known = fit(given, self.space)
        at_most = 1 if known.keys() == self.space.keys() else N_DRAWN  # nothing is left to draw
        return self.draw_meeting(random.Random(0), known, at_most=at_most) is not None

    def share_met(self) -> float:
        """Share of the space that meets `when`, estimated by `N_DRAWN` uniform draws, fewer where it is large."""
        rng, n_met = random.Random(0), 0
        for n in range(1, N_DRAWN + 1):
            n_met += self.draw_meeting(rng, {}, at_most=1) is not None
            if n_met == ENOUGH_MET:  # most conditions hold in much of a space
                return n_met / n
        return n_met / N_DRAWN

    @cached_property
    def n_configurations(self) -> float:
        """Configurations of the space that meet `when`; infinite where they are endless or too many to list."""
        if not self.when:
            return n_configurations(self.space)
        listed = self.configurations
        return math.inf if listed is None else len(listed)

    @cached_property
    def configurations(self) -> list[dict[str, Any]] | None:
        """All that meet `when`, as Optuna stores them; None where they are endless, conditional or more than 10,000."""
        found = configurations(self.space)
        return found if found is None or not self.when else [one for one in found if self.meets(one)]

    def end_points(self, name: str) -> list[Any]:
        """The least and the greatest value, or all choices, that a parameter can have in this search."""
        if name in self.space:
            return self.space[name].end_points()
        if name in self.fixed:
            return [self.fixed[name]]
        return [admeta.registry.get(self.name).parameters[name].default]

    def are_drawn_together(self, values: Mapping[str, Any]) -> bool:
        """Whether the conditions of the space let these parameters have these values in one trial."""
        conditions = [self.space[name].when or {} for name in values if name in self.space]
        return all(values.get(parent, want) == want for when in conditions for parent, want in when.items())

    def at_defaults(self) -> OptimizerSearch:
        """The optimizer with the searched parameters at their defaults: no search, one trial. `fixed` stays.

        Those of an import path are left out: its constructor has their defaults.

        Raises:
            ValidationError: the optimizer does not take these settings together.
        """
        info = admeta.registry.get(self.name)
        fixed = {
            name: _plain(parameter.default)
            for name, parameter in info.parameters.items()
            if name in self.space and (OTHERS if name.startswith(OTHERS) else "") not in info.open_prefixes
        }
        met = {name for name in self.space if all({**self.fixed, **fixed}.get(p) == v for p, v in self._when(name))}
        fixed = {**{name: value for name, value in fixed.items() if name in met}, **self.fixed}
        update = {"label": self.label + BASELINE, "space": {}, "fixed": fixed, "first": [], "when": []}
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        found = self.model_construct(**{**fields, **update})  # a copy would keep what is cached of this space
        if errors := list(_conflicts(found, info)):
            raise ValidationError.from_exception_data("", errors)
        return found

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The optimizer's parameters, searched, fixed and at their defaults, and what else is searched with them."""
        return tuple(dict.fromkeys([*self.space, *self.fixed, *admeta.registry.get(self.name).parameters]))

    def number(self, name: str, params: Mapping[str, Any]) -> float | None:
        """The value of this parameter in a trial with these drawn parameters; None where it is no number."""
        known = admeta.registry.get(self.name).parameters
        default = known[name].default if name in known and name not in self.space else None
        value = {name: default, **self.fixed, **params}[name]
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

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


def _why_not_compared(name: str, info: OptimInfo, space: Space, fixed: Mapping[str, Any]) -> str:
    """Why a condition cannot compare what has this name; empty where it can."""
    if name in info.derived:
        return ""
    known = {**{key: one.default for key, one in info.parameters.items()}, **fixed}
    if name not in known and name not in space:
        names = (*space, *info.derived, *known)
        return f"'{name}' is no parameter of {info.name}; {nearest_hint(name, tuple(dict.fromkeys(names)))}"
    values = space[name].end_points() if name in space else [known[name]]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"'{name}' can be {value!r}, which is no number; a condition compares numbers"
    return ""


def _listed(when: Sequence[str]) -> str:
    return " and ".join(f"'{text}'" for text in when)


def _unmet(name: str, values: Mapping[str, JsonValue], space: Space) -> str:
    """The condition under which the parameter is drawn, where these values contradict it; empty where they don't."""
    for parent, value in (space[name].when or {}).items():
        if parent in values and values[parent] != value:
            return f"is only drawn when {parent} = {value!r}, and here {parent} = {values[parent]!r}"
    return ""


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check_parameter(info: OptimInfo, name: str, value: object) -> None:
    if name.startswith(RECIPE):
        return  # the study's validator checks it, which knows the task
    try:
        info.check(name, value)
    except AdmetaError as error:
        raise field_error("parameter", str(error), at=name, value=value) from None
