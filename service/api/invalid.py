"""pydantic's errors as a list that a person can act on: field, value, rule.

pydantic's locations contain union members and validators besides the keys that a user wrote; here a field is the path
through the user's own document.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

import tasks.registry
from admeta.client.models import FieldError
from search.definition import StudyDefinition
from search.optimizer_search import NAME_PATTERN
from tasks.errors import TaskError

DERIVED = frozenset({"label", "space", "fixed", "objective"})
"""Fields of a definition that a user may leave out, because they follow from the others."""

MAX_TEXT = 120
MAX_RULE = 1000
MAX_FIELDS = 20
_MAX_EXPLAINED = 5 * MAX_FIELDS
"""Errors that are explained; the others are cut before, since a body can have thousands."""
_NAME_RULE = "must be 1 to 100 letters, digits, '-', '_' or '.', starting with a letter or digit"
_WORDING = (
    ("Input should ", "must "),
    ("String should match pattern", "must match the pattern"),
    ("should have ", "must have "),
    (" after validation", ""),
    ("a valid dictionary or object to extract fields from", "an object"),
    ("a valid dictionary", "an object"),
    ("a valid list", "a list"),
    ("a valid string", "text"),
)
Location = tuple[int | str, ...]


def definition_fields(error: ValidationError, raw: Mapping[str, Any]) -> list[FieldError]:
    """What is wrong with a study definition: its first MAX_FIELDS errors.

    Args:
        error: pydantic's error.
        raw: the definition as it was sent.
    """
    found = (
        _field_error(one, raw)
        for one in error.errors(include_url=False)[:_MAX_EXPLAINED]
        if one["type"] != "missing" or one["loc"][-1] not in DERIVED
    )
    unique: dict[tuple[str, str], FieldError] = {}
    for field in found:  # each member of a union has an error of its own
        kind = "must be " if field.rule.startswith("must be ") else field.rule
        known = unique.setdefault((field.field, kind), field)
        unique[field.field, kind] = known.model_copy(update={"rule": _either(known.rule, field.rule)})
    return list(unique.values())[:MAX_FIELDS]


def body_fields(error: ValidationError, raw: Mapping[str, Any], *, known: Sequence[str]) -> list[FieldError]:
    """What is wrong with a body that is no study; `known` are its fields. Members of a union are one error."""
    found: dict[str, FieldError] = {}
    for one in error.errors(include_url=False)[:MAX_FIELDS]:
        path, value = _user_path(one, raw)
        rule = readable(one)
        if one["type"] == "extra_forbidden":
            rule = f"unknown field; {_nearest(str(path[-1]), known)}"
        field = _dotted(path)
        if field in found:
            rule = _either(found[field].rule, rule)
        found[field] = FieldError(field=field, value=short_value(value), rule=shorten(rule, limit=MAX_RULE))
    return list(found.values())


def _either(rule: str, other: str) -> str:
    """The rules of two members of a union as one: "must be a valid number or 'auto'"."""
    more = other.removeprefix("must be ")
    return rule if other == rule or rule.endswith(f" or {more}") else f"{rule} or {more}"


def query_fields(errors: Sequence[Any], *, known: Sequence[str]) -> list[FieldError]:
    """What is wrong with the query parameters (or path) of a request; `known` are the names it takes."""
    fields = []
    for error in errors[:MAX_FIELDS]:
        place = [str(part) for part in error["loc"]]
        name = ".".join(place[1:] if place[:1] in (["query"], ["path"], ["header"]) else place) or "(query)"
        unknown = error["type"] == "extra_forbidden"
        rule = f"unknown parameter; {_nearest(name, known)}" if unknown else readable(error)
        value = None if error["type"] == "missing" else error.get("input")  # the input of a missing one is all others
        fields.append(FieldError(field=shorten(name), value=short_value(value), rule=rule))
    return fields


def readable(error: Any) -> str:
    """pydantic's message as a rule: "must be greater than 0"."""
    if error["type"] == "missing":
        return "is required"
    if error["type"] == "string_pattern_mismatch" and error.get("ctx", {}).get("pattern") == NAME_PATTERN:
        return _NAME_RULE
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = re.sub(r"a valid dictionary or instance of \w+", "an object", message)
    for theirs, ours in _WORDING:
        message = message.replace(theirs, ours)
    return shorten(message, limit=MAX_RULE)


def shorten(text: str, *, limit: int = MAX_TEXT) -> str:
    """The text, cut where it is longer than `limit` characters; safe to write as UTF-8."""
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def short_value(value: Any) -> Any:
    """The value for an answer: small values as they are, large ones as shortened text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return shorten(value)
    if isinstance(value, int | float):
        return value if abs(value) < 2**63 and math.isfinite(value) else shorten(str(value))
    encoder = json.JSONEncoder(ensure_ascii=False, default=str)
    text = "".join(islice(encoder.iterencode(value), MAX_TEXT + 1))  # only the beginning of a large value is encoded
    return value if len(text) <= MAX_TEXT and isinstance(value, dict | list) else shorten(text)


def _field_error(error: ErrorDetails, raw: Mapping[str, Any]) -> FieldError:
    location = error["loc"]
    path, value = _user_path(error, raw)
    if error["type"] == "missing":
        known = _known_fields(location[:-1], raw)
        rule = f"is required; the fields here: {', '.join(known)}" if known else "is required"
        return FieldError(field=_dotted(path), value=None, rule=rule)
    if error["type"] == "extra_forbidden":
        known = _known_fields(location[:-1], raw)
        rule = f"unknown field; {_nearest(str(path[-1]), known)}"
        return FieldError(field=_dotted(path), value=short_value(value), rule=rule)
    if error["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return _tag_error(error, path, value)
    return FieldError(field=_dotted(path), value=short_value(value), rule=readable(error))


def _tag_error(error: ErrorDetails, path: Location, value: Any) -> FieldError:
    context = error.get("ctx", {})
    key = str(context.get("discriminator", "type")).strip("'")
    known = [tag.strip(" '") for tag in str(context.get("expected_tags", "float, int, categorical")).split(",")]
    tag = value.get(key) if isinstance(value, Mapping) else None
    rule = f"is required: one of {', '.join(known)}" if tag is None else f"unknown {key}; {_nearest(str(tag), known)}"
    return FieldError(field=_dotted((*path, key)), value=short_value(tag), rule=rule)


def _user_path(error: ErrorDetails, raw: Any) -> tuple[Location, Any]:
    """The error's location without the parts that pydantic adds, and the user's value there."""
    path: list[int | str] = []
    value = raw
    for part in error["loc"]:
        in_object = isinstance(value, Mapping) and part in value
        if in_object or (isinstance(value, list) and isinstance(part, int) and part < len(value)):
            value = value[part]
            path.append(part)
    ours = "message" in error.get("ctx", {})  # placed by `search.definition` on a field that may be absent
    if ours and isinstance(value, str) and error["loc"][-1] == "metric" and path[-1:] != ["metric"]:
        return (*path, "metric"), value  # the metric alone stands for the object
    if (ours or error["type"] == "missing") and error["loc"] and error["loc"][-1:] != tuple(path[-1:]):
        return (*path, error["loc"][-1]), None
    return tuple(path), value


@cache
def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON schema, made once: it takes 10 ms and never changes. Not to be modified."""
    return model.model_json_schema()


def _known_fields(location: Location, raw: Mapping[str, Any]) -> list[str]:
    """Names of the fields at a place of the definition's schema, or of the task's."""
    if location[:1] == ("task",):
        task = raw.get("task")
        try:
            config = tasks.registry.get(str(task.get("name")) if isinstance(task, dict) else "").config
        except TaskError:
            return ["name"]
        schema, location = json_schema(config), location[1:]
    else:
        schema = json_schema(StudyDefinition)
    definitions = schema.get("$defs", {})
    if "recipe" in location:  # its parameters are those of a space
        location = ("optimizers", 0, "space", *location[location.index("recipe") + 1 :])
    here: Mapping[str, Any] = schema
    for part in location:
        here = _step(here, part, definitions)
    return sorted(here.get("properties", {}))


def _step(schema: Mapping[str, Any], part: int | str, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """One step down a JSON schema; union tags choose the member."""
    mapping = schema.get("discriminator", {}).get("mapping", {})
    if part in mapping:
        return _resolve({"$ref": mapping[part]}, definitions)
    child = schema.get("properties", {}).get(part)
    if child is None:
        child = schema.get("items") if isinstance(part, int) else schema.get("additionalProperties")
    if not isinstance(child, Mapping):
        return schema if isinstance(part, str) else {}
    return _resolve(child, definitions)


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    objects = [one for one in schema.get("anyOf", ()) if one.get("type") not in ("string", "null")]
    schema = objects[0] if objects else schema  # a name, or nothing, may stand in place of the object
    reference = schema.get("$ref")
    return definitions.get(reference.rsplit("/", 1)[-1], {}) if isinstance(reference, str) else schema


def _dotted(path: Location) -> str:
    return shorten(".".join(map(str, path)) or "(study)", limit=200)


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    listed = f"known: {', '.join(known)}" if known else "there are none here"
    return f"did you mean '{near[0]}'? {listed}" if near else listed
