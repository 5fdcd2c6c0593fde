"""The OpenAPI description: the study definition's own schema as the body of `POST /v1/studies`.

The body is read by `service.api.body`, stricter than FastAPI would, so its schema is put in here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from search.definition import StudyDefinition
from service.api.invalid import DERIVED

_COMPONENT = "#/components/schemas/{model}"
EXAMPLE: dict[str, Any] = {
    "name": "digits-first",
    "task": {"name": "digits", "model": "convnet", "epochs": 10},
    "optimizers": [
        {"name": "admetar", "space": {"lambd": {"type": "float", "low": 0.02, "high": 0.4, "log": True}}},
        {"name": "sgdm"},
    ],
    "budget": {"trials_per_optimizer": 8},
    "confirm": {"top_k": 1, "seeds": [0, 1, 2]},
}
STUDY_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": _COMPONENT.format(model="StudyDefinition")},
                "example": EXAMPLE,
            }
        },
    }
}


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """A replacement for `app.openapi` that knows the study definition."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(_definition_schemas())
            for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own error shape, which is not ours
                schemas.pop(name, None)
            _replace_validation_errors(schema["paths"])
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _definition_schemas() -> dict[str, Any]:
    schema = StudyDefinition.model_json_schema(ref_template=_COMPONENT)
    schemas: dict[str, Any] = {**schema.pop("$defs"), "StudyDefinition": schema}
    for name in ("StudyDefinition", "OptimizerSearch"):
        schemas[name]["required"] = [field for field in schemas[name]["required"] if field not in DERIVED]
    space = schemas["OptimizerSearch"]["properties"]
    space["space"] = {"anyOf": [space["space"], {"type": "string"}], "description": space["space"].pop("description")}
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
