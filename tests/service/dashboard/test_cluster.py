"""The cluster's page: nodes, runs where they are, the queue, and a Ray that is away."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from admeta.client.models import NodeView
from service.app import create_app
from tests.service.fakes import ADDRESS, FakeSupervisor, settings_in


class Away(FakeSupervisor):
    def ray_status(self) -> str:
        return "unavailable: no answer"

    def nodes(self) -> list[NodeView]:
        raise AssertionError("not to be asked")


def test_nodes_runs_and_queue(pages: TestClient) -> None:
    text = pages.get("/cluster").text
    assert "1.5 of 8 CPUs in use" in text
    assert "0.25 of 1 GPUs in use" in text
    assert '/studies/running/trials/admetar/1">running / admetar / 1' in text
    assert ">waiting</a>" in text
    assert 'data-every="5"' in text


def test_a_ray_that_is_away_is_said(filled_home: Path) -> None:
    app = create_app(settings_in(filled_home), supervisor=Away())
    with TestClient(app, base_url=ADDRESS, headers={"Accept": "text/html"}) as client:
        text = client.get("/cluster").text
    assert "Ray: unavailable: no answer" in text
    assert "admeta doctor" in text
