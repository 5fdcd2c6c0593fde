"""Idempotency-Key: what is sent again gets the first answer and takes no second effect."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import text

from search.states import Scope
from service.api.requests import REPLAYED
from service.app import create_app
from service.database import idempotency, tokens
from service.settings import Settings, load
from tests.service.fakes import ADDRESS, FakeSupervisor, definition

KEY = "5b7a4d9e-2f63-4a56-9df5-6a8f2c6f0a11"


def _submit(api: TestClient, key: str, body: dict[str, Any], path: str = "/v1/studies") -> Response:
    return api.post(path, json=body, headers={"Idempotency-Key": key})


def _n_studies(api: TestClient) -> int:
    return len(api.get("/v1/studies").json()["items"])


def test_the_same_request_again_gets_the_same_answer(api: TestClient) -> None:
    first = _submit(api, KEY, definition())
    assert (first.status_code, REPLAYED in first.headers) == (201, False)
    reordered = dict(reversed(definition().items()))
    for again in (_submit(api, KEY, definition()), _submit(api, f'"{KEY}"', reordered)):
        assert (again.status_code, again.headers[REPLAYED]) == (201, "true")
        assert again.json() == first.json()
        assert again.headers["Location"] == first.headers["Location"]
    api.post("/v1/studies/first/cancel")
    api.delete("/v1/studies/first")
    assert _submit(api, KEY, definition()).json() == first.json()  # a repetition, not a new wish
    assert _n_studies(api) == 0
    assert _submit(api, "another", definition()).status_code == 201


def test_a_study_that_was_there_answers_200_each_time(api: TestClient) -> None:
    api.post("/v1/studies", json=definition())
    assert [_submit(api, KEY, definition()).status_code for _ in range(2)] == [200, 200]


def test_a_key_belongs_to_one_request(api: TestClient) -> None:
    _submit(api, KEY, definition())
    other = _submit(api, KEY, definition(max_failures=0))
    assert (other.status_code, other.json()["error"]) == (422, "idempotency_key_reused")
    assert KEY in other.json()["detail"]
    clone = _submit(api, KEY, {"name": "second"}, "/v1/studies/first/clone")
    assert clone.json()["error"] == "idempotency_key_reused"


def test_clones(api: TestClient) -> None:
    _submit(api, "a", definition())
    first, again = (_submit(api, KEY, {"name": "second"}, "/v1/studies/first/clone") for _ in range(2))
    assert (first.status_code, again.status_code, again.headers[REPLAYED]) == (201, 201, "true")
    assert again.json() == first.json()


def test_extensions(api: TestClient) -> None:
    _submit(api, "a", definition())
    api.post("/v1/studies/first/cancel")
    first = _submit(api, KEY, {"trials": 6}, "/v1/studies/first/extend")
    api.post("/v1/studies/first/cancel")
    again = _submit(api, KEY, {"trials": 6}, "/v1/studies/first/extend")
    assert (first.status_code, again.status_code, again.headers[REPLAYED]) == (200, 200, "true")
    assert again.json() == first.json()
    assert api.get("/v1/studies/first").json()["state"] == "CANCELLED"


def test_refusals_are_not_kept(api: TestClient) -> None:
    api.post("/v1/studies", json=definition())
    assert _submit(api, KEY, definition(max_failures=0)).status_code == 409
    assert _submit(api, KEY, definition("second")).status_code == 201


@pytest.mark.parametrize("key", ["", " ", "a\tb", "x" * 256, '"', 'a"b'])
def test_what_is_no_key(api: TestClient, key: str) -> None:
    answer = _submit(api, key, definition())
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_idempotency_key")
    assert _n_studies(api) == 0


def test_keys_are_forgotten(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    _submit(api, KEY, definition())
    engine = api.app.state.engine  # type: ignore[attr-defined]
    idempotency.forget(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM admeta_answers")).scalar() == 1
    monkeypatch.setattr(idempotency, "KEEP", timedelta(0))
    assert _submit(api, KEY, definition()).status_code == 200  # a new request, whose study exists
    idempotency.forget(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM admeta_answers")).scalar() == 0


def test_many_at_once_make_one(api: TestClient) -> None:
    barrier, answers = threading.Barrier(6), []

    def submit() -> None:
        barrier.wait()
        answers.append(_submit(api, KEY, definition()))

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(answer.status_code, answer.json()["id"]) for answer in answers} == {(201, answers[0].json()["id"])}
    assert sum(REPLAYED not in answer.headers for answer in answers) == 1


def test_tokens(settings: Settings) -> None:
    guarded = load({}, home=settings.home, port=0, require_token=True)
    with TestClient(create_app(guarded, supervisor=FakeSupervisor()), base_url=ADDRESS) as api:
        engine = api.app.state.engine  # type: ignore[attr-defined]
        admins = [tokens.create_token(engine, name=f"a{i}", scope=Scope.ADMIN).token for i in range(2)]
        api.headers["Authorization"] = f"Bearer {admins[0]}"
        first, again = (_submit(api, KEY, {"name": "ci"}, "/v1/tokens") for _ in range(2))
        assert (first.status_code, again.status_code, again.headers[REPLAYED]) == (201, 409, "true")
        assert again.json()["error"] == "token_made_before"
        assert f"(id {first.json()['id']})" in again.json()["detail"]
        assert first.json()["token"] not in again.text
        with engine.connect() as connection:
            kept = connection.execute(text("SELECT * FROM admeta_answers")).one()
        assert not any(first.json()["token"] in str(value) or KEY in str(value) for value in kept)
        assert _submit(api, "short", {"name": "ci"}, "/v1/tokens").status_code == 201
        api.headers["Authorization"] = f"Bearer {admins[1]}"  # keys of two callers never meet
        assert _submit(api, KEY, {"name": "other"}, "/v1/tokens").status_code == 201
        assert len(api.get("/v1/tokens").json()) == 5
