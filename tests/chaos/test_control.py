"""Pause, resume, cancel, retries and takeovers of studies that a real service runs on a real Ray."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from admeta.client.errors import ClientError
from admeta.client.models import StudyView, TrialView
from tests.chaos.faulty import install
from tests.chaos.installation import Service
from tests.chaos.ledger import Expected, audit, look
from tests.chaos.processes import descendants, is_alive, kill, send, title, titled
from tests.chaos.studies import quiet_study
from tests.machine import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
"""Of the code under test, which the installed package may not be."""

pytestmark = [pytest.mark.slow, pytest.mark.ray]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    path = install(tmp_path_factory.mktemp("faulty"))
    url = f"sqlite:///{home / 'admeta.sqlite3'}"
    with Service(home, database_url=url, environment={"PYTHONPATH": f"{path}:{ROOT}"}) as service:
        yield service


def small(name: str, **changes: Any) -> dict[str, Any]:
    """Two optimizers, four trials each, no confirm runs."""
    return quiet_study(name, **{"budget": {"trials_per_optimizer": 4}, "confirm": {"top_k": 0}, **changes})


def faulty(name: str, faults: dict[str, str], **changes: Any) -> dict[str, Any]:
    """A trial for each learning rate that a fault is told for."""
    space = {"lr": {"type": "categorical", "choices": [float(lr) for lr in faults]}}
    return small(
        name,
        task={"name": "faulty", "model": "idle", "epochs": 4, "faults": faults},
        optimizers=[{"name": "sgdm", "space": space}],
        sampler={"name": "grid"},
        budget={"trials_per_optimizer": len(faults)},
        max_failures=1,
        **changes,
    )


@pytest.fixture(scope="module")
def failures(service: Service) -> dict[float, TrialView]:
    """A study in which every trial fails in a way of its own: the trials by learning rate."""
    faults = {
        "0.01": "raise_once",
        "0.02": "exit_once",
        "0.03": "raise_always",
        "0.04": "exit_always",
        "0.05": "diverge",
    }
    with service.client as client:
        view = client.submit(faulty("failures", faults)).wait(timeout_s=PATIENCE_S)
        assert (view.state, view.reason) == ("COMPLETED", None)
        return {trial.params["lr"]: client.trial(view.id, "sgdm", trial.number) for trial in client.trials(view.id)}


def wait_for(service: Service, study: str, condition: Callable[[StudyView], bool], *, what: str) -> StudyView:
    """The study once the condition holds."""
    seen: list[StudyView] = []
    with service.client as client:

        def holds() -> bool:
            seen[:] = [client.study(study)]
            return condition(seen[0])

        wait_until(holds, what=what, poll_s=0.1)
    return seen[0]


def rows(engine: Engine, query: str, study: str) -> list[dict[str, Any]]:
    source = """FROM admeta_attempts a JOIN admeta_runs r ON r.id = a.run_id
        JOIN admeta_searches s ON s.id = r.search_id WHERE s.study_id = :study ORDER BY r.id, a.attempt"""
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(text(f"{query} {source}"), {"study": study}).mappings()]


def test_an_exception_is_retried_from_the_last_checkpoint(failures: dict[float, TrialView]) -> None:
    first, second = failures[0.01].runs[0].attempts
    assert (first.state, first.error) == ("FAIL", "OSError: the disk has a bad day")
    assert (second.state, second.resumed_from_epoch) == ("COMPLETE", 2)
    assert [point.epoch for point in failures[0.01].curve or []] == [1, 2, 3, 4]


def test_a_dead_worker_is_replaced(failures: dict[float, TrialView]) -> None:
    first, second = failures[0.02].runs[0].attempts
    assert first.state == "FAIL"
    assert str(first.error).startswith("the worker died: ")
    assert (second.state, second.resumed_from_epoch) == ("COMPLETE", 2)


@pytest.mark.parametrize(("lr", "failure"), [(0.03, "error"), (0.04, "lost")])
def test_out_of_retries_the_trial_fails_with_the_reason(
    failures: dict[float, TrialView], lr: float, failure: str
) -> None:
    run = failures[lr].runs[0]
    assert (run.state, run.failure, len(run.attempts)) == ("FAIL", failure, 2)
    assert run.error == run.attempts[-1].error is not None


def test_divergence_is_not_retried(failures: dict[float, TrialView]) -> None:
    run = failures[0.05].runs[0]
    assert (run.state, run.failure, len(run.attempts)) == ("FAIL", "diverged", 1)


def test_a_driver_that_cannot_work_fails_its_study_with_the_reason(service: Service) -> None:
    study = {**faulty("broken", {"0.01": "diverge"}), "task": {"name": "broken", "model": "idle", "epochs": 4}}
    with service.client as client:
        view = client.submit(study).wait(timeout_s=PATIENCE_S)
    assert view.state == "FAILED"
    assert "BrokenTask was never finished" in str(view.reason)


def test_pause_leaves_checkpoints_and_resume_goes_on_from_them(service: Service, engine: Engine) -> None:
    study = small("paused", sleep_s=0.4, checkpoint_every_s=3600)
    with service.client as client:
        view = client.submit(study).study
        wait_for(service, view.id, lambda s: sum(x.n_complete for x in s.searches) >= 3, what="three trials are done")
        assert client.pause(view.id).state == "PAUSED"
        wait_until(lambda: not _holder(engine, view.id), what="the driver has let go")
        wait_until(lambda: not _workers(service), what="no worker is left")
        halted = look(engine, view.id, storage=service.home / "checkpoints", killed=set())
        after = rows(engine, "SELECT r.state, a.state AS attempt, r.id, r.epoch, a.attempt AS number", view.id)
        assert {row["state"] for row in after} <= {"COMPLETE", "WAITING"}
        interrupted = {row["id"]: row["epoch"] for row in after if row["attempt"] == "INTERRUPTED"}
        assert interrupted
        client.resume(view.id)
        service.completed(view.id)
    attempts = rows(engine, "SELECT r.id, a.attempt, a.resumed_from_epoch AS start", view.id)
    assert {row["id"]: row["start"] for row in attempts if row["attempt"] == 2} == interrupted
    assert audit(engine, view.id, expected=_whole(), snapshots=[halted]).faults == []


def test_cancel_in_a_long_step_leaves_no_process(service: Service, engine: Engine) -> None:
    with service.client as client:
        view = client.submit(faulty("cancelled", {"0.06": "long_step"})).study
        pid_file = service.home / "data" / "faults-0.06" / "pids"
        wait_until(pid_file.exists, what="the data loaders work")
        pids = [int(pid) for pid in pid_file.read_text().split()]
        assert all(map(is_alive, pids))
        assert client.cancel(view.id).state == "CANCELLED"
        wait_until(lambda: not any(map(is_alive, pids)), what="the worker and its children are gone")
        wait_until(lambda: not _holder(engine, view.id), what="the driver has let go")
        trial = client.trial(view.id, "sgdm", 0)
    assert (trial.state, trial.runs[0].failure, trial.runs[0].error) == ("FAIL", "cancelled", "the study was cancelled")


def test_one_trial_is_cancelled_in_a_long_step_and_the_study_goes_on(service: Service) -> None:
    study = faulty("one-less", {"0.07": "long_step", "0.08": "raise_once"})
    with service.client as client:
        view = client.submit(study).study
        pid_file = service.home / "data" / "faults-0.07" / "pids"
        wait_until(pid_file.exists, what="the data loaders work")
        pids = [int(pid) for pid in pid_file.read_text().split()]
        hanging = next(trial for trial in client.trials(view.id) if trial.params["lr"] == 0.07)
        cancelled = client.cancel_trial(view.id, "sgdm", hanging.number)
        assert (cancelled.state, cancelled.runs[0].failure) == ("FAIL", "cancelled")
        wait_until(lambda: not any(map(is_alive, pids)), what="the worker and its children are gone")
        service.completed(view.id)
        states = {trial.params["lr"]: trial.state for trial in client.trials(view.id)}
        with pytest.raises(ClientError, match="has no waiting or running run") as refused:
            client.cancel_trial(view.id, "sgdm", hanging.number)
    assert states == {0.07: "FAIL", 0.08: "COMPLETE"}
    assert refused.value.status == 409


def test_kills_of_driver_and_service_in_an_extended_study_lose_nothing(service: Service, engine: Engine) -> None:
    """kill -9 of its driver, then of the service with all its processes; what had a result is not touched."""
    study = small("extended", sleep_s=0.1, confirm={"top_k": 1, "seeds": [0, 1]}, budget={"trials_per_optimizer": 3})
    storage = service.home / "checkpoints"
    with service.client as client:
        view = client.submit(study).wait(timeout_s=PATIENCE_S)
        before = {row.label: row.trial for row in client.comparison(view.id).rows}
        snapshots = [look(engine, view.id, storage=storage, killed=set())]
        added = {"name": "sgd", "space": study["optimizers"][1]["space"]}
        client.extend(view.id, trials=6, seeds=3, optimizers=[added])
        wait_for(service, view.id, lambda s: sum(x.n_complete for x in s.searches) >= 8, what="further trials are done")
        workers = _workers(service)
        for pid in _drivers(service):
            kill(pid)
        wait_until(lambda: not any(map(is_alive, workers)), what="the driver's workers are gone")
        snapshots.append(look(engine, view.id, storage=storage, killed=None))
        wait_for(service, view.id, lambda s: sum(x.n_complete for x in s.searches) >= 13, what="the next driver works")
        service.kill()
        snapshots.append(look(engine, view.id, storage=storage, killed=None))
        service.start()
        service.completed(view.id)
        after = {row.label: row.trial for row in client.comparison(view.id).rows}
        assert {row.validation.n for row in client.comparison(view.id).rows} == {3}
    n_confirm_runs = {label: 3 if before.get(label, trial) == trial else 5 for label, trial in after.items()}
    expected = Expected(n_trials=6, n_confirm_runs=n_confirm_runs, n_epochs=5, steps_per_epoch=2)
    assert audit(engine, view.id, expected=expected, snapshots=snapshots).faults == []


def test_a_driver_that_was_frozen_past_its_lease_stops_without_writing(
    service: Service, engine: Engine, tmp_path: Path
) -> None:
    """Two services on one database: the second takes the study over, and no attempt is made twice."""
    with service.client as client, Service(tmp_path / "other", database_url=service.database_url) as other:
        view = client.submit(small("frozen", sleep_s=1.0)).study
        wait_for(service, view.id, lambda s: sum(x.n_complete for x in s.searches) >= 2, what="two trials are done")
        holder = _holder(engine, view.id)
        frozen = [pid for owner in (service, other) for pid in _drivers(owner)]
        for pid in frozen:
            send(pid, signal.SIGSTOP)
        wait_until(lambda: _holder(engine, view.id) not in (None, holder), what="another driver has it")
        time.sleep(1.0)
        for pid in frozen:
            send(pid, signal.SIGCONT)
        n_before = len([r for r in rows(engine, "SELECT a.owner", view.id) if r["owner"] == holder])
        wait_until(lambda: not any(map(is_alive, frozen)), what="the old driver has ended")
        service.completed(view.id)
    assert len([r for r in rows(engine, "SELECT a.owner", view.id) if r["owner"] == holder]) == n_before
    assert audit(engine, view.id, expected=_whole(), snapshots=[]).faults == []


def test_the_embedded_rays_node_dies_and_the_service_begins_anew_in_place(service: Service, engine: Engine) -> None:
    """Ray would end the process; the same pid and port serve on, and the study is done."""
    with service.client as client:
        view = client.submit(small("node-lost")).study
        wait_for(service, view.id, lambda s: sum(x.n_complete for x in s.searches) >= 2, what="two trials are done")
        before = descendants(service.pid)
        (raylet,) = [pid for pid in before if title(pid).split(" ")[0].endswith("/raylet")]
        kill(raylet)
        wait_until(lambda: not _living_workers(before), what="the node's workers are gone")
        snapshot = look(engine, view.id, storage=service.home / "checkpoints", killed=None)
        service.completed(view.id)
    assert is_alive(service.pid)
    assert not [title(pid) for pid in before if is_alive(pid)]
    assert audit(engine, view.id, expected=_whole(), snapshots=[snapshot]).faults == []


def _living_workers(pids: set[int]) -> list[int]:
    return [pid for pid in titled(pids, "ray::") if "TrialWorker" in title(pid) or "DriverActor" in title(pid)]


def _freeze(pids: list[int], engine: Engine) -> None:
    """Stop processes at a moment when none of them holds SQLite's lock, which would keep all others from the file."""
    while True:
        for pid in pids:
            send(pid, signal.SIGSTOP)
        with closing(sqlite3.connect(str(engine.url.database), timeout=5.0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                for pid in pids:
                    send(pid, signal.SIGCONT)
            else:
                connection.execute("ROLLBACK")
                return


def _whole() -> Expected:
    return Expected(n_trials=4, n_confirm_runs=0, n_epochs=5, steps_per_epoch=2)


def _holder(engine: Engine, study: str) -> str | None:
    with engine.connect() as connection:
        query = text("SELECT lease_owner FROM admeta_studies WHERE id = :study")
        found: str | None = connection.execute(query, {"study": study}).scalar_one()
        return found


def _workers(service: Service) -> list[int]:
    return [pid for pid in titled(descendants(service.pid), "ray::") if "TrialWorker" in title(pid)]


def _drivers(service: Service) -> list[int]:
    return titled(descendants(service.pid), "ray::DriverActor")
