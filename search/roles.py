"""`roles` of an optimizer in a raw study: which optimizer moves the hidden matrices and which the other parameters.

It is a way of writing. What is stored has one name, `a+b`, one space and one set of constants, in which the settings of
the others' optimizer begin with `others.`; so every other part of a search knows parameters alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import admeta.registry
from admeta.errors import AdmetaError
from admeta.info import OTHERS, OptimInfo
from search.errors import field_error
from search.named_spaces import find_named_space
from search.space import from_registry

_FIELDS = {"matrices": ("space", "fixed"), "others": ("name", "space", "fixed")}

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
            if key != "name" and not isinstance(value, dict | str):
                raise field_error("roles", "must be an object", at=("roles", role, key), value=value)
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
    chosen = from_registry(find_named_space(info, space or "default").space)
    return {key: one for key, one in chosen.items() if key.startswith(OTHERS) == bool(prefix) and key not in held}
