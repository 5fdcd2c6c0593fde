"""Signing in with a browser: the cookie, where it leads, and what others cannot do with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from search.states import Scope
from service.app import create_app
from service.database import make_engine
from service.database.tokens import create_token, revoke_token
from service.settings import Settings
from tests.service.fakes import FakeSupervisor, definition

PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
ORIGIN = {"Origin": "https://search.example.org"}


@pytest.fixture
def browser(settings: Settings) -> Iterator[TestClient]:
    app = create_app(replace(settings, require_token=True), supervisor=FakeSupervisor())
    with TestClient(app, base_url=ORIGIN["Origin"], follow_redirects=False) as client:
        yield client


@pytest.fixture
def token(settings: Settings) -> Iterator[tuple[str, str]]:
    """A token with its id."""
    engine = make_engine(settings.database_url)
    made = create_token(engine, name="me", scope=Scope.WRITE)
    yield made.token, made.id
    engine.dispose()


def _sign_in(browser: TestClient, token: str, target: str = "/v1/studies") -> int:
    return browser.post("/signin", data={"token": token, "next": target}, headers=ORIGIN).status_code


def test_from_a_page_to_it(browser: TestClient, token: tuple[str, str]) -> None:
    asked = browser.get('/studies/a"><b>', headers=PAGE)
    assert asked.status_code == 401
    assert asked.headers["content-type"].startswith("text/html")
    assert 'action="/signin"' in asked.text
    assert "<b>" not in asked.text
    assert 'value="/studies/a?b=1&amp;c=2"' in browser.get("/studies/a?b=1&c=2", headers=PAGE).text
    assert "form-action 'self'" in asked.headers["Content-Security-Policy"]
    answer = browser.post("/signin", data={"token": f" {token[0]} ", "next": "/v1/studies?limit=5"}, headers=ORIGIN)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/v1/studies?limit=5")
    cookie = answer.headers["Set-Cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=lax", "Secure", "Path=/"))
    assert "Max-Age" not in cookie
    assert browser.get("/v1/studies").status_code == 200
    assert browser.post("/v1/studies", json=definition(), headers=ORIGIN).status_code == 201


def test_wrong_tokens_and_too_many_of_them(browser: TestClient) -> None:
    answer = browser.post("/signin", data={"token": "adm_wrong", "next": "/x"}, headers=ORIGIN)
    assert answer.status_code == 401
    assert "unknown, revoked or expired" in answer.text
    assert 'value="/x"' in answer.text
    assert "Set-Cookie" not in answer.headers
    assert [_sign_in(browser, f"adm_{n}") for n in range(11)] == [401] * 9 + [429] * 2
    assert browser.post("/signin", content=b"\xff\x00=%zz", headers=ORIGIN).status_code == 429


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example", "/\\evil.example", "x", "", "/a\r\nX: y"])
def test_it_leads_nowhere_else(browser: TestClient, token: tuple[str, str], target: str) -> None:
    answer = browser.post("/signin", data={"token": token[0], "next": target}, headers=ORIGIN)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")


def test_other_pages_cannot_use_it(browser: TestClient, token: tuple[str, str]) -> None:
    assert _sign_in(browser, token[0]) == 303
    foreign = browser.post("/v1/studies", json=definition(), headers={"Origin": "https://evil.example"})
    assert (foreign.status_code, foreign.json()["error"]) == (403, "foreign_origin")


def test_signing_out_and_revoking(browser: TestClient, token: tuple[str, str], settings: Settings) -> None:
    assert _sign_in(browser, token[0]) == 303
    assert browser.post("/signout", headers=ORIGIN).headers["Location"] == "/signin"
    assert browser.get("/v1/studies").status_code == 401
    assert _sign_in(browser, token[0]) == 303
    engine = make_engine(settings.database_url)
    revoke_token(engine, token[1])
    engine.dispose()
    assert browser.get("/v1/studies").status_code == 401


def test_programs_get_json(browser: TestClient) -> None:
    for accept in ("*/*", "application/json", "application/json, text/html", ""):
        assert browser.get("/v1/studies", headers={"Accept": accept}).json()["error"] == "token_missing"


def test_an_open_service_needs_no_sign_in(api: TestClient) -> None:
    assert api.get("/signin", follow_redirects=False).headers["Location"] == "/"
