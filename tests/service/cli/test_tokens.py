"""Tokens by command: on the database before any service, through a service as an admin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from admeta.cli.app import run
from search.states import Scope
from service.database.engine import make_single_engine
from service.database.tokens import find_bearer
from service.settings import Settings
from tests.service.fakes import live


@pytest.fixture
def home(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ADMETA_HOME", str(settings.home))
    return settings


@pytest.fixture
def closed(home: Settings) -> Iterator[str]:
    with live(replace(home, require_token=True)) as url:
        yield url


def test_the_first_token(home: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "create", "me", "--scope", "admin", "--expires", "90d"]) == 0
    shown = capsys.readouterr()
    token = shown.out.strip()
    assert token.startswith("adm_")
    assert "cannot be shown again" in shown.err
    engine = make_single_engine(home.database_url)
    bearer = find_bearer(engine, token)
    assert bearer is not None
    assert (bearer.name, bearer.scope) == ("me", Scope.ADMIN)

    assert run(["token", "list"]) == 0
    listed = capsys.readouterr().out
    assert "me" in listed
    assert token not in listed
    assert run(["token", "revoke", bearer.id]) == 0
    assert "revoked" in capsys.readouterr().out
    assert find_bearer(engine, token) is None
    assert run(["token", "revoke", "nope"]) == 1
    assert "no token has the id 'nope'" in capsys.readouterr().err
    engine.dispose()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["x", "--expires", "soon"], "90d"), (["x", "--scope", "root"], "root"), ([""], "100 characters")],
)
def test_wrong_usage(home: Settings, capsys: pytest.CaptureFixture[str], arguments: list[str], part: str) -> None:
    assert run(["token", "create", *arguments]) == 2
    assert part in capsys.readouterr().err


def test_through_a_service(closed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "list", "--url", closed]) == 1
    assert "ADMETA_TOKEN" in capsys.readouterr().err
    run(["token", "create", "admin", "--scope", "admin"])
    monkeypatch.setenv("ADMETA_TOKEN", capsys.readouterr().out.strip())
    assert run(["token", "create", "ci", "--url", closed, "--expires", "2h", "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["name"], made["scope"], made["active"]) == ("ci", "read", True)
    assert run(["token", "list", "--url", closed, "-o", "json"]) == 0
    assert [t["name"] for t in json.loads(capsys.readouterr().out)] == ["ci", "admin"]
    assert run(["token", "revoke", made["id"], "--url", closed]) == 0
    monkeypatch.setenv("ADMETA_TOKEN", made["token"])
    assert run(["list", "--url", closed]) == 1
