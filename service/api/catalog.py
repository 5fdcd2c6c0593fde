"""The tasks and the optimizers that a study can name, from their registries."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

import admeta.errors
import admeta.registry
import tasks.registry
from admeta.client.models import ErrorView, OptimizerParameterView, OptimizerView, TaskView
from admeta.info import OptimInfo
from search.named_spaces import named_spaces
from search.space import from_registry
from service.api.errors import ApiError
from service.api.invalid import json_schema
from tasks.errors import UnknownTaskError
from tasks.registry import TaskInfo

router = APIRouter(prefix="/v1", tags=["catalog"])


@router.get("/tasks")
def list_tasks() -> list[TaskView]:
    """All tasks: models, metrics, and the JSON schema of the `task` part of a study."""
    return [_task(info) for _, info in sorted(tasks.registry.all_tasks().items())]


@router.get("/tasks/{name}", responses={404: {"model": ErrorView}})
def get_task(name: str) -> TaskView:
    """One task."""
    return _task(known_task(name, status=404))


@router.get("/optimizers")
def list_optimizers() -> list[OptimizerView]:
    """All optimizers: parameters with their rules and defaults, and the search spaces that a study can name."""
    return [_optimizer(admeta.registry.get(name)) for name in sorted(admeta.registry.known_optimizers())]


@router.get("/optimizers/{name}", responses={404: {"model": ErrorView}})
def get_optimizer(name: str) -> OptimizerView:
    """One optimizer."""
    return _optimizer(known_optimizer(name, status=404))


def known_task(name: str, *, status: int) -> TaskInfo:
    """The task with this name; an unknown one raises ApiError with the status."""
    try:
        return tasks.registry.get(name)
    except UnknownTaskError as error:
        raise ApiError(status, "unknown_task", str(error), hint="GET /v1/tasks lists the tasks.") from None


def known_optimizer(name: str, *, status: int) -> OptimInfo:
    """The optimizer with this name; an unknown one raises ApiError with the status."""
    try:
        return admeta.registry.get(name)
    except admeta.errors.AdmetaError as error:  # no such name, or a path or joint name that names none
        hint = "GET /v1/optimizers lists the optimizers."
        raise ApiError(status, "unknown_optimizer", str(error), hint=hint) from None


def _task(info: TaskInfo) -> TaskView:
    return TaskView(
        name=info.name,
        title=info.title,
        description=info.description,
        models=list(info.models),
        metrics=dict(info.metrics),
        default_metric=info.default_metric,
        config_schema=json_schema(info.config),
        recipe_fields=info.config.recipe_fields(),
    )


def _optimizer(info: OptimInfo) -> OptimizerView:
    spaces = {name: _space(named.space) for name, named in named_spaces(info).items()}
    parameters = [
        OptimizerParameterView(name=p.name, default=p.default, rule=p.domain.rule(), doc=p.doc)
        for p in info.parameters.values()
    ]
    return OptimizerView(
        name=info.name,
        title=info.title,
        description=f"{info.description} {info.note[:1].upper()}{info.note[1:]}." if info.note else info.description,
        source=f"{info.source.paper}, {info.source.url}",
        parameters=parameters,
        default_space=spaces.pop("default"),
        fixed=dict(info.fixed),
        spaces=spaces,
        derived={name: one.doc for name, one in info.derived.items()},
    )


def _space(space: Any) -> dict[str, Any]:
    return {
        name: parameter.model_dump(mode="json", exclude_none=True) for name, parameter in from_registry(space).items()
    }
