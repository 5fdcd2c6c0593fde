"""The cluster over REST and from the command line."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from admeta.cli.app import run
from service.settings import Settings
from tests.service.fakes import FakeSupervisor, definition, live


def test_nodes_and_queue(api: TestClient, supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    api.post("/v1/studies", json=definition())
    cluster = api.get("/v1/cluster").json()
    assert (cluster["ray"], cluster["runs"]) == ("ok", [])
    assert [(node["host"], node["gpus_free"]) for node in cluster["nodes"]] == [("one", 0.75)]
    assert [study["name"] for study in cluster["queue"]] == ["first"]
    monkeypatch.setattr(supervisor, "ray_status", lambda: "starting")
    assert api.get("/v1/cluster").json() == {**cluster, "ray": "starting", "nodes": []}


def test_command(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    with live(settings) as url:
        assert run(["cluster", "--url", url]) == 0
    output = capsys.readouterr().out
    assert "Ray is ok; 0 runs are training, 0 studies are waiting" in output
    assert "6.5/8" in output
