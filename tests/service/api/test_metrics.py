"""What Prometheus gets: true counts from SQL, the service's own from memory, also while the database is away."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import OperationalError

from tests.service.fakes import definition


def _values(api: TestClient) -> dict[tuple[str, tuple[str, ...]], float]:
    response = api.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_the_text(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.health._READ_AGAIN_AFTER_S", 0)
    api.post("/v1/studies", json=definition())
    api.get("/v1/studies/first")
    api.get("/v1/studies/second")
    api.get("/any/thing")
    api.request("BREW", "/v1/studies")
    values = _values(api)
    assert values["admeta_database_up", ()] == 1
    assert values["admeta_studies", ("QUEUED",)] == 1
    assert values["admeta_studies", ("RUNNING",)] == 0
    assert values["admeta_trials", ("COMPLETE",)] == 0
    assert values["admeta_confirm_runs", ("FAIL",)] == 0
    assert values["admeta_gpu_seconds_total", ("search",)] == 0
    assert values["admeta_driver_leases", ("held",)] == 0
    assert values["admeta_queue_oldest_seconds", ()] > 0
    count = "admeta_http_request_seconds_count"
    assert values[count, ("GET", "/v1/studies/{study}", "200")] == 1
    assert values[count, ("GET", "/v1/studies/{study}", "404")] == 1
    assert values[count, ("GET", "none", "404")] == 1  # one label for any number of wrong addresses
    assert values[count, ("POST", "/v1/studies", "201")] == 1
    assert [key for key in values if key[0] == count and key[1][0] == "other"]
    assert ("process_resident_memory_bytes", ()) in values


def test_without_a_database(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: object) -> None:
        raise OperationalError("SELECT", {}, Exception("gone"))

    monkeypatch.setattr("service.api.health.totals", away)
    values = _values(api)
    assert values["admeta_database_up", ()] == 0
    assert ("admeta_studies", ("QUEUED",)) not in values


def test_applications_do_not_share_counts(api: TestClient) -> None:
    values = _values(api)
    assert not [key for key in values if key[0] == "admeta_http_request_seconds_count"]
