"""The machines, what runs on them, what waits; and whether it all works."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from admeta.client.models.base import View


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
