"""What is too much gets its status and the number: 413, 422, 429."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from search.definition import StudyDefinition
from service.app import create_app
from service.settings import Quotas, Settings
from tests.service.fakes import ADDRESS, FakeSupervisor, definition


@pytest.fixture
def small(settings: Settings) -> Iterator[TestClient]:
    quotas = Quotas(max_queued=2, max_trials=20, max_body_bytes=2000)
    app = create_app(replace(settings, quotas=quotas), supervisor=FakeSupervisor())
    with TestClient(app, base_url=ADDRESS) as client:
        yield client


def test_a_full_queue_gets_429(small: TestClient) -> None:
    for name in ("a", "b"):
        assert small.post("/v1/studies", json=definition(name)).status_code == 201
    refused = small.post("/v1/studies", json=definition("c"))
    assert (refused.status_code, refused.json()["error"], refused.headers["Retry-After"]) == (429, "queue_full", "60")
    assert refused.json()["detail"] == "2 studies are queued; the limit is 2."
    assert small.post("/v1/studies", json=definition("a")).status_code == 200  # it is there already
    small.post("/v1/studies/a/cancel")
    assert small.post("/v1/studies", json=definition("c")).status_code == 201


def test_too_many_trials_get_422(small: TestClient) -> None:
    refused = small.post("/v1/studies", json=definition(budget={"trials_per_optimizer": 9}))
    assert refused.status_code == 422
    (field,) = refused.json()["fields"]
    assert (field["field"], field["value"]) == ("budget.trials_per_optimizer", 9)
    assert "asks for 24 trials, confirm and sensitivity runs in all; this service takes at most 20" in field["rule"]


def test_a_large_body_gets_413(small: TestClient) -> None:
    refused = small.post("/v1/studies", json=definition(description="x" * 2000))
    assert refused.status_code == 413
    assert "2000 bytes" in refused.json()["detail"]


def test_runs_of_a_study() -> None:
    parsed = StudyDefinition.model_validate(definition(confirm={"top_k": 2, "seeds": [0, 1, 2]}))
    assert parsed.n_runs == 2 * (4 + 2 * 3)


def test_a_small_grid_under_a_large_budget_is_taken(small: TestClient) -> None:
    grid = {"name": "sgd", "space": {"lr": {"type": "categorical", "choices": [0.1, 0.01]}}}
    answer = small.post(
        "/v1/studies",
        json=definition("grid", optimizers=[grid], sampler={"name": "grid"}, budget={"trials_per_optimizer": 100_000}),
    )
    assert answer.status_code == 201, answer.text
    (search,) = answer.json()["searches"]
    assert (search["n_trials"], search["n_confirm_runs"]) == (2, 3)
