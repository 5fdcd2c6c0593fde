"""A study's form, made from the definition's own schema: its fields, and the definition that filled fields make.

Owns which fields a form has and how their text is read. What a value may be is checked by `search.definition`; what has
no place in a form (search spaces by hand, schedules, warm starts) is written in the YAML next to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from admeta.client.formatting import searched_in
from admeta.registry import known_optimizers
from admeta.spaces import split_recipe
from search.definition import StudyDefinition
from tasks.config import TaskConfig

Schema = Mapping[str, Any]
Filled = Mapping[str, Sequence[str]]
"""A sent form: the texts of each name, in order."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One input.

    Attributes:
        path: the place of its value in the definition: "budget.trials_per_optimizer".
        kind: "integer", "number", "text", "either" (a number or a word), "choice", "flag" (a choice of yes and no) or
            "list" (of integers).
        default: what the definition has without it.
        choices: of a choice, what may be chosen.
        low, high: bounds of a number; None: no bound.
    """

    path: str
    title: str
    kind: str
    default: Any
    note: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """The default as its input shows it."""
        return to_text(self.default)

    def read(self, text: str) -> Any:
        """The value of a text; a text that cannot be converted is returned as it is, and the definition refuses it."""
        match self.kind:
            case "integer" | "number" | "either":
                return number(text)
            case "flag":
                return text == "true"
            case "list":
                return [number(part) for part in text.replace(",", " ").split()]
        return text


@dataclass(frozen=True, kw_only=True)
class Section:
    """Fields under a heading; those of `more` are shown on demand."""

    title: str
    fields: list[Field]
    more: list[Field]


def to_text(value: Any) -> str:
    """A value as an input's text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@cache
def study_sections() -> list[Section]:
    """The fields of a study except its name, task, optimizers and metric."""
    schema = StudyDefinition.model_json_schema()
    found = {field.path: field for field in fields_of(schema, prefix="")}
    kinds = {"sampler": "How the next trial is proposed.", "pruner": "What stops poor trials early."}
    for name, note in kinds.items():
        union = schema["properties"][name]
        names = tuple(union["anyOf"][0]["discriminator"]["mapping"])  # or a name alone
        default = union["default"]["name"]
        found[f"{name}.name"] = Field(
            path=f"{name}.name", title=name.capitalize(), kind="choice", default=default, note=note, choices=names
        )
    main = {
        "Search": ["budget.trials_per_optimizer", "sampler.name", "pruner.name", "budget.target"],
        "Confirm": ["confirm.top_k", "confirm.seeds"],
        "Resources": ["resources.cpus", "resources.gpus", "max_concurrent_trials"],
    }
    more = {
        "Search": ("budget.", "training_seed"),
        "Resources": ("resources.", "max_failures", "priority", "checkpoint", "keep_"),
    }
    return [
        Section(
            title=title,
            fields=[found[path] for path in paths],
            more=[f for path, f in found.items() if path not in paths and path.startswith(more.get(title, "\0"))],
        )
        for title, paths in main.items()
    ]


def task_fields(config: type[TaskConfig], model: str | None = None) -> Section:
    """The fields of a task's configuration except its name and model, with the defaults that this model has."""
    own = {f"task.{name}": value for name, value in config.defaults_of(model).items()}
    found = [replace(field, default=own.get(field.path, field.default)) for field in _all_task_fields(config)]
    first = ("task.epochs", "task.batch_size", "task.steps_per_epoch")
    rest = [field for field in found if field.path not in (*first, "task.name", "task.model")]
    return Section(title="Task", fields=[field for field in found if field.path in first], more=rest)


@cache  # by task alone: a model may be any text that a form sends
def _all_task_fields(config: type[TaskConfig]) -> list[Field]:
    return list(fields_of(config.model_json_schema(), prefix="task."))


def default_model(config: type[TaskConfig]) -> str | None:
    """The model that a task trains where none is named."""
    model: str | None = config.model_json_schema()["properties"].get("model", {}).get("default")
    return model


def fields_of(schema: Schema, *, prefix: str) -> Iterator[Field]:
    """Fields for what a JSON schema says in single values, one level of objects deep."""
    definitions = schema.get("$defs", {})
    for name, part in schema.get("properties", {}).items():
        inner = definitions.get(str(part.get("$ref", "")).rpartition("/")[2])
        if inner is not None and not prefix:
            yield from fields_of({**inner, "$defs": definitions}, prefix=f"{name}.")
        elif inner is None and (field := _field(prefix + name, part)) is not None:
            yield field


def _field(path: str, part: Schema) -> Field | None:
    """None for a value that one input cannot express."""
    options = [option for option in part.get("anyOf", [part]) if option.get("type") != "null"]
    kinds = [_kind(option) for option in options]
    if None in kinds or "default" not in part:
        return None
    only = options[0] if len(options) == 1 else {}
    return Field(
        path=path,
        title=_title(path),
        kind=str(kinds[0]) if only else ("either" if "number" in kinds else "text"),
        default=part["default"],
        note=part.get("description", ""),
        choices=tuple(map(str, only.get("enum", ()))),
        low=only.get("minimum"),
        high=only.get("maximum"),
    )


def _kind(option: Schema) -> str | None:
    if "enum" in option:
        return "choice"
    if option.get("type") == "array":
        return "list" if option.get("items", {}).get("type") == "integer" else None
    return {"integer": "integer", "number": "number", "boolean": "flag", "string": "text"}.get(option.get("type", ""))


_WORDS = {"cpus": "CPUs", "gpus": "GPUs", "gpu": "GPU", "s": "(s)", "k": "k"}


def _title(path: str) -> str:
    words = [_WORDS.get(word, word) for word in path.rpartition(".")[2].split("_")]
    title = " ".join(words)
    return title[0].upper() + title[1:]


def fill(definition: Mapping[str, Any], sections: Sequence[Section]) -> Filled:
    """The form as it shows a definition, whose other parts go with it as `base`."""
    fields = [field for section in sections for field in (*section.fields, *section.more)]
    values = {field.path: to_text(_get(definition, field.path.split("."))) for field in fields}
    others = {path: to_text(_get(definition, path.split("."))) for path in ("name", "description", "task.name")}
    model, metric = _get(definition, ["task", "model"]), _get(definition, ["objective", "metric"])
    spaces = {one["name"]: one.get("space") for one in definition["optimizers"]}
    return {
        **{f"space.{name}": [space] for name, space in spaces.items() if isinstance(space, str)},
        **{name: [text] for name, text in {**values, **others}.items()},
        "task.model": [model] if model else [],
        "objective.metric": [metric or ""],
        "optimizer": list(dict.fromkeys(one["name"] for one in definition["optimizers"])),
        "base": [json.dumps(definition)],
    }


def merge(base: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The base with what the form says: what the form cannot show, such as search spaces, stays as it is."""
    same_task = base["task"]["name"] == made["task"]["name"]
    kept = {name: value for name, value in base.items() if name not in ("objective", "description")}
    merged: dict[str, Any] = {name: _merged(kept.get(name), value) for name, value in made.items()}
    if not same_task:
        merged["task"] = made["task"]
    chosen = {one["name"]: one for one in made["optimizers"]}
    offered = known_optimizers()
    optimizers = [
        _with_space(one, chosen[one["name"]]) if one["name"] in chosen else one
        for one in base["optimizers"]
        if one["name"] in chosen or one["name"] not in offered
    ]
    known = {one["name"] for one in optimizers}
    merged["optimizers"] = [*optimizers, *(one for name, one in chosen.items() if name not in known)]
    return {**kept, **merged}


def _with_space(old: dict[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer with the named space that is chosen; without one, its space written by hand stays.

    A named space has no recipe, so the one that was searched stays too.
    """
    if "space" not in chosen and not isinstance(old.get("space"), str):
        return old
    _, recipe = split_recipe(old["space"] if isinstance(old.get("space"), Mapping) else {})
    kept = {name: value for name, value in old.items() if name != "space"}
    return {**kept, **({"recipe": {**recipe, **(kept.get("recipe") or {})}} if recipe else {}), **chosen}


def own_spaces(filled: Filled) -> dict[str, str]:
    """By name, what the optimizers search whose spaces are written by hand in the form's base."""
    found: dict[str, list[str]] = {}
    for one in json.loads(_first(filled, "base") or '{"optimizers": []}')["optimizers"]:
        if isinstance(space := one.get("space"), Mapping):
            text = ", ".join(searched_in(name, parameter) for name, parameter in space.items())
            found.setdefault(one["name"], []).append(
                f"{one['label']}: {text}" if one.get("label", one["name"]) != one["name"] else text
            )
    return {name: "; ".join(texts) for name, texts in found.items()}


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict) or old.get("name") != new.get("name", old.get("name")):
        return new
    return {**old, **new}


def _get(definition: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        definition = definition.get(key) if isinstance(definition, Mapping) else None
    return definition


def compose(filled: Filled, sections: Sequence[Section]) -> dict[str, Any]:
    """The definition that a filled form makes; with a `base`, that with what the form says otherwise.

    Of what is shown on demand, and of a base's fields that it leaves out, only what is not at its default is written.

    Raises:
        ValueError: its `base` is not a definition that a page sent.
    """
    base = _first(filled, "base")
    if not base:
        return _compose(filled, sections, base=None)
    try:
        old = json.loads(base)
        return merge(old, _compose(filled, sections, base=old))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"base: {error!r}") from error


def _compose(filled: Filled, sections: Sequence[Section], *, base: Mapping[str, Any] | None) -> dict[str, Any]:
    task: dict[str, Any] = {"name": _first(filled, "task.name")}
    if model := _first(filled, "task.model"):
        task["model"] = model
    made: dict[str, Any] = {"name": _first(filled, "name"), "task": task}
    if description := _first(filled, "description"):
        made["description"] = description
    made["optimizers"] = [_optimizer(filled, name) for name in filled.get("optimizer", ())]
    if metric := _first(filled, "objective.metric"):
        made["objective"] = {"metric": metric}
    for section in sections:
        for field in (*section.fields, *section.more):
            keys, text = field.path.split("."), _first(filled, field.path)
            value = field.read(text) if text else field.default
            if base is None:
                is_shown = field in section.fields and (text != "" or field.path not in filled)
                is_written = is_shown or value != field.default
            else:
                is_written = field.path in filled and (value != field.default or _get(base, keys) is not None)
            if is_written:
                _put(made, keys, value)
    return made


def _optimizer(filled: Filled, name: str) -> dict[str, Any]:
    space = _first(filled, f"space.{name}")  # without one it is the task's own, which need not be `default`
    return {"name": name, "space": space} if space else {"name": name}


def _first(filled: Filled, name: str) -> str:
    return next(iter(filled.get(name, ())), "").strip()


def _put(made: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        made = made.setdefault(key, {})
    made[keys[-1]] = value


def number(text: str) -> int | float | str:
    """The number in a field; the text itself where it is none, which the request's check then names."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
