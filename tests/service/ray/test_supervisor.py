"""What the supervisor does when Ray is lost, without Ray."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError, RuntimeEnvSetupError
from sqlalchemy import Engine, make_url, update
from sqlalchemy.exc import IntegrityError, OperationalError

from search.definition import StudyDefinition
from search.records import Lease, run_folder
from search.states import RunState, Stage, StudyState
from service.database.engine import make_engine, sqlite_path
from service.database.errors import DatabaseUnavailableError
from service.database.models import Study
from service.database.queries import get_study_view
from service.database.store import SqlStore
from service.database.studies import create_study, request_cancel, request_pause
from service.ray import supervisor as module
from service.ray.node import ClockWatch, JoinError
from service.ray.supervisor import Driver, Supervisor
from service.settings import Settings
from tasks.text.config import TRANSFORMERS
from tests.machine import wait_until
from tests.service.fakes import definition


class FakeCluster:
    """Ray as `service.ray.cluster` tells of it."""

    def __init__(self) -> None:
        self.connected = False
        self.fault: str | None = None
        self.node_dead = False
        self.cards = False
        self.libraries: Sequence[str] = ()
        self.calls: list[str] = []

    def ClockWatch(self) -> ClockWatch:
        return ClockWatch(wall=lambda: self.wall_s, monotonic=lambda: 0.0)

    def join(self, _: Settings) -> None:
        self.calls.append("join")
        self.connected, self.fault = True, None

    def leave(self, _: Settings) -> None:
        self.calls.append("leave")
        self.connected = False

    def has_cards(self) -> bool:
        return self.cards

    def refill_spare(self, _: Settings, *, libraries: Sequence[str]) -> list[Any]:
        self.calls.append("refill_spare")
        self.libraries = libraries
        return []

    def control_is_lost(self) -> str | None:
        return self.fault

    def node_is_lost(self, _: Settings) -> bool:
        return self.node_dead

    def end_embedded(self) -> None:
        self.calls.append("end_embedded")

    def end_own_node(self) -> None:
        self.calls.append("end_own_node")


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
    monkeypatch.setattr(module, "find_driver", lambda _: object())  # another's driver: none is launched here
    monkeypatch.setattr(module, "has_started", lambda _: True)
    return fake


@pytest.fixture
def supervisor(settings: Settings, cluster: FakeCluster) -> Iterator[Supervisor]:
    del cluster
    supervisor = Supervisor(settings)
    supervisor.start()
    yield supervisor
    supervisor.stop()


def test_a_lost_control_service_is_left_and_joined_anew(supervisor: Supervisor, cluster: FakeCluster) -> None:
    wait_until(lambda: supervisor.ray_status() == "ok", what="Ray is there")
    cluster.fault = "Ray's control service at 127.0.0.1:1 does not answer"
    wait_until(lambda: cluster.calls == ["join", "leave", "join"], what="Ray is joined anew")
    wait_until(lambda: supervisor.ray_status() == "ok", what="Ray is there again")
    assert not supervisor.needs_new_process()


@pytest.mark.parametrize("fault", ["node has died", "clock was set back by 3600 s"])
def test_what_ray_cannot_recover_from_needs_a_new_process_and_frees_the_studies(
    settings: Settings, supervisor: Supervisor, cluster: FakeCluster, fault: str
) -> None:
    """After a step back of the clock Ray's timers stand still for as long, and no worker would start."""
    engine = make_engine(settings.database_url)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))
    lease = SqlStore(engine).acquire_lease(study.id, owner="lost", ttl_s=60)
    assert isinstance(lease, Lease)
    wait_until(lambda: supervisor.ray_status() == "ok", what="Ray is there")
    supervisor._drivers[study.id] = Driver(actor=None, ready=None, answer=None, lease=lease)
    if "clock" in fault:
        wall_s = [0.0]
        supervisor._clock = ClockWatch(wall=lambda: wall_s[0], monotonic=lambda: 0.0)
        wall_s[0] = -3600.0
    else:
        cluster.node_dead = True
    wait_until(supervisor.needs_new_process, what="it needs a new process")
    supervisor.stop()
    assert cluster.calls == ["join", "end_own_node", "end_embedded"]  # to leave would end the process
    assert fault in supervisor.ray_status()
    assert SqlStore(engine).acquire_lease(study.id, owner="next", ttl_s=1) is not None
    engine.dispose()


@pytest.mark.parametrize("cards", [True, False])
def test_with_cards_processes_for_the_next_study_are_made_while_one_runs(
    settings: Settings, cluster: FakeCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch, cards: bool
) -> None:
    """They import what this one's task needs. Without cards they would take CPUs from the trials."""
    method = SimpleNamespace(remote=lambda *_, **__: object())
    driver = SimpleNamespace(run=method, __ray_ready__=method)
    monkeypatch.setattr(module, "REFILL_EVERY_S", 0.1)
    monkeypatch.setattr(module, "FIRST_REFILL_S", 0.1)
    monkeypatch.setattr(module, "find_driver", lambda _: None)
    monkeypatch.setattr(module, "launch_driver", lambda *_, **__: driver)
    cluster.cards = cards
    task = {"name": "cola", "model": "tiny", "epochs": 1}
    create_study(engine, StudyDefinition.model_validate(definition(task=task, objective={"metric": "val_mcc"})))
    supervisor = Supervisor(settings)
    supervisor.start()
    wait_until(lambda: bool(supervisor._drivers), what="its driver is started")
    time.sleep(0.35)
    supervisor.stop()
    assert cluster.calls.count("refill_spare") in ((1, 2, 3) if cards else (0,))
    assert cluster.libraries == (TRANSFORMERS if cards else ())


def test_a_study_that_a_later_rule_refuses_stops_no_other(
    settings: Settings, cluster: FakeCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver fails and says why; what it left when it ended is closed."""
    method = SimpleNamespace(remote=lambda *_, **__: object())
    driver = SimpleNamespace(run=method, __ray_ready__=method)
    monkeypatch.setattr(module, "find_driver", lambda _: None)
    monkeypatch.setattr(module, "launch_driver", lambda *_, **__: driver)
    ended, waiting, other = (
        create_study(engine, StudyDefinition.model_validate(definition(name)))[0].id for name in ("a", "b", "c")
    )
    store = SqlStore(engine)
    lease = store.acquire_lease(ended, owner="gone", ttl_s=60)
    assert lease is not None
    run = store.create_run(
        lease, store.searches(ended)[0].id, trial_number=0, stage=Stage.SEARCH, seed=0, params={"lr": 0.1}
    )
    store.release_lease(lease)
    request_cancel(engine, ended)
    with engine.begin() as connection:
        for study in (ended, waiting):
            connection.execute(
                update(Study).where(Study.id == study).values(definition={"name": "x"}, definition_sha256=study)
            )
    supervisor = Supervisor(replace(settings, code=settings.home))
    supervisor.start()
    wait_until(lambda: {waiting, other} <= supervisor._drivers.keys(), what="the others have drivers")
    (left,) = store.runs(ended)
    assert (left.id, left.state, left.error) == (run.id, RunState.FAIL, "the study is CANCELLED")
    supervisor.stop()


def test_a_study_that_waits_for_ray_says_so(
    settings: Settings, cluster: FakeCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where it is submitted meanwhile: the thread that starts Ray looks at no study."""
    release, joining = threading.Event(), threading.Event()

    def join(_: Settings) -> None:
        joining.set()
        if not release.wait(30):
            raise JoinError("nothing answers.", hint="h")
        cluster.connected = True

    monkeypatch.setattr(cluster, "join", join)
    before, _ = create_study(engine, StudyDefinition.model_validate(definition("before")))
    supervisor = Supervisor(settings)
    supervisor.start()
    assert joining.wait(30)
    after, _ = create_study(engine, StudyDefinition.model_validate(definition("after")))
    supervisor.notice(after.id)
    for study in (before, after):
        assert get_study_view(engine, study.id).reason == "waits for Ray, which starts"
    release.set()
    wait_until(lambda: supervisor.ray_status() == "ok", what="ok")
    supervisor.stop()


def test_a_study_that_waits_says_for_what(
    settings: Settings, cluster: FakeCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was RUNNING; its driver's start removes the reason."""
    supervisor = Supervisor(replace(settings, quotas=replace(settings.quotas, max_running=1)))
    supervisor.start()
    other = Lease(study_id="another", owner="x", ttl_s=9)
    supervisor._drivers["another"] = Driver(actor=None, ready=None, answer=None, lease=other)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))
    reason = "waits for another study to end: the service runs 1 at a time (--max-running)"
    wait_until(lambda: get_study_view(engine, study.id).reason == reason, what="the study says why it waits")
    supervisor.stop()
    store = SqlStore(engine)
    lease = store.acquire_lease(study.id, owner="driver", ttl_s=60)
    assert lease is not None
    store.set_study_state(lease, StudyState.RUNNING)
    assert get_study_view(engine, study.id).reason is None


def test_a_cancelled_study_that_nobody_drives_is_closed_and_cleared_up(
    settings: Settings, supervisor: Supervisor
) -> None:
    engine = make_engine(settings.database_url)
    store = SqlStore(engine)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))
    lease = store.acquire_lease(study.id, owner="driver", ttl_s=60)
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
    wait_until(lambda: {path.name for path in folder.iterdir()} == {"attempt-1.log"}, what="the folder is cleared up")
    assert store.runs(study.id)[0].state is RunState.FAIL
    engine.dispose()


class Ended:
    """Ray in which every driver has ended, with an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.killed: list[Any] = []

    def wait(self, answers: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return answers, []

    def get(self, _: Any) -> None:
        raise self.error

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


def failed(error: Exception) -> RayTaskError:
    """What Ray tells of a driver that raised this."""
    return RayTaskError("run", "Traceback ...", error)


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = make_engine(settings.database_url)
    yield engine
    engine.dispose()


def fail_driver(
    supervisor: Supervisor, study_id: str, error: Exception, monkeypatch: pytest.MonkeyPatch, *, actor: Any = None
) -> list[Any]:
    """Let the supervisor see a driver that has failed; returns the actors that it kills."""
    ended = Ended(error)
    monkeypatch.setattr(module, "ray", ended)
    lease = Lease(study_id=study_id, owner="driver", ttl_s=15)
    supervisor._drivers[study_id] = Driver(actor=actor, ready=None, answer=None, lease=lease)
    supervisor._look_after(study_id)
    return ended.killed


def test_a_drivers_end_is_counted_once_though_the_database_is_away(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(settings)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))

    def away(*_: Any) -> None:
        raise DatabaseUnavailableError("away", hint="wait")

    monkeypatch.setattr(supervisor._store, "release_lease", away)
    error = failed(RuntimeError("broken"))
    with pytest.raises(DatabaseUnavailableError):
        fail_driver(supervisor, study.id, error, monkeypatch)
    assert supervisor._drivers == {}
    monkeypatch.setattr(module, "study_progress", away)
    with pytest.raises(DatabaseUnavailableError):
        fail_driver(supervisor, study.id, error, monkeypatch)
    assert supervisor._drivers == {}
    assert supervisor._crashes[study.id].n == 1


@pytest.mark.parametrize(
    "error",
    [
        DatabaseUnavailableError("The database could not be used for 900 s: the disk is full.", hint="Make room."),
        OSError(errno.EMFILE, "Too many open files"),
        RuntimeError("cannot start: [Errno 24] Too many open files"),
        OperationalError("SELECT 1", {}, psycopg.errors.AdminShutdown()),
    ],
)
def test_a_failure_that_passes_is_not_counted(
    settings: Settings, engine: Engine, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(settings)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))
    for _ in range(2 * module.MAX_CRASHES):
        fail_driver(supervisor, study.id, failed(error), monkeypatch)
        assert supervisor._why_waiting(study.id) is not None  # the next one waits a little
    assert supervisor._crashes[study.id].n == 0
    assert get_study_view(engine, study.id).state == StudyState.QUEUED


def test_each_driver_has_its_own_time_to_start_and_to_take_the_lease(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was killed for its silence did not take the next ones' time: the study was FAILED in seconds."""
    killed: list[str] = []
    clock = [0.0]
    monkeypatch.setattr(module, "ray", SimpleNamespace(kill=killed.append))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    supervisor = Supervisor(settings)

    def look(driver: str, *, after_s: float, has_started: bool = True) -> list[str]:
        clock[0] += after_s
        killed.clear()
        supervisor._check_silent("study", driver, has_started=has_started)
        return list(killed)

    assert look("first", after_s=0) == []
    assert look("first", after_s=module.SILENCE_S + 1) == ["first"]
    assert look("first", after_s=1) == ["first"]  # it may take a moment to end
    assert look("second", after_s=1, has_started=False) == []
    assert look("second", after_s=module.START_S - 1, has_started=False) == []
    assert look("second", after_s=2) == []  # it has started: now it must take the lease
    assert look("second", after_s=2 * module.SILENCE_S - 1) == []  # twice as long as the one before
    assert look("second", after_s=2) == ["second"]
    assert look("third", after_s=1, has_started=False) == []
    assert look("third", after_s=4 * module.START_S - 1, has_started=False) == []
    assert look("third", after_s=2, has_started=False) == ["third"]


def test_a_driver_that_was_killed_for_its_silence_is_no_failure_of_the_study(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine it may only have needed longer, and five such studies' drivers made the study FAILED."""
    supervisor = Supervisor(settings)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))
    for n in range(2 * module.MAX_CRASHES):
        supervisor._silences[study.id] = module.Silence(f"driver {n}", True, 0.0, is_killed=True)
        fail_driver(supervisor, study.id, ActorDiedError(), monkeypatch, actor=f"driver {n}")
        assert supervisor._why_waiting(study.id) is not None
    assert get_study_view(engine, study.id).state == StudyState.QUEUED
    supervisor._silences[study.id] = module.Silence("another", True, 0.0, is_killed=True)
    for _ in range(module.MAX_CRASHES):
        fail_driver(supervisor, study.id, ActorDiedError(), monkeypatch, actor="driver")
    assert get_study_view(engine, study.id).state == StudyState.FAILED


def test_a_driver_that_was_cut_off_works_on(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to its process broke: that it has died is known once Ray says so."""
    asked: list[str] = []

    def ask() -> str:
        asked.append("whether it has ended")
        return "end"

    actor = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=ask))
    supervisor = Supervisor(settings)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))
    for n in (1, 2):
        error = ActorUnavailableError("reset by peer", None)
        assert fail_driver(supervisor, study.id, error, monkeypatch, actor=actor) == []
        driver = supervisor._drivers[study.id]
        assert (len(asked), driver.answer, driver.was_cut_off, supervisor._crashes) == (n, "end", True, {})
    assert fail_driver(supervisor, study.id, ActorDiedError(), monkeypatch, actor=actor) == [actor]
    assert (supervisor._drivers, supervisor._crashes[study.id].n) == ({}, 1)


def test_a_study_waits_while_ray_cannot_prepare_its_environment(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package index may be away, or too slow for Ray's ten minutes."""
    supervisor = Supervisor(settings)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))
    error = RuntimeEnvSetupError("pip timed out")
    for of_the_driver_or_its_check in (error, failed(error)) * module.MAX_CRASHES:
        fail_driver(supervisor, study.id, of_the_driver_or_its_check, monkeypatch)
    assert "cannot prepare the runtime environment" in str(supervisor._why_waiting(study.id))
    assert "pip timed out" in str(supervisor._why_waiting(study.id))
    assert get_study_view(engine, study.id).state == StudyState.QUEUED


def test_a_driver_whose_result_was_read_is_ended(
    settings: Settings, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself it waits until a busy machine has surely sent the result, and a resumed study would wait too."""
    killed: list[str] = []
    ray = SimpleNamespace(wait=lambda asked, timeout: (asked, []), get=lambda _: StudyState.PAUSED, kill=killed.append)
    monkeypatch.setattr(module, "ray", ray)
    supervisor = Supervisor(settings)
    lease = Lease(study_id="study", owner="driver", ttl_s=15)
    supervisor._drivers["study"] = Driver(actor="driver", ready=None, answer=None, lease=lease)
    supervisor._look_after("study")
    assert (supervisor._drivers, killed, cluster.calls) == ({}, ["driver"], ["refill_spare"])


def test_another_services_driver_may_take_as_long_to_start(
    settings: Settings, cluster: FakeCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed after the time in which one that has started must take the lease."""
    clock, killed = [0.0], list[str]()
    monkeypatch.setattr(module, "ray", SimpleNamespace(kill=killed.append))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(module, "find_driver", lambda _: "other")
    monkeypatch.setattr(module, "has_started", lambda _: False)
    supervisor = Supervisor(settings)
    for clock[0] in (0.0, module.SILENCE_S + 1, module.START_S - 1):
        supervisor._launch("study")
    assert killed == []
    clock[0] = module.START_S + 1
    supervisor._launch("study")
    assert killed == ["other"]


def test_waiting_processes_are_not_asked_for_while_those_of_the_last_time_start(
    settings: Settings, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that takes longer for them than REFILL_EVERY_S, ever more of them started at once."""
    started: list[str] = []
    monkeypatch.setattr(module, "ray", SimpleNamespace(wait=lambda asked, **_: (started, asked[len(started) :])))

    def refill(_: Settings, **__: Any) -> list[str]:
        cluster.calls.append("refill")
        return ["a", "b"]

    monkeypatch.setattr(cluster, "refill_spare", refill)
    supervisor = Supervisor(settings)
    for started[:] in ([], [], ["a"]):
        supervisor._refill()
    assert cluster.calls == ["refill"]
    started[:] = ["a", "b"]
    supervisor._refill()
    assert cluster.calls == ["refill", "refill"]


def test_the_reason_of_a_failed_study_has_no_sql(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(settings)
    study, _ = create_study(engine, StudyDefinition.model_validate(definition()))
    error = IntegrityError("INSERT INTO admeta_runs", {"secret": 1}, psycopg.errors.UniqueViolation("duplicate key"))
    for _ in range(module.MAX_CRASHES):
        fail_driver(supervisor, study.id, failed(error), monkeypatch)
    view = get_study_view(engine, study.id)
    assert view.state == StudyState.FAILED
    assert "failed 5 times without progress, the last time with IntegrityError: duplicate key;" in str(view.reason)
    assert "INSERT" not in str(view.reason)


def test_a_deleted_database_file_stops_the_service(settings: Settings, supervisor: Supervisor) -> None:
    wait_until(lambda: supervisor.ray_status() == "ok", what="Ray is there")
    assert supervisor.fault() is None
    sqlite_path(make_url(settings.database_url)).unlink()
    wait_until(lambda: supervisor.fault() is not None, what="the fault is told")
    assert "was deleted or replaced while it was in use" in supervisor.fault().detail
