"""Tokens at the door: who is let in, who is held up, and what a stranger learns."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from starlette.websockets import WebSocketDisconnect

from search.states import Scope
from service.api.auth import MAX_ADDRESSES, OPEN_PATHS, FailureLimit, check_start, scope_needed
from service.app import create_app
from service.database import make_engine
from service.database.tokens import create_token, find_bearer, list_tokens, revoke_token
from service.settings import Settings, SettingsError
from tests.service.fakes import FakeSupervisor, definition


@pytest.fixture
def closed(settings: Settings) -> Settings:
    return replace(settings, require_token=True)


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = make_engine(settings.database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def door(closed: Settings) -> Iterator[TestClient]:
    app = create_app(closed, supervisor=FakeSupervisor())
    with TestClient(app, base_url="http://search.example.org", raise_server_exceptions=False) as client:
        yield client


def _with(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _token(engine: Engine, scope: Scope, lifetime: timedelta | None = None) -> str:
    return create_token(engine, name=f"a {scope} token", scope=scope, lifetime=lifetime).token


def test_every_address_but_a_few_is_closed(door: TestClient) -> None:
    schema = door.get("/openapi.json").json()
    assert len(schema["paths"]) > 15
    for path, operations in schema["paths"].items():
        for method in operations:
            response = door.request(method, path)
            expected = 200 if path in OPEN_PATHS else 401
            assert response.status_code == expected, (method, path)
    assert door.post("/signin").status_code == 401
    for path in ("/nowhere", "/v1/tokens/", "//v1/studies", "/docs/x", "/healthz/"):
        assert door.get(path, follow_redirects=False).status_code == 401, path


def test_without_a_token(door: TestClient) -> None:
    for headers in ({}, {"Authorization": "Basic YTpi"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer  "}):
        response = door.get("/v1/studies", headers=headers)
        assert (response.status_code, response.json()["error"]) == (401, "token_missing")
        assert response.headers["WWW-Authenticate"] == 'Bearer realm="admeta"'
        assert "ADMETA_TOKEN" in response.json()["hint"]
    assert door.get("/v1/studies?token=adm_x&access_token=adm_x").status_code == 401


@pytest.mark.parametrize("token", ["adm_wrong", "x" * 5000, "\u00e9\u00ff", "a b"])
def test_with_a_wrong_token(door: TestClient, token: str) -> None:
    response = door.get("/v1/studies", headers={"Authorization": f"Bearer {token}".encode("latin-1")})
    assert (response.status_code, response.json()["error"]) == (401, "token_invalid")
    assert 'error="invalid_token"' in response.headers["WWW-Authenticate"]
    assert token not in response.text


def test_scopes(door: TestClient, engine: Engine) -> None:
    read, write, admin = (_with(_token(engine, scope)) for scope in Scope)
    assert door.get("/v1/studies", headers=read).status_code == 200
    assert door.get("/metrics", headers=read).status_code == 200
    refused = door.post("/v1/studies", json=definition(), headers=read)
    assert (refused.status_code, refused.json()["error"]) == (403, "scope_missing")
    assert refused.json()["detail"] == "POST /v1/studies needs the scope 'write'; token 'a read token' has 'read'."
    assert 'scope="write"' in refused.headers["WWW-Authenticate"]
    assert door.post("/v1/studies", json=definition(), headers=write).status_code == 201
    assert door.post("/v1/studies/first/cancel", headers=read).status_code == 403
    for method, path in (("GET", "/v1/tokens"), ("POST", "/v1/tokens"), ("DELETE", "/v1/tokens/x")):
        assert door.request(method, path, headers=write).status_code == 403
    assert door.get("/v1/tokens", headers=admin).status_code == 200
    assert door.get("/nowhere", headers=read).status_code == 404
    assert door.post("/v1/studies/first/cancel", headers={"AUTHORIZATION": admin["Authorization"]}).status_code == 200


def test_which_scope_a_request_needs() -> None:
    assert scope_needed("GET", "/v1/studies") is Scope.READ
    assert scope_needed("HEAD", "/v1/tokensx") is Scope.READ
    assert scope_needed("GET", "/v1/tokens") is Scope.ADMIN
    assert scope_needed("GET", "/v1/tokens/x/y") is Scope.ADMIN
    assert scope_needed("POST", "/v1/recommend") is Scope.READ  # it changes nothing
    assert scope_needed("DELETE", "/v1/recommend") is Scope.WRITE
    assert scope_needed("BREW", "/v1/studies") is Scope.WRITE


def test_revoked_and_expired_tokens_end_at_once(door: TestClient, engine: Engine) -> None:
    admin = _with(_token(engine, Scope.ADMIN))
    made = door.post("/v1/tokens", json={"name": "ci", "scope": "write", "expires_in_s": 3600}, headers=admin)
    assert made.status_code == 201, made.text
    token = made.json()["token"]
    assert token.startswith("adm_")
    assert len(token) == 47
    assert made.json()["prefix"] == token[:8]
    assert door.get("/v1/studies", headers=_with(token)).status_code == 200
    listed = door.get("/v1/tokens", headers=admin)
    assert token not in listed.text
    assert [(t["name"], t["active"], t["last_used_at"] is not None) for t in listed.json()] == [
        ("ci", True, True),
        ("a admin token", True, True),
    ]
    gone = door.delete(f"/v1/tokens/{made.json()['id']}", headers=admin)
    assert (gone.status_code, gone.json()["active"]) == (200, False)
    assert door.get("/v1/studies", headers=_with(token)).status_code == 401
    assert door.delete("/v1/tokens/nope", headers=admin).status_code == 404
    assert door.get("/v1/studies", headers=_with(_token(engine, Scope.READ, timedelta(0)))).status_code == 401


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "x", "scope": "root"}, "scope"),
        ({"name": "x", "expires_in_s": 0}, "expires_in_s"),
        ({"name": "x", "expires_in_s": 1e12}, "expires_in_s"),
        ({"name": "x", "expires": 1}, "expires"),
    ],
)
def test_token_requests_that_break_a_rule(door: TestClient, engine: Engine, body: object, field: str) -> None:
    response = door.post("/v1/tokens", json=body, headers=_with(_token(engine, Scope.ADMIN)))
    assert response.status_code == 422
    assert [f["field"] for f in response.json()["fields"]] == [field]


def test_the_database_has_no_token(engine: Engine, settings: Settings) -> None:
    token = _token(engine, Scope.READ)
    with engine.begin() as connection:
        connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
        (row,) = connection.execute(text("SELECT * FROM admeta_tokens")).all()
    assert token not in str(row)
    for file in settings.home.iterdir():
        assert token.encode() not in file.read_bytes()


def test_too_many_wrong_tokens_are_held_up(door: TestClient, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    good = _token(engine, Scope.READ)
    assert door.get("/v1/studies", headers=_with(good)).status_code == 200
    fresh = _token(engine, Scope.READ)
    with caplog.at_level(logging.INFO):
        statuses = [door.get("/v1/studies", headers=_with(f"adm_guess{n}")).status_code for n in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    held_up = door.get("/v1/studies", headers=_with(fresh))
    assert (held_up.status_code, held_up.json()["error"]) == (429, "too_many_failures")
    assert 0 < int(held_up.headers["Retry-After"]) <= 60
    assert "10 wrong access tokens" in held_up.json()["detail"]
    assert door.get("/v1/studies", headers=_with(good)).status_code == 200  # was right before
    assert door.get("/healthz").status_code == 200
    assert "adm_guess" not in caplog.text
    assert "admeta_wrong_tokens_total 10.0" in door.get("/metrics", headers=_with(good)).text


def test_the_limit_slides_and_is_bounded() -> None:
    now = 0.0
    limit = FailureLimit(max_failures=3, window_s=10, clock=lambda: now)
    for second in (0.0, 1.0, 2.0):
        now = second
        assert limit.wait_s("10.0.0.1") == 0
        limit.count("10.0.0.1")
    assert limit.wait_s("10.0.0.1") == pytest.approx(8)
    assert limit.wait_s("10.0.0.2") == 0
    now = 10.5
    assert limit.wait_s("10.0.0.1") == 0
    for _ in range(3):
        limit.count("2001:db8::1")
    assert limit.wait_s("2001:db8::ffff") > 0  # one party's network
    assert limit.wait_s("2001:db8:1::1") == 0
    for n in range(MAX_ADDRESSES + 5):
        limit.count(f"host{n}")
    assert len(limit._failures) == MAX_ADDRESSES


def test_the_database_away_gets_503(door: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise OperationalError("SELECT", {}, Exception("gone"))

    monkeypatch.setattr("service.database.tokens.find_bearer", away)
    response = door.get("/v1/studies", headers=_with("adm_x"))
    assert (response.status_code, response.json()["error"]) == (503, "database_unavailable")


def test_an_open_service_hands_out_no_tokens(api: TestClient) -> None:
    for method, path in (("GET", "/v1/tokens"), ("POST", "/v1/tokens"), ("DELETE", "/v1/tokens/x")):
        response = api.request(method, path)
        assert (response.status_code, response.json()["error"]) == (403, "tokens_not_in_use")
    assert api.get("/v1/studies", headers=_with("adm_whatever")).status_code == 200


def test_other_machines_are_served_once_there_is_an_admin(settings: Settings, engine: Engine) -> None:
    check_start(settings)
    public = replace(settings, host="0.0.0.0")
    assert public.tokens_required
    create_token(engine, name="r", scope=Scope.WRITE)
    create_token(engine, name="late", scope=Scope.ADMIN, lifetime=timedelta(0))
    revoke_token(engine, create_token(engine, name="gone", scope=Scope.ADMIN).id)
    with pytest.raises(SettingsError, match=r"no admin token yet.*admeta token create --scope admin"):
        check_start(public)
    create_token(engine, name="a", scope=Scope.ADMIN)
    check_start(public)


def test_websockets_are_closed(door: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), door.websocket_connect("/v1/events"):
        pass


def test_the_token_of_the_settings_is_an_admins(settings: Settings, engine: Engine) -> None:
    """A cluster's secret lets its operator in without a shell on the service's machine; once revoked it stays so."""
    public = replace(settings, host="0.0.0.0", admin_token="k" * 43)
    check_start(public)
    check_start(public)
    bearer = find_bearer(engine, "k" * 43)
    assert bearer is not None
    assert bearer.scope is Scope.ADMIN
    assert len(list_tokens(engine)) == 1
    revoke_token(engine, bearer.id)
    with pytest.raises(SettingsError, match="no admin token"):
        check_start(public)
    with pytest.raises(SettingsError, match=r"ADMETA_ADMIN_TOKEN_FILE: .*can be guessed"):
        check_start(replace(public, admin_token="short"))
