"""The client against canned answers: what it sends, what it raises, what it repeats."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.client import AdmetaClient, ClientError
from service.models import StudyView

STUDY: dict[str, Any] = {
    "id": "0123456789ab",
    "name": "first",
    "task": "digits",
    "model": "convnet",
    "state": "QUEUED",
    "reason": None,
    "metric": "val_accuracy",
    "direction": "maximize",
    "priority": 0,
    "created_at": "2026-01-01T00:00:00Z",
    "started_at": None,
    "finished_at": None,
    "searches": [],
}


def client_of(handler: Callable[[httpx.Request], httpx.Response], **options: Any) -> AdmetaClient:
    return AdmetaClient("http://service", transport=httpx.MockTransport(handler), **options)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.client.time.sleep", lambda _: None)


def test_submit_says_whether_the_study_is_new() -> None:
    statuses = iter([201, 200])
    with client_of(lambda _: httpx.Response(next(statuses), json=STUDY)) as client:
        assert client.submit({"name": "first"}).created
        again = client.submit({"name": "first"})
    assert not again.created
    assert again.study.name == "first"


def test_nan_reaches_the_service_which_names_the_field() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        assert b"NaN" in request.content
        field = {"field": "budget.target", "value": "nan", "rule": "must be finite"}
        body = {"error": "invalid_definition", "detail": "d", "hint": "h", "fields": [field]}
        return httpx.Response(422, json=body)

    with client_of(refuse) as client, pytest.raises(ClientError) as caught:
        client.submit({"budget": {"target": float("nan")}})
    error = caught.value
    assert (error.status, error.error, error.detail, error.hint) == (422, "invalid_definition", "d", "h")
    assert error.fields[0].field == "budget.target"


def test_token_and_names_are_sent_as_they_must_be() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer t"
        assert request.url.raw_path == b"/v1/studies/a%2Fb%3Fc%20%C3%A4"
        return httpx.Response(200, json=STUDY)

    with client_of(answer, token="t") as client:
        client.study("a/b?c ä")


def test_pages_are_followed_up_to_the_limit() -> None:
    asked: list[tuple[str | None, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        cursor, limit = request.url.params.get("cursor"), request.url.params["limit"]
        asked.append((cursor, limit))
        start = int(cursor or 0)
        end = min(start + int(limit), 250)
        items = [{**STUDY, "name": f"s{i}"} for i in range(start, end)]
        return httpx.Response(200, json={"items": items, "next_cursor": str(end) if end < 250 else None})

    with client_of(answer) as client:
        assert len(list(client.studies())) == 250
        assert asked == [(None, "100"), ("100", "100"), ("200", "100")]
        asked.clear()
        assert len(list(client.studies(limit=130))) == 130
        assert asked == [(None, "100"), ("100", "30")]


def test_a_broken_connection_is_tried_again() -> None:
    failures = iter([httpx.ConnectError("refused"), httpx.RemoteProtocolError("cut"), None])

    def answer(_: httpx.Request) -> httpx.Response:
        failure = next(failures)
        if failure is not None:
            raise failure
        return httpx.Response(200, json=STUDY)

    with client_of(answer) as client:
        assert client.study("first").name == "first"


def test_a_service_that_stays_away_is_told_with_the_way_out() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    with client_of(refuse) as client, pytest.raises(ClientError) as caught:
        client.tasks()
    assert caught.value.status is None
    assert "http://service" in caught.value.detail
    assert "admeta serve" in caught.value.hint


def test_503_is_tried_again_and_then_told() -> None:
    calls: list[int] = []

    def away(_: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(503, json={"error": "database_unavailable", "detail": "d", "hint": "h"})

    with client_of(away) as client, pytest.raises(ClientError) as caught:
        client.study("x")
    assert (len(calls), caught.value.status, caught.value.error) == (3, 503, "database_unavailable")


@pytest.mark.parametrize(("status", "body"), [(200, "<html>"), (200, "{}"), (404, "nginx"), (500, "")])
def test_answers_of_something_else(status: int, body: str) -> None:
    with client_of(lambda _: httpx.Response(status, text=body)) as client, pytest.raises(ClientError) as caught:
        client.study("x")
    assert caught.value.error == "unexpected_answer"


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://[::1"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ClientError) as caught:
        AdmetaClient(url).health()
    assert caught.value.error == "unreachable"


def test_wait_follows_to_the_end() -> None:
    states = iter(["QUEUED", "RUNNING", "COMPLETED"])
    seen: list[StudyView] = []
    with client_of(lambda _: httpx.Response(200, json={**STUDY, "state": next(states)})) as client:
        assert client.wait("first", on_update=seen.append).state == "COMPLETED"
    assert [view.state for view in seen] == ["QUEUED", "RUNNING", "COMPLETED"]


def test_wait_gives_up_in_time() -> None:
    with (
        client_of(lambda _: httpx.Response(200, json={**STUDY, "state": "RUNNING"})) as client,
        pytest.raises(TimeoutError, match="still RUNNING"),
    ):
        client.wait("first", timeout_s=0)


def test_address_and_token_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMETA_URL", "http://elsewhere:9/")
    with AdmetaClient() as client:
        assert client.url == "http://elsewhere:9"


def test_the_client_loads_no_server_and_no_torch() -> None:
    code = (
        "import sys, json, service.client, search.definition;"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", code]))
    assert not {"torch", "ray", "optuna", "fastapi", "starlette", "sqlalchemy", "uvicorn"} & set(loaded)
