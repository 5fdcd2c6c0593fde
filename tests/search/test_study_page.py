"""docs/study.md is written from the definition's model, so that it names every field with its rule and default.

Write it again after a change of the model:

    python -m tests.search.test_study_page
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from admeta.client.text import markdown
from search import definition, objectives, optimizer_search, pruners, samplers, scale, sections, sensitivity, space
from tasks.config import Schedule, TaskConfig, TrialRef
from tasks.registry import TASKS
from tasks.text.config import Lora

PAGE = Path(__file__).resolve().parents[2] / "docs" / "study.md"
BEGIN = "<!-- written from the model from here: python -m tests.search.test_study_page -->"
PARTS: tuple[tuple[str, tuple[type[BaseModel], ...]], ...] = (
    ("The study", (definition.StudyDefinition,)),
    ("`optimizers`", (optimizer_search.OptimizerSearch,)),
    ("A parameter of `space`", (space.FloatParameter, space.IntParameter, space.CategoricalParameter)),
    ("`objective`, and each of `objectives`", (objectives.Objective,)),
    ("`budget`", (sections.Budget,)),
    ("`confirm` and `contrasts`", (sections.Confirm, sections.Contrasts)),
    ("`scale`", (scale.Scale,)),
    ("`sensitivity`", (sensitivity.Sensitivity,)),
    ("`resources`", (sections.Resources,)),
    ("`warm_start`", (sections.WarmStart,)),
    (
        "`sampler`",
        (
            samplers.TpeSampler,
            samplers.GpSampler,
            samplers.CmaEsSampler,
            samplers.QmcSampler,
            samplers.RandomSampler,
            samplers.GridSampler,
        ),
    ),
    ("`pruner`", (pruners.AshaPruner, pruners.HyperbandPruner, pruners.MedianPruner, pruners.NoPruner)),
    ("`task`, for every task", (TaskConfig, Schedule, TrialRef)),
    ("`task.lora`, for tasks on text", (Lora,)),
)
TITLES = {Schedule: "`schedule`, which may also be its name alone:", TrialRef: "`init_from`, unless it is a path:"}
RULES = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}


def tables() -> str:
    """The sections below BEGIN: a table for each part of a definition."""
    lines = [BEGIN, ""]
    for title, models in PARTS:
        lines += [f"## {title}", ""]
        for model in models:
            if len(models) > 1:
                lines += [TITLES.get(model) or _introduce(model), ""]
            if rows := list(_rows(model)):
                lines += [markdown(["field", "value", "default", "meaning"], rows)]
    return "\n".join([*lines, "## `task`, the fields of some", "", _own_fields()])


def _introduce(model: type[BaseModel]) -> str:
    name = model.model_fields.get("name") or model.model_fields.get("type")
    kind = name and getattr(name.annotation, "__args__", None)
    summary = " ".join((model.__doc__ or "").partition("\n\n")[0].split())
    return f"`{kind[0]}`: {summary}" if kind and len(kind) == 1 else summary


def _rows(model: type[BaseModel]) -> Iterator[list[str]]:
    for name, schema in model.model_json_schema()["properties"].items():
        if "const" not in schema and not schema.get("deprecated"):
            named = {field.alias or key: field for key, field in model.model_fields.items()}
            field = named.get(name)  # None: a field that is resolved before the model sees it
            default, meaning = ("", schema["description"]) if field is None else (_default(field), _meaning(field))
            yield [f"`{name}`", _value(schema), default, meaning]


def _value(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(filter(None, map(_value, options))))
    if "$ref" in schema:
        known = {"Direction": "`minimize` or `maximize`", "JsonValue": "any value"}
        return known.get(schema["$ref"].rpartition("/")[2], "an object")
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "")
    if kind in ("integer", "number"):
        rules = [RULES[rule].format(_short(schema[rule])) for rule in RULES if rule in schema]
        return " ".join([kind, ", ".join(rules)]).strip()
    if kind == "array":
        return f"a list of {_value(schema['items'])}" if schema.get("items") else "a list"
    return {"string": "text", "boolean": "true or false", "object": "an object", "null": "null"}.get(kind, "any")


def _short(number: float) -> str:
    for exponent in (32, 53):
        if abs(number) in (2**exponent, 2**exponent - 1):
            return f"{'-' * (number < 0)}2^{exponent}{' - 1' * (abs(number) < 2**exponent)}"
    return f"{int(number):,}" if number == int(number) else str(number)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.default
    if isinstance(value, BaseModel):
        return f"`{value.name}`" if hasattr(value, "name") else "see below"
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)}`"


def _meaning(field: FieldInfo) -> str:
    text = field.description or next((d for one in field.metadata if (d := getattr(one, "description", None))), "")
    return str(text)


def _own_fields() -> str:
    """Fields that only some tasks have, with the defaults of each."""
    found: dict[tuple[str, str, str], list[str]] = {}
    values = {}
    for task, info in TASKS.items():
        for name, field in info.config.model_fields.items():
            if name not in TaskConfig.model_fields:
                key = (name, _default(field), _meaning(field))
                found.setdefault(key, []).append(task)
                values[key] = _value(info.config.model_json_schema()["properties"][name])
    rows = [[f"`{key[0]}`", ", ".join(tasks), values[key], *key[1:]] for key, tasks in sorted(found.items())]
    return markdown(["field", "tasks", "value", "default", "meaning"], rows)


def test_the_page_is_written_from_the_model() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) :] == tables(), "write it again: python -m tests.search.test_study_page"


def test_every_field_of_a_definition_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    schema = definition.StudyDefinition.model_json_schema()
    parts = [schema, *schema["$defs"].values(), *(info.config.model_json_schema() for info in TASKS.values())]
    for part in parts:
        for name, field in part.get("properties", {}).items():
            assert field.get("deprecated") or f"`{name}`" in text or name in ("type", "name"), name


def test_the_example_is_valid_and_names_every_field_of_a_study() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    raw = yaml.safe_load(example)
    definition.StudyDefinition.model_validate(raw)
    assert set(raw) == set(definition.StudyDefinition.model_json_schema()["properties"])


if __name__ == "__main__":
    kept = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(kept[: kept.index(BEGIN)] + tables(), encoding="utf-8")
