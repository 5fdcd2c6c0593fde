"""A cohort through the product: its trainer or driver is killed, its study paused and resumed, a trial cancelled."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from admeta.client import Client
from admeta.client.models import StudyRunView
from search.places import OUT_OF_COHORT
from tests.chaos.installation import Service
from tests.chaos.ledger import Expected, Snapshot, audit, look
from tests.chaos.processes import descendants, is_alive, kill, titled
from tests.chaos.studies import quiet_study
from tests.machine import wait_until
from tests.search.test_shared_trainer import slow, two_that_become_nan
from tests.tasks.engine.models import Reading, import_path

pytestmark = [pytest.mark.slow, pytest.mark.ray]

ROOT = Path(__file__).parents[2]
"""Of the code under test, which the installed package may not be."""
N_EPOCHS, STEPS_PER_EPOCH, N_TRIALS = 40, 18, 6


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    environment = {"ADMETA_ALLOW_IMPORTS": "tests", "PYTHONPATH": str(ROOT)}
    with Service(home, database_url=f"sqlite:///{home / 'admeta.sqlite3'}", environment=environment) as service:
        yield service


def training(client: Client, study: str) -> list[StudyRunView]:
    """The runs that a trainer trains now and that have told an epoch of this attempt."""
    ids = [run.id for trial in client.trials(study) for run in trial.runs if run.state == "RUNNING"]
    return [run for run in map(client.run, ids) if run.attempts and _trainer(run) is not None]


def _trainer(run: StudyRunView) -> int | None:
    """The process that trains the run, of its last attempt; None while that has told nothing."""
    last = run.attempts[-1]
    environment = last.environment or {}
    pid: int | None = environment["cohort"]["pid"] if "cohort" in environment else None
    return pid if last.state == "RUNNING" else None


def slow_study(hurry: Path) -> dict[str, Any]:
    """Six trials in cohorts of two, slow until the file exists."""
    return quiet_study(
        "cohort",
        task={"name": "digits", "model": "mlp", "epochs": N_EPOCHS},
        optimizers=[slow(hurry)],
        budget={"trials_per_optimizer": N_TRIALS},
        confirm={"top_k": 0},
        resources={"cpus": 1, "gpus": 0, "cohort": 2},
        max_concurrent_trials=2,
    )


def test_nothing_is_lost_and_nothing_repeated(service: Service, engine: Engine, tmp_path: Path) -> None:
    hurry = tmp_path / "hurry"
    snapshots: list[Snapshot] = []

    def note() -> None:
        """What has ended. Where the others resume from is checked below: their workers may save once more."""
        seen = look(engine, view.id, storage=service.home / "checkpoints", killed=None)
        snapshots.append(replace(seen, interrupted={}))

    with service.client as client:
        view = client.submit(slow_study(hurry)).study

        wait_until(lambda: any(trial.state == "COMPLETE" for trial in client.trials(view.id)), what="a trial is done")
        wait_until(lambda: len(training(client, view.id)) == 2, what="two trials train")
        before = training(client, view.id)
        [trainer] = {_trainer(run) for run in before}
        assert trainer is not None
        os.kill(trainer, signal.SIGKILL)
        note()

        def train_elsewhere() -> bool:
            trainers = [_trainer(run) for run in training(client, view.id)]
            return len(trainers) == 2 and trainer not in trainers

        wait_until(train_elsewhere, what="two trials train again, in another process")

        assert client.pause(view.id).state == "PAUSED"
        wait_until(lambda: _n_leased(engine) == 0, what="the driver has let go")
        note()
        states = {run.state for trial in client.trials(view.id) for run in trial.runs}
        assert states <= {"COMPLETE", "WAITING"}
        trainers = titled(descendants(service.pid), "ray::SharedTrainer")
        wait_until(lambda: not any(map(is_alive, trainers)), what="the trainer without runs has ended")
        client.resume(view.id)

        wait_until(lambda: bool(training(client, view.id)), what="a trial trains")
        cancelled = training(client, view.id)[0]
        trial = next(one for one in client.trials(view.id) if cancelled.id in [run.id for run in one.runs])
        assert client.cancel_trial(view.id, "late", trial.number).state == "FAIL"
        hurry.touch()
        note()
        service.completed(view.id)
        ended = all_runs(client, view.id)

    expected = Expected(n_trials=N_TRIALS, n_confirm_runs=0, n_epochs=N_EPOCHS, steps_per_epoch=STEPS_PER_EPOCH)
    verdict = audit(engine, view.id, expected=expected, snapshots=snapshots)
    assert verdict.stuck == verdict.repeated == verdict.resumes == []
    # Of the cancelled trial the ledger says that it is missing, and that it has a part of a curve, with Optuna too.
    assert len(verdict.lost) == 1
    assert f"{N_TRIALS - 1} of {N_TRIALS} search runs" in verdict.lost[0]
    assert "cancelled on request" in verdict.lost[0]
    assert len(verdict.curves) == 2
    assert all(line.startswith((f"run {cancelled.id} has", "Optuna's trial")) for line in verdict.curves)
    outcomes = {run.id: (run.state, run.failure) for run in ended}
    assert outcomes.pop(cancelled.id) == ("FAIL", "cancelled")
    assert set(outcomes.values()) == {("COMPLETE", None)}
    lost = [attempt for run in ended for attempt in run.attempts if "cohort died" in str(attempt.error)]
    assert 1 <= len(lost) <= 2  # a run may have ended as its trainer was killed
    resumed = [attempt.resumed_from_epoch for run in ended for attempt in run.attempts[1:]]
    assert resumed
    assert min(epoch for epoch in resumed if epoch is not None) > 0


def test_a_study_whose_model_cannot_be_stacked_says_so(service: Service, engine: Engine) -> None:
    """In its reason while it runs, and in the records of the attempt that was refused and of the process after it."""
    study = quiet_study(
        "apart",
        task={"name": "digits", "model": import_path(Reading), "epochs": 2},
        optimizers=[{"name": "sgdm"}],
        budget={"trials_per_optimizer": 2},
        confirm={"top_k": 0},
        resources={"cpus": 1, "gpus": "auto", "cohort": 2},
        max_failures=0,
    )
    with service.client as client:
        view = client.submit(study).study
        told: set[str | None] = set()

        def is_over() -> bool:
            seen = client.study(view.id)
            told.add(seen.reason)
            return seen.state not in ("QUEUED", "RUNNING")

        wait_until(is_over, what="the study is over")
        service.completed(view.id)
        runs = [client.run(run.id) for trial in client.trials(view.id) for run in trial.runs]
    expected = Expected(n_trials=2, n_confirm_runs=0, n_epochs=2, steps_per_epoch=STEPS_PER_EPOCH)
    assert audit(engine, view.id, expected=expected, snapshots=[]).faults == []
    words = "no cohort: the model cannot be stacked (vmap"
    assert any(words in (reason or "") for reason in told)
    assert any(len(run.attempts) == 2 for run in runs)
    for run in runs:
        *refused, last = run.attempts
        assert all("this does not count as a failure" in str(attempt.error) for attempt in refused)
        assert last.environment is not None
        assert last.environment["placement"].startswith(words)
        assert "cohort" not in last.environment


def test_a_run_that_left_its_cohort_stays_out_when_its_driver_is_killed(
    service: Service, engine: Engine, tmp_path: Path
) -> None:
    """Both trials are NaN in the same step, and train on by themselves: one diverges there, the other completes."""
    flag, hurry = tmp_path / "diverge", tmp_path / "hurry"
    fields = two_that_become_nan(flag, hurry=hurry, epochs=N_EPOCHS)
    study = quiet_study("left", **fields, resources={"cpus": 1, "gpus": 0, "cohort": 2})
    with service.client as client:
        view = client.submit(study).study
        wait_until(lambda: len(training(client, view.id)) == 2, what="two trials train in a cohort")
        flag.touch()
        by_setting = sorted(client.trials(view.id), key=lambda trial: int(trial.params["diverges"]))
        unharmed, diverging = (trial.runs[0].id for trial in by_setting)
        wait_until(lambda: trains_alone(client, unharmed), what="the good trial trains in a process of its own")
        kill_driver(service)
        hurry.touch()
        service.completed(view.id)
        good, bad = client.run(unharmed), client.run(diverging)
    assert (good.state, bad.state, bad.failure) == ("COMPLETE", "FAIL", "diverged")
    assert good.epoch == N_EPOCHS
    in_cohort, *later = [attempt for attempt in good.attempts if attempt.environment is not None]
    assert in_cohort.environment is not None
    assert in_cohort.environment["cohort"]["slots"] == 2
    assert len(later) >= 2
    for attempt in later:
        assert attempt.environment is not None
        assert attempt.environment["placement"] == OUT_OF_COHORT
        assert "cohort" not in attempt.environment
        assert attempt.resumed_from_epoch


def all_runs(client: Client, study: str) -> list[StudyRunView]:
    return [client.run(run.id) for trial in client.trials(study) for run in trial.runs]


def trains_alone(client: Client, run: int) -> bool:
    """Whether the run trains in a process of its own and has told an epoch of this attempt."""
    last = client.run(run).attempts[-1]
    return last.state == "RUNNING" and last.environment is not None and "cohort" not in last.environment


def kill_driver(service: Service) -> None:
    [driver] = titled(descendants(service.pid), "ray::DriverActor")
    kill(driver)


def _n_leased(engine: Engine) -> int:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT COUNT(*) FROM admeta_studies WHERE lease_owner IS NOT NULL"))
        return int(found.scalar_one())
