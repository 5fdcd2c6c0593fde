"""What other people's pages can do with a service on loopback: nothing. And the headers of every answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from service.api.errors import DATA_POLICY, SECURITY_HEADERS
from service.app import create_app
from service.settings import Settings
from tests.service.fakes import FakeSupervisor, definition


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1", "127.0.0.2:1", "[::1]", "[::1]:8000"])
def test_this_machines_names_are_answered(shared_api: TestClient, host: str) -> None:
    assert shared_api.get("/v1/studies", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1", ""],
)
def test_other_names_are_not(shared_api: TestClient, host: str) -> None:
    """DNS rebinding: the page's own name, which now points to 127.0.0.1."""
    response = shared_api.get("/v1/studies", headers={"Host": host})
    assert (response.status_code, response.json()["error"]) == (421, "foreign_host")
    assert "--require-token" in response.json()["hint"]


@pytest.mark.parametrize(
    "host",
    ["[::1", "a@", "evil@127.0.0.1", "127.0.0.1#a", "127.0.0.1/a", "127.0.0.1:port", "127.0.0.1?a", "127.0.0.1\\a"],
)
def test_what_is_no_host_is_refused(shared_api: TestClient, host: str) -> None:
    response = shared_api.get("/v1/studies", headers={"Host": host})
    assert (response.status_code, response.json()["error"]) == (400, "malformed_host")


def test_what_is_no_host_is_refused_with_tokens_too(settings: Settings) -> None:
    app = create_app(replace(settings, require_token=True), supervisor=FakeSupervisor())
    with TestClient(app) as client:
        assert client.get("/healthz", headers={"Host": "search.example.org@evil"}).status_code == 400
        assert client.get("/healthz", headers={"Host": "search_1.example.org:80"}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:9999", "null", "", "http://[::1"])
def test_foreign_pages_change_nothing(api: TestClient, origin: str) -> None:
    api.post("/v1/studies", json=definition())
    response = api.post("/v1/studies/first/cancel", headers={"Origin": origin})
    assert (response.status_code, response.json()["error"]) == (403, "foreign_origin")
    assert api.get("/v1/studies/first").json()["state"] == "QUEUED"


def test_own_pages_may(api: TestClient) -> None:
    api.post("/v1/studies", json=definition())
    assert api.post("/v1/studies/first/cancel", headers={"Origin": "http://127.0.0.1"}).status_code == 200


def test_no_cross_origin_reads(shared_api: TestClient) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for response in (shared_api.get("/v1/studies", headers=asked), shared_api.options("/v1/studies", headers=asked)):
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


def test_behind_a_proxy_any_name_is_answered_with_tokens(settings: Settings) -> None:
    app = create_app(replace(settings, require_token=True), supervisor=FakeSupervisor())
    with TestClient(app, base_url="https://search.example.org") as client:
        assert client.get("/healthz").status_code == 200


def test_security_headers_are_on_every_answer(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError

    monkeypatch.setattr("service.api.studies.queries.list_studies", broken)
    answers = [api.get("/v1/tasks"), api.get("/nowhere"), api.post("/v1/studies", content=b"x" * (1 << 21))]
    answers += [api.get("/v1/studies"), api.get("/healthz", headers={"Host": "evil"})]
    assert [response.status_code for response in answers] == [200, 404, 413, 500, 421]
    for response in answers:
        for name, value in SECURITY_HEADERS.items():
            assert response.headers[name] == value
        assert response.headers["Content-Security-Policy"] == DATA_POLICY
    docs = api.get("/docs").headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in docs
    assert "script-src" in docs
