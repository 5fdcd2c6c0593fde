"""The state of the service: its health, its metrics, and the machines that studies run on.

Health is for people (`/healthz`), for what restarts the service (`/livez`) and for what sends it requests (`/readyz`).
"""

from __future__ import annotations

import math
import platform
import time
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.api.requests import Database
from service.database.engine import check_writable
from service.database.errors import DatabaseUnavailableError
from service.database.queries import active_runs, queued_studies
from service.database.retry import reason
from service.metrics import Metrics
from service.models import ClusterView, HealthView, VersionView

router = APIRouter(tags=["health"])
cluster = APIRouter(tags=["cluster"])
_PARTS = ("optuna", "ray", "sqlalchemy", "torch")
_CHECK_EVERY_S = 1.0
_AWAY: dict[int | str, dict[str, Any]] = {
    503: {"model": HealthView, "description": "The database cannot be read or written."}
}


@router.get("/healthz", responses=_AWAY)
def get_health(engine: Database, request: Request, response: Response) -> HealthView:
    """Whether the service can work now. Without Ray studies wait; without the database 503."""
    database = _database(engine, request.app)
    status = "ok" if database == "ok" else "unavailable"
    if status != "ok":
        response.status_code = 503
    ray: str = request.app.state.supervisor.ray_status()
    return HealthView(status=status, version=version("admeta-search"), database=database, ray=ray)


@router.get("/readyz", responses=_AWAY)
def get_readiness(engine: Database, request: Request, response: Response) -> HealthView:
    """Whether requests may be sent here: as `/healthz`."""
    return get_health(engine, request, response)


@router.get("/livez")
async def get_liveness() -> dict[str, str]:
    """Whether the process answers at all; restart it where it does not. It does without a database too."""
    return {"status": "ok"}


def _database(engine: Engine, app: FastAPI) -> str:
    """ok, or why the database cannot be read or written; checked once in `_CHECK_EVERY_S` at most."""
    checked_at, answer = getattr(app.state, "database_check", (-math.inf, ""))
    if time.monotonic() - checked_at < _CHECK_EVERY_S:
        return str(answer)
    try:
        check_writable(engine)
        answer = "ok"
    except (SQLAlchemyError, DatabaseUnavailableError, OSError) as error:
        answer = f"unavailable: {reason(error)}"
    app.state.database_check = (time.monotonic(), answer)
    return str(answer)


@router.get("/v1/version")
async def get_version() -> VersionView:
    """The versions of the service and of what it uses."""
    return _version()


@cache
def _version() -> VersionView:
    parts = {name: version(name) for name in _PARTS}
    return VersionView(version=version("admeta-search"), api="v1", python=platform.python_version(), parts=parts)


@router.get(
    "/metrics",
    response_class=Response,
    response_model=None,
    responses={200: {"description": "Prometheus's text format.", "content": {"text/plain": {}}}},
)
def get_metrics(request: Request) -> Response:
    """Studies and trials by state, seconds spent, the queue, leases, and the latency of requests."""
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)


@cluster.get("/v1/cluster")
def get_cluster(engine: Database, request: Request) -> ClusterView:
    """Nodes with their processors and GPUs, the runs on them, and the queued studies."""
    supervisor = request.app.state.supervisor
    ray: str = supervisor.ray_status()
    nodes = [] if ray == "starting" or ray.startswith("unavailable") else supervisor.nodes()
    return ClusterView(ray=ray, nodes=nodes, runs=active_runs(engine), queue=queued_studies(engine))
