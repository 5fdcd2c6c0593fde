"""What the service offers and how it is: tasks, optimizers, cluster, health."""

from __future__ import annotations

import httpx

from admeta.client.exchange import get, parse, part, read, read_list, refused
from admeta.client.models import ClusterView, HealthView, OptimizerView, TaskView, VersionView
from admeta.client.wire import Flow, Send


def tasks() -> Flow[list[TaskView]]:
    """The tasks that a study can name."""
    return read_list(TaskView, get("/v1/tasks"))


def task(name: str) -> Flow[TaskView]:
    """One task: its models, metrics, and the schema of a study's `task`."""
    return read(TaskView, get(f"/v1/tasks/{part(name)}"))


def optimizers() -> Flow[list[OptimizerView]]:
    """The optimizers that a study can name."""
    return read_list(OptimizerView, get("/v1/optimizers"))


def optimizer(name: str) -> Flow[OptimizerView]:
    """One optimizer: its parameters, rules, defaults and search spaces."""
    return read(OptimizerView, get(f"/v1/optimizers/{part(name)}"))


def cluster() -> Flow[ClusterView]:
    """The machines, what runs on them, and what waits."""
    return read(ClusterView, get("/v1/cluster"))


def version() -> Flow[VersionView]:
    """The service's version and that of what it is built on."""
    return read(VersionView, get("/v1/version"))


def health() -> Flow[HealthView]:
    """Whether the service works, and its version; also where it says that it does not."""
    response: httpx.Response = yield Send(get("/healthz"))
    if response.is_success or response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return parse(HealthView, response)
    raise refused(response)
