"""What follows a search goes on after kills of the driver and of the service: confirmation and sensitivity runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from admeta.client.models import StudyView
from tests.chaos.installation import Service
from tests.chaos.ledger import Expected, Snapshot, audit, look
from tests.chaos.processes import descendants, is_alive, kill, titled
from tests.chaos.studies import N_EPOCHS as QUIET_EPOCHS
from tests.chaos.studies import SEEDS, quiet_study
from tests.chaos.studies import STEPS_PER_EPOCH as QUIET_STEPS
from tests.machine import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray]

N_EPOCHS, STEPS_PER_EPOCH = 4, 10
LEARNING_RATES = {"sgdm": 0.03, "near": 0.02, "slow": 0.001}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    with Service(home, database_url=f"sqlite:///{home / 'admeta.sqlite3'}") as service:
        yield service


def three(name: str) -> dict[str, Any]:
    """Two optimizers between which it stays open who is better, and one that is behind after a few seeds."""
    return quiet_study(
        name,
        task={
            "name": "synthetic",
            "model": "noisy_quadratic",
            "epochs": N_EPOCHS,
            "steps_per_epoch": STEPS_PER_EPOCH,
            "sleep_s": 0.1,
        },
        optimizers=[
            {
                "name": "adam" if label == "slow" else "sgdm",
                "label": label,
                "space": {"lr": {"type": "categorical", "choices": [lr]}},
            }
            for label, lr in LEARNING_RATES.items()
        ],
        sampler={"name": "grid"},
        budget={"trials_per_optimizer": 1},
        confirm={"seeds": [0, 1, 2], "until": "decided", "max_seeds": 8},
    )


def seeds_of(engine: Engine, study: str, *states: str) -> Counter[str]:
    """Confirm runs in one of these states, by label."""
    query = """SELECT s.label, r.state FROM admeta_runs r JOIN admeta_searches s ON s.id = r.search_id
        WHERE s.study_id = :study AND r.stage = 'confirm'"""
    with engine.connect() as connection:
        return Counter(label for label, state in connection.execute(text(query), {"study": study}) if state in states)


def wait_for_a_further_seed(engine: Engine, study: str, *, n: int) -> None:
    """Until the optimizer in question has n finished confirm runs and another one runs."""
    wait_until(
        lambda: seeds_of(engine, study, "COMPLETE")["sgdm"] >= n and bool(seeds_of(engine, study, "RUNNING")),
        timeout_s=PATIENCE_S,
        what=f"{n} seeds are confirmed",
        poll_s=0.05,
    )


def wait_for_the_reason(service: Service, study: str) -> str:
    """What the study waits for, once it says so."""
    with service.client as client:
        told: list[str] = []

        def is_told() -> bool:
            told[:] = [client.study(study).reason or ""]
            return told[0].startswith("confirmation, look ")

        wait_until(is_told, what="the study tells what it waits for", poll_s=0.05)
    return told[0]


def verdicts(service: Service, study: StudyView) -> list[dict[str, Any]]:
    with service.client as client:
        return [pair.model_dump() for pair in client.comparison(study.id).pairs]


def test_kills_change_no_decision(service: Service, engine: Engine) -> None:
    with service.client as client:
        undisturbed = client.submit(three("undisturbed")).wait(timeout_s=PATIENCE_S)
        disturbed = client.submit(three("disturbed")).study
    wanted = seeds_of(engine, undisturbed.id, "COMPLETE")
    assert wanted["sgdm"] == wanted["near"] == 8
    assert 3 <= wanted["slow"] < 8

    wait_for_a_further_seed(engine, disturbed.id, n=3)
    assert "train up to" in wait_for_the_reason(service, disturbed.id)
    workers = titled(descendants(service.pid), "ray::TrialWorker")
    (driver,) = titled(descendants(service.pid), "ray::DriverActor")
    kill(driver)
    wait_until(lambda: not any(map(is_alive, workers)), what="the driver's workers are gone")
    first = look(engine, disturbed.id, storage=service.home / "checkpoints", killed=None)
    n_confirmed = seeds_of(engine, disturbed.id, "COMPLETE")["sgdm"]
    assert 3 <= n_confirmed < 8

    wait_for_a_further_seed(engine, disturbed.id, n=n_confirmed + 1)
    assert "train up to" in wait_for_the_reason(service, disturbed.id)
    service.kill()
    second = look(engine, disturbed.id, storage=service.home / "checkpoints", killed=None)
    assert seeds_of(engine, disturbed.id, "COMPLETE")["sgdm"] < 8
    service.start()
    assert "train up to" in wait_for_the_reason(service, disturbed.id)
    service.completed(disturbed.id)

    expected = Expected(n_trials=1, n_confirm_runs=wanted, n_epochs=N_EPOCHS, steps_per_epoch=STEPS_PER_EPOCH)
    outcome = audit(engine, disturbed.id, expected=expected, snapshots=[first, second])
    assert outcome.faults == []
    assert outcome.values == audit(engine, undisturbed.id, expected=expected, snapshots=[]).values
    assert verdicts(service, disturbed) == verdicts(service, undisturbed)


def test_kills_lose_no_sensitivity_run_and_make_none_twice(service: Service, engine: Engine) -> None:
    n_runs = 6
    study = quiet_study("varied", budget={"trials_per_optimizer": 2}, sensitivity={"points": 7, "span": 4})
    snapshots: list[Snapshot] = []

    def finished(study_id: str) -> int:
        query = """SELECT count(*) FROM admeta_runs r JOIN admeta_searches s ON s.id = r.search_id
            WHERE s.study_id = :study AND r.stage = 'sensitivity' AND r.state = 'COMPLETE'"""
        with engine.connect() as connection:
            return int(connection.execute(text(query), {"study": study_id}).scalar_one())

    with service.client as client:
        submitted = client.submit(study).study
    for n, kills_driver in ((1, True), (4, False)):
        wait_until(lambda n=n: finished(submitted.id) >= n, what=f"{n} of them are finished")
        workers = titled(descendants(service.pid), "ray::TrialWorker")
        if kills_driver:
            (driver,) = titled(descendants(service.pid), "ray::DriverActor")
            kill(driver)
            wait_until(lambda workers=workers: not any(map(is_alive, workers)), what="they are gone")
        else:
            service.kill()
        snapshots.append(look(engine, submitted.id, storage=service.home / "checkpoints", killed=None))
    assert n <= finished(submitted.id) < 2 * n_runs
    service.start()
    service.completed(submitted.id)
    with service.client as client:
        view = client.sensitivity(submitted.id)
    assert [len(curve.points) for curve in view.curves] == [8, 8]  # and the other trial, since lr alone is searched
    expected = Expected(
        n_trials=2, n_confirm_runs=len(SEEDS), n_epochs=QUIET_EPOCHS, steps_per_epoch=QUIET_STEPS,
        n_sensitivity_runs=n_runs,
    )  # fmt: skip
    assert audit(engine, submitted.id, expected=expected, snapshots=snapshots).faults == []
