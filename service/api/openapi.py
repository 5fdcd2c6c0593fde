"""The OpenAPI description: the study definition's own schema as the body of `POST /v1/studies`, refusals, examples.

Bodies are read by `service.api.requests`, stricter than FastAPI would, so their schemas are added here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from admeta.client.models import ErrorView, EventView
from admeta.registry import construction
from search.definition import StudyDefinition
from search.named_spaces import PAPER_BEST
from service.api.invalid import DERIVED

_COMPONENT = "#/components/schemas/{model}"
STUDY: dict[str, Any] = {
    "name": "digits-first",
    "task": {"name": "digits", "model": "convnet", "epochs": 10},
    "optimizers": [
        {"name": "admetar", "space": {"lambd": {"type": "float", "low": 0.02, "high": 0.4, "log": True}}},
        {"name": "sgdm"},
    ],
    "budget": {"trials_per_optimizer": 8},
    "confirm": {"top_k": 1, "seeds": [0, 1, 2]},
}
CLONE: dict[str, Any] = {"name": "digits-second", "changes": {"budget": {"trials_per_optimizer": 40}}}
EXTEND: dict[str, Any] = {"trials": 40, "seeds": 5, "optimizers": ["adan"]}
TOKEN: dict[str, Any] = {"name": "ci", "scope": "write", "expires_in_s": 7_776_000}

PARAMETERS: dict[str, Any] = {
    "recipe": "3f1c0a9be2d4",
    "Idempotency-Key": "5b7a4d9e-2f63-4a56-9df5-6a8f2c6f0a11",
    "after": 0,
    "attempt": 1,
    "label": "admetar",
    "limit": 50,
    "margin": 0.002,
    "number": 3,
    "offset": 0,
    "objective": "train_s",
    "optimizer": "admetar",
    "paper_study": "cola-bert-base",
    "parameter": "lr",
    "run": 42,
    "space": "paper-best",
    "study": "digits-first",
    "table": "cifar",
    "tag": "baseline",
    "tail": 20,
    "task": "digits",
    "token_id": "0123456789ab",
    "trial": 3,
    "within": 0.01,
}
"""By name. The others, for example `cursor`, come from an answer of the service, or their schema says everything."""

_SETTINGS = {"lr": 0.021, "lambd": 0.08, "betas": [0.9, 0.999], "eps": 1e-9, "weight_decay": 0.0001}
_SEARCH = {
    "label": "admetar", "optimizer": "admetar", "optuna_study": "digits-first/admetar", "stage": "done", "n_trials": 8,
    "n_waiting": 0, "n_running": 0, "n_complete": 5, "n_pruned": 2, "n_failed": 1, "n_confirm_runs": 3,
    "n_confirm_finished": 3, "best_value": 0.976, "best_trial": 3, "best_params": {"lr": 0.021, "lambd": 0.08},
}  # fmt: skip
_RUN = {
    "id": 42, "stage": "search", "seed": 3, "state": "COMPLETE", "value": 0.976, "test_metrics": {}, "failure": None,
    "error": None, "epoch": 10, "step": 110, "train_s": 4.2, "gpu_s": 0.0, "created_at": "2026-01-01T12:00:00Z",
    "started_at": "2026-01-01T12:00:01Z", "finished_at": "2026-01-01T12:00:06Z", "attempts": [],
}  # fmt: skip

ANSWERS: dict[str, dict[str, Any]] = {
    "ErrorView": {
        "error": "study_not_found",
        "detail": "no study has the id or name 'digits-frist'",
        "hint": "GET /v1/studies lists the existing studies.",
    },
    "StudyView": {
        "id": "0123456789ab", "name": "digits-first", "task": "digits", "model": "convnet", "state": "COMPLETED",
        "reason": None, "metric": "val_accuracy", "direction": "maximize", "priority": 0,
        "created_at": "2026-01-01T12:00:00Z", "started_at": "2026-01-01T12:00:01Z",
        "finished_at": "2026-01-01T12:03:00Z", "searches": [_SEARCH],
    },
    "TrialView": {
        "number": 3, "label": "admetar", "optimizer": "admetar", "state": "COMPLETE", "value": 0.976,
        "params": {"lr": 0.021, "lambd": 0.08}, "settings": _SETTINGS, "runs": [_RUN],
    },
    "StudyRunView": {
        **_RUN, "study": "digits-first", "label": "admetar", "optimizer": "admetar", "trial": 3, "settings": _SETTINGS,
        "logs": [1],
    },
    "BestView": {
        "task": "digits", "model": "convnet", "optimizer": "admetar", "metric": "val_accuracy",
        "direction": "maximize", "settings": _SETTINGS, "search_value": 0.976,
        "validation": {"mean": 0.974, "std": 0.002, "n": 3, "n_failed": 0},
        "test": {"mean": 0.968, "std": 0.003, "n": 3, "n_failed": 0}, "test_metric": "test_accuracy",
        "study": "digits-first", "label": "admetar", "trial": 3, "evidence": "confirmed", "init_from": None,
        "code": construction("admetar", _SETTINGS),
    },
}  # fmt: skip

_REFUSALS = {
    400: "The body is not a JSON object, or the Idempotency-Key is invalid.",
    409: "Another study has this name.",
    413: "The body is over the service's limit; by default 1 MiB.",
    415: "The body is not sent as application/json.",
    422: "A field breaks its rule; `fields` names field, value and rule.",
    429: "As many studies are queued as the service takes.",
}
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


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The description of the refusals that a route with a body has."""
    return {status: {"model": ErrorView, "description": _REFUSALS[status]} for status in statuses}


def json_body(model: type[BaseModel], *, example: dict[str, Any]) -> dict[str, Any]:
    """The description of a body that `service.api.requests.read_json` reads and the model checks."""
    content = {"application/json": {"schema": model.model_json_schema(), "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI, *, open_paths: Collection[str]) -> Callable[[], dict[str, Any]]:
    """A replacement for `app.openapi` that knows the study definition.

    Args:
        open_paths: need no access token.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                servers=app.servers or None,
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(_definition_schemas())
            schemas["EventView"] = EventView.model_json_schema()  # not an answer by itself: an event of a stream
            for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own error shape, which is not ours
                schemas.pop(name, None)
            _replace_validation_errors(schema["paths"])
            _describe_access(schema, open_paths)
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
    """Add an example to every parameter and answer; an operation's own examples stay."""
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                name = parameter["name"]
                example = ("admetar" if "optimizers" in path else "digits") if name == "name" else PARAMETERS.get(name)
                if example is not None:
                    parameter.setdefault("example", example)
    for name, example in ANSWERS.items():
        schema["components"]["schemas"][name]["example"] = example


def _describe_access(schema: dict[str, Any], open_paths: Collection[str]) -> None:
    """Add access tokens, and the refusals that every route has."""
    bearer = {"type": "http", "scheme": "bearer", "description": "An access token, adm_…; not on an open service."}
    schema["components"]["securitySchemes"] = {"token": bearer}
    error = {"application/json": {"schema": {"$ref": _COMPONENT.format(model="ErrorView")}}}
    refusals = {
        "401": "No access token, or an invalid one.",
        "403": "The access token's scope is too small, or the request comes from another site's page.",
        "421": "The Host header is not a name of this machine, on a service without access tokens.",
        "429": "Too many wrong access tokens, or too much is queued; Retry-After says when to come back.",
    }
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            if path not in open_paths:
                operation["security"] = [{}, {"token": []}]
            for status, text in refusals.items():
                operation["responses"].setdefault(status, {"description": text, "content": error})
