"""The state of the service: its health, its metrics, and the machines that studies run on.

Health is for people (`/healthz`), for what restarts the service (`/livez`) and for what sends it requests (`/readyz`).

Metrics are for Prometheus. Studies and trials are counted in SQL at a scrape, so that all services on one database give
the same numbers; the others are this process's. Each application has its own registry.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from admeta.client.models import ClusterView, HealthView, VersionView
from search.states import RunState, Stage, StudyState
from service.api.requests import Database
from service.database.engine import check_writable
from service.database.errors import DatabaseUnavailableError
from service.database.queries import Totals, active_runs, queued_studies, totals
from service.database.retry import reason

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


_LATENCIES_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_READ_AGAIN_AFTER_S = 2.0


class Metrics:
    """An application's counters, and the text that they make. Thread-safe, as the library is.

    Args:
        engine: gives the database; asked at each scrape.
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_DatabaseCollector(engine))
        self.requests = Histogram(
            "admeta_http_request_seconds",
            "Time until a request was answered; of event streams until they began.",
            ("method", "route", "status"),
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self.wrong_tokens = Counter(
            "admeta_wrong_tokens", "Requests whose token was unknown, revoked or expired.", registry=self.registry
        )
        self.followers = Gauge("admeta_event_followers", "Open event streams.", registry=self.registry)
        self.events_sent = Counter("admeta_events_sent", "Events sent to followers.", registry=self.registry)

    def text(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class _DatabaseCollector(Collector):
    """Reads the totals at a scrape; scrapes that follow one another closely share them."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine
        self._totals: Totals | None = None
        self._read_at = -_READ_AGAIN_AFTER_S

    def describe(self) -> Iterable[Metric]:
        """Nothing: the database need not be there when the collector is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The metrics; `admeta_database_up 0` alone while the database does not answer."""
        found = self._read()
        yield GaugeMetricFamily("admeta_database_up", "1 while the database answers.", value=found is not None)
        if found is not None:
            yield from _families(found)

    def _read(self) -> Totals | None:
        if self._totals is None or time.monotonic() - self._read_at > _READ_AGAIN_AFTER_S:
            try:
                self._totals, self._read_at = totals(self._engine()), time.monotonic()
            except (SQLAlchemyError, DatabaseUnavailableError):
                return None
        return self._totals


def _families(found: Totals) -> Iterable[Metric]:
    studies = GaugeMetricFamily("admeta_studies", "Studies by state.", labels=["state"])
    for state in StudyState:
        studies.add_metric([state.value], found.studies.get(state, 0))
    yield studies
    yield GaugeMetricFamily(
        "admeta_queue_oldest_seconds",
        "How long the oldest QUEUED study has waited; 0 where none waits.",
        value=found.oldest_queued_s,
    )
    leases = GaugeMetricFamily("admeta_driver_leases", "Studies that a driver holds, by its lease.", labels=["state"])
    leases.add_metric(["held"], found.n_leases_held)
    leases.add_metric(["expired"], found.n_leases_expired)
    yield leases
    for stage, name, text in (
        (Stage.SEARCH, "admeta_trials", "Trials by state."),
        (Stage.CONFIRM, "admeta_confirm_runs", "Confirm runs by state."),
        (Stage.SENSITIVITY, "admeta_sensitivity_runs", "Sensitivity runs by state."),
    ):
        runs = GaugeMetricFamily(name, text, labels=["state"])
        for run_state in RunState:
            runs.add_metric([run_state.value], found.runs.get((stage, run_state), 0))
        yield runs
    seconds = CounterMetricFamily("admeta_trial_seconds", "Seconds of training, by stage.", labels=["stage"])
    gpu_seconds = CounterMetricFamily("admeta_gpu_seconds", "GPU seconds of training, by stage.", labels=["stage"])
    for stage in Stage:
        seconds.add_metric([stage.value], found.train_s.get(stage, 0.0))
        gpu_seconds.add_metric([stage.value], found.gpu_s.get(stage, 0.0))
    yield seconds
    yield gpu_seconds
