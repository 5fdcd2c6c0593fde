"""What the client rests on: a service that answers, is well, and lets one in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admeta.cli.doctor import Finding, can_serve, examine
from service.settings import Settings
from tests.service.fakes import live


def _service(url: str | None) -> Finding:
    return {finding.name: finding for finding in examine(url)}["service"]


def test_a_service_that_is_well(settings: Settings) -> None:
    with live(settings) as url:
        found = _service(url)
    assert not found.advice
    assert "database ok, Ray ok" in found.found


def test_none_is_well_unless_it_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admeta.client.exchange.DEFAULT_URL", "http://127.0.0.1:9")
    assert "admeta serve" in _service(None).found
    assert not _service(None).advice
    assert _service("http://127.0.0.1:9").advice
    monkeypatch.setenv("ADMETA_URL", "http://127.0.0.1:9")
    assert _service(None).advice


def test_one_that_asks_for_a_token(settings: Settings) -> None:
    with live(replace(settings, require_token=True)) as url:
        assert "ADMETA_TOKEN" in _service(url).advice


def test_one_of_another_version(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admeta.cli.doctor._version", lambda _package: "0.0.1")
    with live(settings) as url:
        assert "same version" in _service(url).advice


def test_a_service_can_run_here() -> None:
    assert can_serve()
