"""One optimizer of a study definition: its search space, its constant parameters, its first trials and its roles.

`roles` say which optimizer moves the hidden matrices and which the other parameters. They are resolved before a
definition is checked: what is stored has one name, `a+b`, one space and one set of constants, in which the settings of
the others' optimizer begin with `others.`.
"""

from __future__ import annotations

import math
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
from admeta.info import OTHERS, OptimInfo
from admeta.spaces import RECIPE
from search.errors import field_error
from search.named_spaces import find_named_space, resolve_spaces
from search.recipe import RECIPE_SCHEMA, recipe_parameters
from search.space import (
    CategoricalParameter,
    IntParameter,
    Space,
    Strict,
    as_drawn,
    check_conditions,
    from_registry,
    why_not,
)
from tasks.config import Count, Number

_FIELDS = {"matrices": ("space", "fixed"), "others": ("name", "space", "fixed")}
_TYPES: Mapping[str, tuple[type, ...]] = {"name": (str,), "space": (dict, str), "fixed": (dict,)}

ROLES_SCHEMA: dict[str, Any] = {
    "description": "For optimizers of hidden matrices, such as Muon: `others` is the optimizer of all other parameters "
    "(embeddings, norms, biases, the output layer), with a space of its own; `matrices` may hold the space and the "
    "constants of this one. A stored definition has the name `this+other`, and settings named `others.lr`.",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        role: {
            "anyOf": [
                {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "space": {"anyOf": [{"type": "object"}, {"type": "string"}]},
                        "fixed": {"type": "object"},
                        **({"name": {"type": "string"}} if "name" in fields else {}),
                    },
                },
                *([{"type": "string"}] if "name" in fields else []),
            ]
        }
        for role, fields in _FIELDS.items()
    },
}


def resolve_roles(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The raw search without `roles`: its parts are in `name`, `space` and `fixed`.

    Raises:
        PydanticCustomError: a field is unknown, stated twice, or of the wrong type.
        AdmetaError: `name` is not an optimizer.
    """
    rest = {key: value for key, value in raw.items() if key != "roles"}
    if raw.get("roles") is None:
        return rest
    roles = _checked(raw["roles"])
    matrices, others = roles.get("matrices", {}), roles.get("others", {})
    for key in matrices:
        if isinstance(rest.get(key), dict) and rest[key]:
            message = f"is stated under 'roles.matrices' and next to 'roles'; keep one '{key}'"
            raise field_error("twice", message, at=("roles", "matrices", key), value=matrices[key])
    rest |= matrices
    info = _joined(rest["name"], others)
    fixed = rest.get("fixed") or {}
    if isinstance(fixed, dict) and others.get("fixed"):
        fixed = fixed | {f"{OTHERS}{key}": value for key, value in others["fixed"].items()}
        rest["fixed"] = fixed
    own, added = rest.get("space"), others.get("space")
    if isinstance(own, dict) or isinstance(added, dict):
        rest["space"] = _part(info, own, prefix="", held=fixed) | _part(info, added, prefix=OTHERS, held=fixed)
    elif own is None and added is not None:
        rest["space"] = added
    return {**rest, "name": info.name}


def _checked(roles: Any) -> dict[str, dict[str, Any]]:
    """`roles` with a name alone as an object."""
    if not isinstance(roles, dict):
        raise field_error("roles", "must be an object with 'others', 'matrices' or both", at="roles", value=roles)
    found: dict[str, dict[str, Any]] = {}
    for role, part in roles.items():
        if role not in _FIELDS:
            message = f"is not a role; the roles are {' and '.join(_FIELDS)}"
            raise field_error("roles", message, at=("roles", str(role)), value=part)
        one = {"name": part} if isinstance(part, str) and role == "others" else part
        if not isinstance(one, dict):
            raise field_error("roles", "must be an object", at=("roles", role), value=part)
        for key, value in one.items():
            if key not in _FIELDS[role]:
                message = f"is not a field of a role; those of {role} are {', '.join(_FIELDS[role])}"
                raise field_error("roles", message, at=("roles", role, str(key)), value=value)
            if value is not None and not isinstance(value, _TYPES[key]):
                rule = {"name": "must be text", "space": "must be an object or a space's name"}.get(
                    key, "must be an object"
                )
                raise field_error("roles", rule, at=("roles", role, key), value=value)
        found[role] = {key: value for key, value in one.items() if value is not None}
    return found


def _joined(name: str, others: Mapping[str, Any]) -> OptimInfo:
    """The entry of the optimizer with its others': the named one, or its own, or itself."""
    info = admeta.registry.get(name)
    other = others.get("name", info.others or name)
    if other == info.others:
        return info
    try:
        return admeta.registry.get(f"{name.partition('+')[0]}+{other}")
    except AdmetaError as error:
        raise field_error("unknown_optimizer", str(error), at=("roles", "others", "name"), value=other) from None


def _part(info: OptimInfo, space: Any, *, prefix: str, held: Any) -> dict[str, Any]:
    """One role's part of the space, under the names of the whole.

    Args:
        space: an object, or the name of a space, of which the parameters of this role are taken that are not held.
    """
    if isinstance(space, dict):
        return {f"{prefix}{key}": one for key, one in space.items()}
    if prefix and "" in info.open_prefixes:  # the spaces of an import path's others are the others' own
        named = find_named_space(admeta.registry.get(info.others), space or "default").space
        return {f"{prefix}{key}": one for key, one in from_registry(named).items() if f"{prefix}{key}" not in held}
    chosen = from_registry(find_named_space(info, space or "default").space)
    return {key: one for key, one in chosen.items() if key.startswith(OTHERS) == bool(prefix) and key not in held}


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


def _show_resolved(schema: dict[str, Any]) -> None:
    """Add the input fields that are resolved before the model sees them."""
    description = "As the study's `recipe`, for this optimizer alone."
    schema["properties"] |= {"roles": ROLES_SCHEMA, "recipe": {"description": description, **RECIPE_SCHEMA}}


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
        update = {"label": self.label + BASELINE, "space": {}, "fixed": fixed, "first": []}
        found = self.model_copy(update=update)
        if errors := list(_conflicts(found, info)):
            raise ValidationError.from_exception_data("", errors)
        return found

    def number(self, name: str, params: Mapping[str, Any]) -> float | None:
        """The value of this parameter in a trial with these drawn parameters; None where it is no number."""
        known = admeta.registry.get(self.name).parameters
        default = known[name].default if name in known and name not in self.space else None
        value = {name: default, **self.fixed, **params}[name]
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def varies_on_log_scale(self, name: str) -> bool:
        """Whether sensitivity to this parameter is measured in factors rather than in differences."""
        parameter = self.space.get(name)
        if isinstance(parameter, CategoricalParameter):
            return all(choice > 0 for choice in _numbers(parameter))
        return parameter is None or parameter.log

    def values_around(self, params: Mapping[str, Any], asked: Sensitivity) -> list[float]:
        """Values of the parameter in question around that of a trial, which is one of them, in ascending order.

        None that the optimizer would refuse. Empty where the parameter is no number, or decides which others are drawn.
        """
        name, half = asked.parameter, asked.points // 2
        at = self.number(name, params)
        if at is None or any(name in (parameter.when or ()) for parameter in self.space.values()):
            return []
        parameter = self.space.get(name)
        values: Iterable[float]
        if isinstance(parameter, CategoricalParameter):
            choices = sorted(_numbers(parameter))
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
        if self._is_whole(name, at):
            values = map(round, filter(math.isfinite, values))
        return sorted({at, *(value for value in values if self._accepts(name, value, params))})

    def _is_whole(self, name: str, at: float) -> bool:
        """Whether the parameter has whole numbers alone; 1 may also be how a learning rate of 1.0 was written."""
        if name in self.space:
            return isinstance(self.space[name], IntParameter)
        known = admeta.registry.get(self.name).parameters.get(name)
        return isinstance(at, int) and (known is None or not known.domain.accepts(float(at)))

    def _accepts(self, name: str, value: float, params: Mapping[str, Any]) -> bool:
        if name.startswith(RECIPE):  # the definition's rules hold for what is searched
            return name in self.space and why_not(self.space[name], value) is None
        info, settings = admeta.registry.get(self.name), {**self.fixed, **params}
        try:
            info.check(name, value)
        except AdmetaError:
            return False
        rules = (rule for rule in info.requirements if rule.parameter == name)
        return all(rule.domain.accepts(value) for rule in rules if settings.get(rule.where) == rule.value)

    def n_values(self, asked: Sensitivity) -> int:
        """At most so many values of the parameter in question; 0 where this search has none to vary."""
        parameter = self.space.get(asked.parameter)
        if not self.space:
            return 0
        if isinstance(parameter, CategoricalParameter):
            n = len(_numbers(parameter))
            return min(n, asked.points) if n > 1 else 0
        if parameter is None and not (self.number(asked.parameter, {}) or 0) > 0:
            return 0
        return asked.points

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


def _numbers(parameter: CategoricalParameter) -> list[float]:
    """The choices, where all of them are numbers."""
    numbers = [one for one in parameter.choices if isinstance(one, int | float) and not isinstance(one, bool)]
    return numbers if len(numbers) == len(parameter.choices) else []


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check_parameter(info: OptimInfo, name: str, value: object) -> None:
    if name.startswith(RECIPE):
        return  # the study's validator checks it, which knows the task
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
