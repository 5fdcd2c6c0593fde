"""The OpenAPI description: the study definition's own schema as the body of `POST /v1/studies`.

The body is read by `service.api.body`, stricter than FastAPI would, so its schema is put in here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from search.definition import StudyDefinition
from search.named_spaces import PAPER_BEST
from service.api.access import OPEN_PATHS
from service.api.examples import ANSWERS, PARAMETERS, STUDY
from service.api.invalid import DERIVED
from service.models import EventView

_COMPONENT = "#/components/schemas/{model}"
STUDY_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": _COMPONENT.format(model="StudyDefinition")},
                "example": STUDY,
            }
        },
    }
}


def json_body(model: type[BaseModel], *, example: dict[str, Any]) -> dict[str, Any]:
    """The description of a body that `read_json` reads and the model checks."""
    content = {"application/json": {"schema": model.model_json_schema(), "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """A replacement for `app.openapi` that knows the study definition."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(_definition_schemas())
            schemas["EventView"] = EventView.model_json_schema()  # no answer by itself: a line of a stream
            for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own error shape, which is not ours
                schemas.pop(name, None)
            _replace_validation_errors(schema["paths"])
            _describe_access(schema)
            _give_examples(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _definition_schemas() -> dict[str, Any]:
    schema = StudyDefinition.model_json_schema(ref_template=_COMPONENT)
    schemas: dict[str, Any] = {**schema.pop("$defs"), "StudyDefinition": schema}
    for name in ("StudyDefinition", "OptimizerSearch"):
        schemas[name]["required"] = [field for field in schemas[name]["required"] if field not in DERIVED]
    schemas["Objective"].pop("required", None)  # either follows from the other, or from the task
    study, search = schemas["StudyDefinition"]["properties"], schemas["OptimizerSearch"]["properties"]
    study["objective"] = {"anyOf": [study["objective"], {"type": "null"}], "description": "Default: the task's own."}
    described = search["space"].pop("description")
    search["space"] = {"anyOf": [search["space"], {"type": "string"}, {"type": "null"}], "description": described}
    first = search["first"].pop("description")
    search["first"] = {"anyOf": [search["first"], {"const": PAPER_BEST}], "default": [], "description": first}
    return schemas


def _replace_validation_errors(paths: dict[str, Any]) -> None:
    error = {"application/json": {"schema": {"$ref": _COMPONENT.format(model="ErrorView")}}}
    for operations in paths.values():
        for operation in operations.values():
            responses = operation["responses"]
            if "422" in responses:
                responses["422"] = {**responses["422"], "content": error}
            responses["503"] = responses.get("503") or {
                "description": "The database does not answer; repeat later.",
                "content": error,
            }


def _give_examples(schema: dict[str, Any]) -> None:
    """An example for every parameter and every answer that stands by itself; an operation's own goes before."""
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                name = parameter["name"]
                example = ("admetar" if "optimizers" in path else "digits") if name == "name" else PARAMETERS.get(name)
                if example is not None:
                    parameter.setdefault("example", example)
    for name, example in ANSWERS.items():
        schema["components"]["schemas"][name]["example"] = example


def _describe_access(schema: dict[str, Any]) -> None:
    """Access tokens, and the refusals that stand before every route."""
    bearer = {"type": "http", "scheme": "bearer", "description": "An access token, adm_…; not on an open service."}
    schema["components"]["securitySchemes"] = {"token": bearer}
    error = {"application/json": {"schema": {"$ref": _COMPONENT.format(model="ErrorView")}}}
    refusals = {
        "401": "No access token, or one that does not work.",
        "403": "The access token's scope is too small, or the request comes from a foreign page.",
        "421": "An open service is asked for under a name that is not this machine's.",
        "429": "Too many wrong access tokens, or too much is queued; Retry-After says when to come back.",
    }
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            if path not in OPEN_PATHS:
                operation["security"] = [{}, {"token": []}]
            for status, text in refusals.items():
                operation["responses"].setdefault(status, {"description": text, "content": error})
