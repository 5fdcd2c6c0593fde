"""What the supervisor does when Ray is lost, without Ray."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from search.coordinator import run_folder
from search.definition import StudyDefinition
from search.records import Lease
from search.states import RunState, Stage
from service import supervisor as module
from service.database.engine import make_engine
from service.database.store import SqlStore
from service.database.studies import create_study, request_cancel, request_pause
from service.settings import Settings
from service.supervisor import Driver, Supervisor
from tests.service.fakes import definition


class FakeCluster:
    """Ray as `service.cluster` tells of it."""

    def __init__(self) -> None:
        self.connected = False
        self.fault: str | None = None
        self.node_dead = False
        self.calls: list[str] = []

    def join(self, _: Settings) -> None:
        self.calls.append("join")
        self.connected, self.fault = True, None

    def leave(self, _: Settings) -> None:
        self.calls.append("leave")
        self.connected = False

    def control_is_lost(self) -> str | None:
        return self.fault

    def node_is_lost(self, _: Settings) -> bool:
        return self.node_dead


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    ray = SimpleNamespace(
        is_initialized=lambda: fake.connected, wait=lambda answers, timeout: ([], answers), get_actor=lambda *_, **__: 0
    )
    monkeypatch.setattr(module, "cluster", fake)
    monkeypatch.setattr(module, "ray", ray)
    monkeypatch.setattr(module, "RAY_CHECK_S", 0.0)
    monkeypatch.setattr(module, "TICK_S", 0.01)
    monkeypatch.setattr(module.actor, "find", lambda _: object())  # another's driver: none is launched here
    return fake


@pytest.fixture
def supervisor(settings: Settings, cluster: FakeCluster) -> Iterator[Supervisor]:
    del cluster
    supervisor = Supervisor(settings)
    supervisor.start()
    yield supervisor
    supervisor.stop()


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.01)


def test_a_lost_control_service_is_left_and_joined_anew(supervisor: Supervisor, cluster: FakeCluster) -> None:
    wait_until(lambda: supervisor.ray_status() == "ok", "ok")
    cluster.fault = "Ray's control service at 127.0.0.1:1 does not answer"
    wait_until(lambda: cluster.calls == ["join", "leave", "join"], "joined anew")
    wait_until(lambda: supervisor.ray_status() == "ok", "ok again")
    assert not supervisor.needs_new_process()


def test_a_lost_embedded_node_needs_a_new_process_and_frees_the_studies(
    settings: Settings, supervisor: Supervisor, cluster: FakeCluster
) -> None:
    engine = make_engine(settings.database_url)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))
    lease = SqlStore(engine).acquire_lease(study.id, owner="lost", ttl_s=3600)
    assert isinstance(lease, Lease)
    wait_until(lambda: supervisor.ray_status() == "ok", "ok")
    supervisor._drivers[study.id] = Driver(actor=None, answer=None, lease=lease)
    cluster.node_dead = True
    wait_until(supervisor.needs_new_process, "in need of a new process")
    supervisor.stop()
    assert cluster.calls == ["join"]  # to leave would end the process
    assert "node has died" in supervisor.ray_status()
    assert SqlStore(engine).acquire_lease(study.id, owner="next", ttl_s=1) is not None
    engine.dispose()


def test_a_cancelled_study_that_nobody_drives_is_closed_and_cleared_up(
    settings: Settings, supervisor: Supervisor
) -> None:
    engine = make_engine(settings.database_url)
    store = SqlStore(engine)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))
    lease = store.acquire_lease(study.id, owner="driver", ttl_s=3600)
    assert isinstance(lease, Lease)
    search = store.searches(study.id)[0]
    run = store.create_run(lease, search.id, trial_number=0, stage=Stage.SEARCH, seed=0, params={"lr": 0.1})
    store.start_attempt(lease, run.id)
    folder = Path(settings.storage) / run_folder(study.id, search.label, run)
    folder.mkdir(parents=True)
    for name in ("epoch-000001.pt", "best.pt", "attempt-1.log"):
        (folder / name).write_bytes(b"x")
    request_pause(engine, study.id)
    store.release_lease(lease)
    request_cancel(engine, study.id)
    wait_until(lambda: {path.name for path in folder.iterdir()} == {"attempt-1.log"}, "cleared up")
    assert store.runs(study.id)[0].state is RunState.FAIL
    engine.dispose()
