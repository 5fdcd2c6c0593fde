"""The service itself: tasks and optimizers that studies can name, machines and what runs on them, access tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
    recipe_fields: list[str] = Field(
        default=[], description="What a study may search under `recipe`; settings.* stands for any name after the dot."
    )


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
    derived: dict[str, str] = Field(
        default={}, description="Numbers that follow from the parameters, which a study's `when` may compare."
    )


class HealthView(View):
    """Whether the service and what it rests on work."""

    status: str
    version: str
    database: str
    ray: str


class VersionView(View):
    """What runs behind the API."""

    version: str = Field(description="Of admeta-search.", examples=["0.1.0"])
    api: str = Field(description="Of the addresses under /v1.", examples=["v1"])
    python: str
    parts: dict[str, str] = Field(description="Versions of what it rests on.", examples=[{"optuna": "5.0.0"}])


class NodeView(View):
    """A machine of the Ray cluster."""

    id: str
    host: str
    address: str
    alive: bool
    cpus: float
    cpus_free: float
    gpus: float
    gpus_free: float


class ActiveRunView(View):
    """A run that trains now, and where."""

    run: int
    study: str = Field(description="The study's name.")
    label: str
    trial: int
    stage: str
    seed: int
    node: str | None = Field(description="A node's address.")
    device: str | None
    started_at: datetime
    epoch: int = Field(default=0, description="Epochs that are evaluated; 0 while it starts.")


class QueuedStudyView(View):
    """A study that waits for its turn."""

    id: str
    name: str
    priority: int
    created_at: datetime


class ClusterView(View):
    """The machines, what runs on them, and what waits."""

    ray: str = Field(description="ok, starting, or what is wrong; the nodes are known only while it is ok.")
    nodes: list[NodeView]
    runs: list[ActiveRunView] = Field(description="Latest first; 500 at most.")
    queue: list[QueuedStudyView] = Field(description="In the order in which they will start; 100 at most.")


class TokenRequest(BaseModel):
    """A token to make."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(min_length=1, max_length=100, description="What it is for, or who has it.")
    scope: Literal["read", "write", "admin"] = "read"
    expires_in_s: float | None = Field(
        default=None, gt=0, le=10 * 365 * 86_400, description="Lifetime in seconds; null: until it is revoked."
    )


class TokenView(View):
    """An access token, without the token itself."""

    id: str
    name: str
    scope: str = Field(description="read, write or admin; each may do what those before it may.")
    prefix: str = Field(description="How the token begins, to know it by.")
    active: bool = Field(description="Neither revoked nor expired.")
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    revoked_at: datetime | None


class NewTokenView(TokenView):
    """A token just made. It is shown here only: the service keeps no more than its hash."""

    token: str = Field(examples=["adm_…"])
