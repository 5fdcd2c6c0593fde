"""The product on a card: trials share it, one that has no room is tried again alone, a cancel gives memory back.

Each test takes less than a minute on an H200.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from admeta.client import Client
from admeta.client.models import StudyRunView
from benchmarks.side_by_side import measure_together
from benchmarks.time_to_answer import without_mps
from search.places import ALONE
from tasks.engine import sharing
from tasks.registry import parse_config
from tests.chaos.installation import Service
from tests.chaos.processes import descendants, is_alive, title, titled
from tests.chaos.studies import quiet_study
from tests.machine import wait_until
from tests.tasks.noise import write_noise

pytestmark = [
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA card: nvidia-smi was not found"),
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.ray,
]
log = logging.getLogger(__name__)

SGDM = {"name": "sgdm", "space": {"lr": {"type": "float", "low": 1e-2, "high": 1e-1, "log": True}}}
LARGE = {"name": "image_folder", "data_dir": "noise", "model": "resnet110", "batch_size": 1024, "epochs": 5}


@pytest.fixture(autouse=True)
def _no_service_stays() -> Iterator[None]:
    """Workers start NVIDIA's multi-process service; it would hold some memory of the card for the next test."""
    yield
    sharing.leave()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of noise, enough for one batch of 1,024 and a validation set."""
    folder = tmp_path_factory.mktemp("data")
    tints = {"dark": (0, 0, 0), "light": (40, 40, 40)}
    write_noise(folder / "noise", tints, n_train=600, n_test=30)
    return folder


@pytest.fixture(scope="module")
def alone_bytes(data_dir: Path) -> int:
    """Memory of the card that one trial of `LARGE` holds."""
    [alone] = measure_together(
        parse_config(LARGE), n_processes=1, optimizer="sgdm", params={"lr": 0.01}, data_dir=data_dir, seconds=0.1
    )
    return alone.memory_bytes


@contextmanager
def installed(home: Path, data: Path | None = None, *, one_process: bool = False) -> Iterator[tuple[Service, Client]]:
    """The service on this machine's own Ray, and its client.

    Args:
        one_process: NVIDIA's multi-process service cannot be started, so that one process trains the trials of a card.
    """
    environment = {} if data is None else {"ADMETA_DATA": str(data)}
    if one_process:
        environment |= without_mps(home / "bin")
    url = f"sqlite:///{home / 'admeta.sqlite3'}"
    with Service(home, database_url=url, environment=environment) as service, service.client as client:
        yield service, client


def runs_of(client: Client, study: str) -> list[StudyRunView]:
    """Every run of a study, its attempts with where and how they ran."""
    ids = [run.id for trial in client.trials(study) for run in trial.runs]
    return [client.run(run) for run in ids]


def used_mib() -> int:
    """Memory in use on the cards that the tests see, MiB."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={visible}")
    return sum(int(line) for line in subprocess.run(command, check=True, capture_output=True).stdout.split())


@contextmanager
def leaving(n_bytes: int) -> Iterator[None]:
    """Hold the card's memory but for so much."""
    code = (
        "import sys, torch; free = torch.cuda.mem_get_info()[0];"
        f"ballast = torch.empty(max(0, free - {n_bytes}), dtype=torch.uint8, device='cuda');"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.kill()
        holder.communicate()


def train_crowded(
    home: Path,
    data: Path,
    free_bytes: float,
    *,
    n_trials: int = 2,
    max_failures: int = 0,
    one_process: bool = False,
    **fields: Any,
) -> list[StudyRunView]:
    """The runs of a study of `LARGE` that completed on a card with so much free memory; `fields` are more of it."""
    study = quiet_study(
        task=LARGE,
        optimizers=[SGDM],
        budget={"trials_per_optimizer": n_trials},
        confirm={"top_k": 0},
        max_failures=max_failures,
        **fields,
    )
    with leaving(int(free_bytes)), installed(home, data, one_process=one_process) as (service, client):
        submitted = client.submit(study).study
        service.completed(submitted.id, timeout_s=240)
        return runs_of(client, submitted.id)


def greatest_overlap(runs: list[StudyRunView]) -> int:
    """How many attempts ran at once, at most."""
    marks: list[tuple[Any, int]] = []
    for attempt in (attempt for run in runs for attempt in run.attempts):
        marks += [(attempt.started_at, 1), (attempt.finished_at, -1)]
    level = peak = 0
    for _, change in sorted(marks):
        level += change
        peak = max(peak, level)
    return peak


def test_the_service_packs_trials_on_the_card(tmp_path: Path) -> None:
    """`gpus: auto` begins with two on the card, four on a large one; each attempt's record says how many and why."""
    study = quiet_study(
        "packed",
        task={"name": "digits", "model": "convnet", "epochs": 30},
        optimizers=[SGDM],
        budget={"trials_per_optimizer": 8},
        resources={"cpus": 1, "gpus": "auto"},
        max_concurrent_trials=4,
    )
    with installed(tmp_path) as (service, client):
        submitted = client.submit(study).study
        service.completed(submitted.id, timeout_s=300)
        runs = runs_of(client, submitted.id)
    assert all(run.value is not None and run.value > 0.9 for run in runs)
    records = [attempt.environment for run in runs for attempt in run.attempts]
    assert records[0] is not None
    begins = {0.5: "2 trials a card, growing", 0.25: "4 trials a card, as CPUs and the study allow"}
    assert records[0]["placement"] == begins[records[0]["gpus"]]
    for record in records:
        assert record is not None
        assert record["device"] == "cuda:0"
        assert record["step"] == "graph: 1 shape(s)"
        n_at_once = round(1 / record["gpus"])
        assert record["placement"].startswith(f"{n_at_once} trial")
        assert n_at_once in (1, 2, 4)
        assert shutil.which(sharing.CONTROL) is None or "sharing" not in record
    together = greatest_overlap([run for run in runs if run.stage == "search"])
    assert 2 <= together <= 4
    last = records[-1] or {}
    log.warning("%s: %s; %d at once", last["device_name"], last["placement"], together)


def test_a_trial_without_room_is_tried_again_alone(tmp_path: Path, data_dir: Path, alone_bytes: int) -> None:
    """The card has room for one and a half: of two trials at once at least one fails, and both complete at last."""
    runs = train_crowded(
        tmp_path, data_dir, 1.5 * alone_bytes, name="crowded", resources={"cpus": 1, "gpus": 0.5}, max_failures=2
    )
    assert [run.state for run in runs] == ["COMPLETE", "COMPLETE"]
    retried = [run for run in runs if len(run.attempts) > 1]
    assert retried
    for run in retried:
        first, second = run.attempts
        assert "out of memory on cuda" in str(first.error)
        assert "resources.gpus" in str(first.error)
        assert second.environment is not None
        assert (second.environment["gpus"], second.environment["placement"]) == (1.0, ALONE)
    log.warning("%d of 2 retried alone; %.1f GiB each: %s", len(retried), alone_bytes / 2**30, first.error)


@pytest.mark.parametrize("one_process", [False, True], ids=["processes", "one process"])
def test_with_auto_a_trial_without_room_has_not_failed(
    one_process: bool, tmp_path: Path, data_dir: Path, alone_bytes: int
) -> None:
    """Two begin where one and a half have room: the number is lowered, and the study needs no retries of its own."""
    runs = train_crowded(
        tmp_path,
        data_dir,
        1.5 * alone_bytes,
        n_trials=3,
        one_process=one_process,
        name="crowded-auto",
        resources={"cpus": 1, "gpus": "auto"},
        max_concurrent_trials=2,  # a large card begins with four
    )
    assert [run.state for run in runs] == ["COMPLETE"] * 3
    retried = [run for run in runs if len(run.attempts) > 1]
    assert retried
    assert all("this does not count as a failure" in str(run.attempts[0].error) for run in retried)
    last = max((attempt for run in runs for attempt in run.attempts), key=lambda attempt: attempt.started_at)
    assert last.environment is not None
    assert last.environment["placement"] == "1 trial a card: 2 ran out of memory"


def test_a_cohort_without_room_becomes_processes(tmp_path: Path, data_dir: Path, alone_bytes: int) -> None:
    """Four slots have no room where two processes have: no failure counts, and the records say why."""
    resources = {"cpus": 1, "gpus": "auto", "cohort": 4}
    runs = train_crowded(tmp_path, data_dir, 2.5 * alone_bytes, name="crowded-cohort", resources=resources)
    assert [run.state for run in runs] == ["COMPLETE"] * 2
    refused = [str(run.attempts[0].error) for run in runs if len(run.attempts) > 1]
    assert refused
    for error in refused:
        assert "out of memory on cuda" in error
        assert "this does not count as a failure" in error
    for run in runs:
        last = run.attempts[-1]
        assert last.environment is not None
        why, _, placement = last.environment["placement"].rpartition("; ")
        assert why.startswith("no cohort: out of memory on cuda")
        assert " a card" in placement
        assert "cohort" not in last.environment
    log.warning("%s", refused[0])


def n_cards() -> int:
    """Cards that the tests see."""
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], check=True, capture_output=True, text=True).stdout
    return len(os.environ.get("CUDA_VISIBLE_DEVICES", listed.strip().replace("\n", ",")).split(","))


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None and n_cards() < 2, reason="needs two cards")
def test_one_trial_on_two_cards(tmp_path: Path) -> None:
    """`gpus: 2` trains each step on both, killing the worker leaves no process, and the run goes on and completes."""
    study = quiet_study(
        "wide",
        task={"name": "digits", "model": "mlp", "epochs": 1500, "batch_size": 64},
        optimizers=[SGDM],
        budget={"trials_per_optimizer": 1},
        confirm={"top_k": 0},
        resources={"cpus": 2, "gpus": 2},
        checkpoint_every_s=1,
    )
    with installed(tmp_path) as (service, client):
        view = client.submit(study).study
        wait_until(
            lambda: any(trial.runs[0].epoch > 20 for trial in client.trials(view.id)),
            timeout_s=120,
            what="it trains",
        )
        [worker] = [pid for pid in titled(descendants(service.pid), "ray::") if "TrialWorker" in title(pid)]
        ranks = [pid for pid in descendants(worker) if "tasks.engine.distributed" in title(pid)]
        assert len(ranks) == 1
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, ranks)), timeout_s=30, what="the other rank ends with it")
        service.completed(view.id, timeout_s=300)
        [run] = runs_of(client, view.id)
    assert [attempt.environment and attempt.environment["n_devices"] for attempt in run.attempts] == [2, 2]
    assert run.attempts[1].resumed_from_epoch > 0
    assert run.value is not None
    assert run.value > 0.9


@pytest.mark.parametrize("one_process", [False, True], ids=["processes", "one process"])
def test_cancelling_frees_the_cards_memory(one_process: bool, tmp_path: Path) -> None:
    """Two trials share a card; 30 s after the cancel nothing of them is left."""
    before = used_mib()
    study = quiet_study(
        "on-a-card",
        task={"name": "digits", "model": "convnet", "epochs": 100_000, "batch_size": 64},
        resources={"cpus": 1, "gpus": 0.5},
    )
    with installed(tmp_path, one_process=one_process) as (service, client):
        view = client.submit(study).study

        def trains() -> bool:
            return sum(trial.runs[0].state == "RUNNING" for trial in client.trials(view.id)) == 2

        wait_until(trains, timeout_s=120, what="two trials train")
        wait_until(lambda: used_mib() > before + 400, timeout_s=60, what="they hold memory of the card")
        held = used_mib()
        of_ray = titled(descendants(service.pid), "ray::")
        workers = [pid for pid in of_ray if "TrialWorker" in title(pid) or "SharedTrainer" in title(pid)]
        assert len(workers) == (3 if one_process else 2)
        client.cancel(view.id)
        gone_s = wait_until(lambda: not any(map(is_alive, workers)), timeout_s=30, what="the workers are gone")
        free_s = wait_until(
            lambda: used_mib() <= before + 100, timeout_s=max(1.0, 30 - gone_s), what="the memory is free"
        )
        log.warning("%d MiB before, %d held, %d after %.1f s", before, held, used_mib(), gone_s + free_s)
