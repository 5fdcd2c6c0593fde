"""What a raw search is replaced by before it is checked: its named space, its `roles`, and a `when` inside its space.

`paper-best` makes a search begin with the paper's best settings of its task, model and optimizer. `roles` say which
optimizer moves the hidden matrices and which the other parameters: what is stored has one name, `a+b`, one space and
one set of constants, in which the settings of the others' optimizer begin with `others.`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

import admeta.registry
from admeta.errors import AdmetaError
from admeta.info import OTHERS, OptimInfo
from admeta.spaces import ParamSpace, split_recipe
from search.errors import SearchError, field_error, nearest_hint
from search.paper.setups import PaperSettings, all_settings, best_settings, model_id, paper_models
from search.space import CategoricalParameter, IntParameter, Parameter, Space, fit, from_registry
from tasks.registry import TaskInfo

PAPER_BEST = "paper-best"


@dataclass(frozen=True)
class NamedSpace:
    """A search space of the registry and its constant parameters."""

    space: Mapping[str, ParamSpace]
    fixed: Mapping[str, object]


def named_spaces(info: OptimInfo) -> dict[str, NamedSpace]:
    """The named spaces of this optimizer: default, finetune and the paper's grids."""
    named = {
        "default": NamedSpace(info.default_space, info.fixed),
        "finetune": NamedSpace(info.finetune_space, info.finetune_fixed),
    }
    for name, space in info.paper_spaces.items():
        named[name] = NamedSpace(space, info.finetune_fixed if name.endswith("finetune") else info.fixed)
    return named


def find_named_space(info: OptimInfo, name: str) -> NamedSpace:
    """The space of this name; PydanticCustomError where the optimizer has none."""
    if "" in info.open_prefixes:
        message = (
            f"optimizer '{info.name}' is named by its import path and has no spaces of its own; state one, for example "
            "space: {lr: {type: float, low: 1.0e-4, high: 1.0e-2, log: true}}"
        )
        raise field_error("unknown_space", message, at="space", value=name)
    known = named_spaces(info)
    if name not in known:
        hint = nearest_hint(name, (*known, PAPER_BEST))
        raise field_error(
            "unknown_space", f"optimizer '{info.name}' has no space named '{name}'; {hint}", at="space", value=name
        )
    return known[name]


def resolve_spaces(info: OptimInfo, raw: dict[str, Any]) -> dict[str, Any]:
    """The raw search with `label`, `space` and `fixed` filled in from the registry."""
    space, fixed = raw.get("space", "default"), raw.get("fixed", {})
    defaults = dict(info.fixed)
    if space is None:
        space = "default"
    if isinstance(space, str):
        chosen = find_named_space(info, space)
        defaults = dict(chosen.fixed)
        space = {k: v for k, v in from_registry(chosen.space).items() if not isinstance(fixed, dict) or k not in fixed}
    if isinstance(fixed, dict) and isinstance(space, dict):
        fixed = {k: v for k, v in defaults.items() if k not in space and k not in fixed} | fixed
    return {**raw, "label": raw.get("label", default_label(info.name)), "space": space, "fixed": fixed}


def with_space(raw: dict[str, Any], space: str | Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
    """The raw study, with this space for every optimizer that has none.

    With `paper-best`, an optimizer that has a space starts with the paper's best settings, unless it has a `first`.

    Args:
        raw: the study.
        space: the space's name, or what gives the name for a raw optimizer.
    """
    given = raw.get("optimizers")
    if not isinstance(given, list):
        return raw

    def named(search: Mapping[str, Any]) -> str:
        return space if isinstance(space, str) else space(search)

    return {**raw, "optimizers": [_with_space(one, named(one)) if isinstance(one, dict) else one for one in given]}


def _with_space(search: dict[str, Any], space: str) -> dict[str, Any]:
    if search.get("space") is None:
        return {**search, "space": space}
    if space == PAPER_BEST and not search.get("first"):
        return {**search, "first": PAPER_BEST}
    return search


def default_label(name: str) -> str:
    """The label of an optimizer that has none: its name, of an import path the class, joined by "-"."""
    return "-".join(part.rpartition(":")[2] for part in name.split("+"))


def begin_at_papers_best(raw: dict[str, Any], info: TaskInfo | None, *, model: str | None) -> dict[str, Any]:
    """The raw study with `paper-best` replaced by the settings for this task and model.

    Args:
        info, model: None if the task is not valid; the validator of `task` reports it.

    Raises:
        ValidationError: the paper has no such settings, or they are outside a space; one error for each search.
    """
    given = raw.get("optimizers")
    asked = [i for i, one in enumerate(given) if _asks_for_best(one)] if isinstance(given, list) else []
    if not asked:
        return raw
    searches, faults = list(raw["optimizers"]), []
    for i in asked:
        try:
            searches[i] = _at_best(searches[i], info, model)
        except SearchError as error:
            kind = PydanticCustomError("paper_best", "{message}", {"message": str(error)})
            at = "space" if searches[i].get("space") == PAPER_BEST else "first"
            faults.append(InitErrorDetails(type=kind, loc=("optimizers", i, at), input=PAPER_BEST))
    if faults:
        raise ValidationError.from_exception_data("", faults)
    return {**raw, "optimizers": searches}


def _asks_for_best(search: Any) -> bool:
    return isinstance(search, dict) and PAPER_BEST in (search.get("space"), search.get("first"))


def _at_best(raw: dict[str, Any], info: TaskInfo | None, model: str | None) -> dict[str, Any]:
    rest = {key: value for key, value in raw.items() if key not in ("space", "first") or value != PAPER_BEST}
    try:
        optimizer = admeta.registry.get(str(raw.get("name")))
    except AdmetaError:  # the validator of `name` reports it
        return rest
    if info is None or model is None:
        return rest
    best = known_best(task=info.name, model=model, optimizer=optimizer.name)
    fixed = rest.get("fixed", {})
    if raw.get("space") in (None, PAPER_BEST) and isinstance(fixed, dict):
        space = space_around(best, from_registry(named_spaces(optimizer)[info.space].space))
        held = {name: value for name, value in best.fixed.items() if name not in fixed}
        rest |= {"space": {k: v for k, v in space.items() if k not in fixed}, "fixed": {**held, **fixed}}
    try:
        resolved = resolve_spaces(optimizer, rest)
        searched, _ = split_recipe(TypeAdapter(Space).validate_python(resolved["space"]))
    except ValidationError:  # the validator of `space` reports it
        return rest
    fixed = resolved["fixed"]
    if not isinstance(fixed, dict) or not searched.keys() <= optimizer.parameters.keys():  # as above
        return rest
    return {**resolved, "first": [first_trial(best, info=optimizer, space=searched, fixed=fixed)]}


def known_best(*, task: str, model: str, optimizer: str) -> PaperSettings:
    """The paper's best settings.

    Raises:
        SearchError: it has none; the message lists the nearest ones that it has.
    """
    found = best_settings(task=task, model=model, optimizer=optimizer)
    if found is not None:
        return found
    rows = [row for row in all_settings() if row.task == task]
    what = f"the paper has no settings of {optimizer} on {task} with {model}"
    if not rows:
        raise SearchError(f"{what}; its tasks are {', '.join(dict.fromkeys(row.task for row in all_settings()))}")
    same_model = [row.optimizer for row in rows if row.model == model_id(model)]
    if same_model:
        raise SearchError(f"{what}; it has settings of {', '.join(same_model)}")
    models = dict.fromkeys(name for row in rows for name in paper_models()[row.model].ours)
    raise SearchError(f"{what}; its models on {task} are {', '.join(models)}")


def space_around(best: PaperSettings, base: Space) -> Space:
    """The parameters that the paper searched, with the ranges of `base`, extended to include the paper's values."""
    return {name: _reaching(base.get(name), value) for name, value in best.params.items()}


def first_trial(best: PaperSettings, *, info: OptimInfo, space: Space, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `space` that give the paper's best settings; a parameter that these do not set has its default.

    Raises:
        SearchError: the space or the fixed parameters exclude them.
    """
    defaults = {name: _plain(parameter.default) for name, parameter in info.parameters.items()}
    wanted = {**{name: defaults[name] for name in space}, **best.arguments}
    first = {name: value for name, value in wanted.items() if name in space}
    for name, value in wanted.items():
        if name in space:
            if name not in fit(first, space):
                raise SearchError(_misses(best, name, value, "which is outside this space"))
        elif (held := _plain(fixed.get(name, defaults[name]))) != value:
            raise SearchError(_misses(best, name, value, f"but 'fixed' or the default sets {held!r}"))
    return first


def _misses(best: PaperSettings, name: str, value: Any, what: str) -> str:
    return (
        f"the paper's best settings of {best.optimizer} on {best.task} with {best.model} have {name} = {value!r}, "
        f"{what}. Leave 'space' and 'fixed' out for the paper's own, or change them"
    )


def _reaching(parameter: Parameter | None, value: float) -> Parameter:
    match parameter:
        case None:
            return CategoricalParameter(type="categorical", choices=[value])
        case CategoricalParameter():
            if value in parameter.choices:
                return parameter
            return parameter.model_copy(update={"choices": [*parameter.choices, value]})
        case IntParameter():
            return parameter.model_copy(
                update={"low": min(parameter.low, int(value)), "high": max(parameter.high, int(value))}
            )
        case _:
            return parameter.model_copy(update={"low": min(parameter.low, value), "high": max(parameter.high, value)})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


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


def as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def lift_conditions(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The raw search with its conditions as a list, those that stand inside `space` too."""
    space, when = raw.get("space"), as_list(raw.get("when", []))
    if isinstance(space, dict) and isinstance(space.get("when"), str | list) and isinstance(when, list):
        when = [*as_list(space["when"]), *when]
        return {**raw, "space": {name: one for name, one in space.items() if name != "when"}, "when": when}
    return {**raw, "when": when} if when else dict(raw)
