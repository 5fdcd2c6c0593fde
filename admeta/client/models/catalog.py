"""What a study can name: tasks and optimizers."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from admeta.client.models.base import View


class TaskView(View):
    """A task that studies can name."""

    name: str
    title: str
    description: str
    models: list[str]
    metrics: dict[str, str]
    default_metric: str
    config_schema: dict[str, Any]


class OptimizerParameterView(View):
    """A parameter of an optimizer."""

    name: str
    default: Any
    rule: str
    doc: str


class OptimizerView(View):
    """An optimizer that studies can name."""

    name: str
    title: str
    description: str
    source: str
    parameters: list[OptimizerParameterView]
    default_space: dict[str, Any]
    fixed: dict[str, Any]
    spaces: dict[str, Any] = Field(description="Other named spaces: finetune, paper, …")
