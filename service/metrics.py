"""What Prometheus scrapes: the state of studies and trials from SQL, the service's own requests from memory.

Studies and trials are counted at a scrape, so that all services on one database give the same numbers.
The others are this process's. Each application has its own registry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from search.states import RunState, Stage, StudyState
from service.database.errors import DatabaseUnavailableError
from service.database.queries import Totals, totals

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
    trials = GaugeMetricFamily("admeta_trials", "Trials by state.", labels=["state"])
    confirms = GaugeMetricFamily("admeta_confirm_runs", "Confirm runs by state.", labels=["state"])
    for run_state in RunState:
        trials.add_metric([run_state.value], found.runs.get((Stage.SEARCH, run_state), 0))
        confirms.add_metric([run_state.value], found.runs.get((Stage.CONFIRM, run_state), 0))
    yield trials
    yield confirms
    seconds = CounterMetricFamily("admeta_trial_seconds", "Seconds of training, by stage.", labels=["stage"])
    gpu_seconds = CounterMetricFamily("admeta_gpu_seconds", "GPU seconds of training, by stage.", labels=["stage"])
    for stage in Stage:
        seconds.add_metric([stage.value], found.train_s.get(stage, 0.0))
        gpu_seconds.add_metric([stage.value], found.gpu_s.get(stage, 0.0))
    yield seconds
    yield gpu_seconds
