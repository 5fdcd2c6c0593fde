"""What holds for every address: the error shape, methods, health, and what starts and stops with the service."""

from __future__ import annotations

import json
import re
import sqlite3

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from admeta.client.models import ErrorView
from service.api import health
from service.app import create_app
from service.settings import Settings
from tests.service.fakes import FakeSupervisor, definition


def test_unknown_addresses_get_404_with_the_nearest(shared_api: TestClient) -> None:
    response = shared_api.get("/v1/study")
    assert response.status_code == 404
    assert response.json()["error"] == "not_found"
    assert "Did you mean /v1/studies?" in response.json()["hint"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/studies", "GET, HEAD, OPTIONS, POST"),
        ("PUT", "/v1/studies/x", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("GET", "/v1/studies/x/cancel", "OPTIONS, POST"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
        ("BREW", "/v1/best", "GET, HEAD, OPTIONS"),
    ],
)
def test_other_methods_get_405_with_those_allowed(shared_api: TestClient, method: str, path: str, allowed: str) -> None:
    response = shared_api.request(method, path)
    assert (response.status_code, response.headers["Allow"]) == (405, allowed)
    assert response.json()["error"] == "method_not_allowed"
    assert method in response.json()["detail"]


def test_options_lists_the_methods(shared_api: TestClient) -> None:
    response = shared_api.options("/v1/studies")
    assert (response.status_code, response.headers["Allow"], response.content) == (204, "GET, HEAD, OPTIONS, POST", b"")
    assert shared_api.options("/nowhere").status_code == 404


def test_head_is_get_without_the_body(api: TestClient) -> None:
    api.headers["Accept-Encoding"] = "identity"  # compressed, the length is another
    got, head = api.get("/v1/tasks"), api.head("/v1/tasks")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]
    assert api.head("/v1/studies/unknown").status_code == 404


def test_the_database_away_gets_503(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("SELECT 1", {}, Exception("connection refused"))

    monkeypatch.setattr("service.api.studies.queries.list_studies", away)
    monkeypatch.setattr("service.api.studies.studies.create_study", away)
    for response in (api.get("/v1/studies"), api.post("/v1/studies", json=definition())):
        assert response.status_code == 503
        assert response.headers["Retry-After"] == "5"
        assert response.json()["error"] == "database_unavailable"


def test_our_own_mistakes_get_500_in_the_same_shape(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr("service.api.studies.queries.list_studies", broken)
    response = api.get("/v1/studies")
    assert response.status_code == 500
    assert ErrorView.model_validate_json(response.content).error == "internal_error"
    assert "secret" not in response.text


def test_health(api: TestClient) -> None:
    health = api.get("/healthz")
    assert health.status_code == 200
    assert (health.json()["status"], health.json()["database"], health.json()["ray"]) == ("ok", "ok", "ok")


def test_health_says_why_the_database_cannot_be_written(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL

    def full(_: Engine) -> None:
        raise OperationalError("UPDATE admeta_studies", {}, error)

    monkeypatch.setattr(health, "check_writable", full)
    answer = api.get("/healthz")
    assert (answer.status_code, answer.json()["database"]) == (503, "unavailable: the disk is full")


def test_liveness_readiness_and_version(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (api.get("/livez").json(), api.get("/readyz").json()) == ({"status": "ok"}, api.get("/healthz").json())
    assert api.get("/v1/version").json()["api"] == "v1"
    assert api.get("/v1/version").json()["version"] == api.get("/healthz").json()["version"]
    monkeypatch.setattr(Engine, "connect", _away)
    monkeypatch.setattr(health, "_CHECK_EVERY_S", 0.0)
    assert [api.get(path).status_code for path in ("/livez", "/readyz", "/healthz")] == [200, 503, 503]


def _away(*_: object, **__: object) -> None:
    raise OperationalError("SELECT 1", {}, Exception("connection refused"))


def test_the_supervisor_starts_and_stops_with_the_service(settings: Settings) -> None:
    supervisor = FakeSupervisor()
    with TestClient(create_app(settings, supervisor=supervisor)):
        assert (supervisor.started, supervisor.stopped) == (True, False)
    assert supervisor.stopped


def test_catalog(api: TestClient) -> None:
    tasks = {task["name"]: task for task in api.get("/v1/tasks").json()}
    assert tasks["digits"]["default_metric"] == "val_accuracy"
    assert "epochs" in tasks["digits"]["config_schema"]["properties"]
    optimizers = {optimizer["name"]: optimizer for optimizer in api.get("/v1/optimizers").json()}
    assert {"admetar", "admetas", "sgd", "sgdm", "adam", "adamw", "radam", "ranger", "adabelief"} <= optimizers.keys()
    assert optimizers["admetar"]["default_space"]["lambd"]["type"] == "float"
    assert api.get("/v1/optimizers/admetar").json() == optimizers["admetar"]
    assert api.get("/v1/tasks/digits").json() == tasks["digits"]
    unknown = api.get("/v1/optimizers/admetarr")
    assert unknown.status_code == 404
    assert "did you mean 'admetar'" in unknown.json()["detail"]
    assert api.get("/v1/tasks/digit").status_code == 404


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ("task=digits&optimizer=sgdm", 404, "no_result"),
        ("task=digit&optimizer=sgdm", 422, "unknown_task"),
        ("task=digits&optimizer=sgdmm", 422, "unknown_optimizer"),
        ("task=digits&optimizer=torch.optim:LBFGS", 422, "unknown_optimizer"),
        ("task=digits&optimizer=soap%2Bmuon", 422, "unknown_optimizer"),
        ("task=digits&optimizer=sgdm&metric=acc", 422, "unknown_metric"),
        ("task=%00&optimizer=%00", 422, "unknown_task"),
        ("task=digits&optimizer=sgdm&model=%00", 404, "no_result"),
    ],
)
def test_best_without_an_answer(shared_api: TestClient, query: str, status: int, error: str) -> None:
    response = shared_api.get(f"/v1/best?{query}")
    assert (response.status_code, response.json()["error"]) == (status, error), response.text


def test_the_description_is_whole(api: TestClient) -> None:
    schema = api.get("/openapi.json").json()
    text = json.dumps(schema)
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert references <= schema["components"]["schemas"].keys()
    body = schema["paths"]["/v1/studies"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("/StudyDefinition")
    assert set(schema["components"]["schemas"]["StudyDefinition"]["required"]) == {"name", "task", "optimizers"}
    assert schema["components"]["schemas"]["OptimizerSearch"]["required"] == ["name"]
    assert api.post("/v1/studies", json=body["example"]).status_code == 201
    assert api.get("/docs").status_code == 200
