"""Runs over REST: lists, one run, its curve, and what it printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from search.records import AttemptStart, RunOutcome, RunRecord
from search.run_log import RunLog, log_file
from search.states import FailureKind, RunState, Stage
from service.api.studies import ATTEMPT, ENDED, OFFSET
from service.database import SqlStore
from tests.service.database.fill import complete, curve, definition, leased, run


@pytest.fixture
def store(api: TestClient) -> SqlStore:
    app = api.app
    assert isinstance(app, FastAPI)
    return SqlStore(app.state.engine)


@pytest.fixture
def runs(store: SqlStore) -> list[RunRecord]:
    """Complete, diverged and running trials of one search, a confirm run of the first."""
    lease, (search, other) = leased(store, definition())
    diverged = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="loss is nan")
    return [
        run(store, lease, search, 0, complete(0.9), points=curve(0.5, 0.9)),
        run(store, lease, search, 1, diverged),
        run(store, lease, search, 2, None),
        run(store, lease, other, 0, complete(0.95)),
        run(store, lease, search, 0, complete(0.8), stage=Stage.CONFIRM, seed=1),
    ]


def _ids(api: TestClient, query: str) -> list[int]:
    page = api.get(f"/v1/studies/digits/runs?{query}")
    assert page.status_code == 200, page.text
    return [item["id"] for item in page.json()["items"]]


def test_lists(api: TestClient, runs: list[RunRecord]) -> None:
    ids = [record.id for record in runs]
    assert _ids(api, "") == ids
    assert _ids(api, "label=admetar&trial=0") == [ids[0], ids[4]]
    assert _ids(api, "stage=confirm") == [ids[4]]
    assert _ids(api, "state=FAIL&failure=diverged") == [ids[1]]
    assert _ids(api, "order=best") == [ids[3], ids[0], ids[4], ids[2], ids[1]]
    for order in ("id", "best"):
        seen: list[int] = []
        cursor = ""
        while cursor is not None:
            page = api.get(f"/v1/studies/digits/runs?order={order}&limit=2{cursor and '&cursor=' + cursor}").json()
            seen += [item["id"] for item in page["items"]]
            cursor = page["next_cursor"]
        assert seen == _ids(api, f"order={order}")
    assert api.get("/v1/studies/digits/runs?label=adam").json()["error"] == "trial_not_found"
    assert api.get("/v1/studies/digits/runs?cursor=x").json()["error"] == "invalid_cursor"


def test_one_run(api: TestClient, runs: list[RunRecord]) -> None:
    view = api.get(f"/v1/runs/{runs[1].id}").json()
    assert (view["study"], view["label"], view["trial"], view["logs"]) == ("digits", "admetar", 1, [])
    assert (view["failure"], view["error"], len(view["attempts"])) == ("diverged", "loss is nan", 1)
    assert view["attempts"][0]["environment"] is None
    assert [point["value"] for point in api.get(f"/v1/runs/{runs[0].id}/curve").json()] == [0.5, 0.9]
    for path in ("/v1/runs/99", "/v1/runs/99/curve", "/v1/runs/99/logs"):
        assert api.get(path).json()["error"] == "run_not_found"
    assert api.get("/v1/runs/0").status_code == 422


def test_where_an_attempt_ran_is_told_of_one_run(api: TestClient, store: SqlStore) -> None:
    lease, (search, _) = leased(store, definition())
    record = run(store, lease, search, 0, None)
    environment = {"device_name": "H", "versions": {"torch": "2"}, "placement": "4 a card", "gpus": 0.25}
    start = AttemptStart(node="n", pid=1, device="cuda:0", resumed_from_epoch=0, environment=environment)
    store.add_points(lease, record.id, [], start=start)
    assert api.get(f"/v1/runs/{record.id}").json()["attempts"][0]["environment"] == environment
    assert api.get("/v1/studies/digits/runs").json()["items"][0]["attempts"][0]["environment"] is None


@pytest.fixture
def log(api: TestClient, store: SqlStore, runs: list[RunRecord]) -> Iterator[RunLog]:
    """Of the run that goes on."""
    app: Any = api.app
    search = next(s for s in store.searches(api.get("/v1/studies/digits").json()["id"]) if s.label == "admetar")
    folder = Path(app.state.settings.storage) / search.study_id / "admetar" / "00002" / "search-100"
    log = RunLog(log_file(folder, 1))
    yield log
    log.close()


def test_a_log_is_followed_by_offsets(api: TestClient, runs: list[RunRecord], log: RunLog) -> None:
    address = f"/v1/runs/{runs[2].id}/logs"
    assert api.get(f"/v1/runs/{runs[2].id}").json()["logs"] == [1]
    log._write("one\ntoken adm_" + "x" * 40 + "\nhal")
    first = api.get(address)
    assert first.text == "one\ntoken adm_***\n"
    assert first.headers["content-type"] == "text/plain; charset=utf-8"
    assert [first.headers[name] for name in (ATTEMPT, OFFSET, ENDED)] == ["1", "55", "false"]
    log._write("f\n")
    assert api.get(address, params={"offset": 55}).text == "half\n"
    assert api.get(address, params={"tail": 1}).text == "half\n"
    assert api.get(address, params={"offset": 60, "attempt": 1}).text == ""
    assert api.get(address, params={"attempt": 2}).json()["error"] == "run_not_found"
    assert api.get(address, params={"offset": -1}).status_code == 422


def test_an_ended_attempt_without_a_log(api: TestClient, runs: list[RunRecord]) -> None:
    answer = api.get(f"/v1/runs/{runs[0].id}/logs")
    assert (answer.status_code, answer.json()["error"]) == (404, "run_not_found")
    assert "cannot be read: No such file" in answer.json()["detail"]
    waiting = api.get(f"/v1/runs/{runs[2].id}/logs")  # it may print yet
    assert (waiting.status_code, waiting.text, waiting.headers[ENDED]) == (200, "", "false")
