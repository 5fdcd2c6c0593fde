"""On a card: a cancelled study gives its memory back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.chaos.installation import Service
from tests.chaos.processes import descendants, is_alive, title, titled, wait_until
from tests.chaos.studies import quiet_study

pytestmark = [
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA card: nvidia-smi was not found"),
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.timeout(300),
]


def used_mib() -> int:
    """Memory in use on all cards, MiB."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(int(line) for line in subprocess.run(command, check=True, capture_output=True).stdout.split())


def test_cancelling_frees_the_cards_memory(tmp_path: Path) -> None:
    """Two trials share a card; 30 s after the cancel nothing of them is left."""
    before = used_mib()
    study = quiet_study(
        "on-a-card",
        task={"name": "digits", "model": "convnet", "epochs": 100_000, "batch_size": 64},
        resources={"cpus": 1, "gpus": 0.5},
    )
    url = f"sqlite:///{tmp_path / 'admeta.sqlite3'}"
    with Service(tmp_path, database_url=url) as service, service.client as client:
        view = client.submit(study).study

        def trains() -> bool:
            return sum(trial.runs[0].state == "RUNNING" for trial in client.trials(view.id)) == 2

        wait_until(trains, timeout_s=120, what="two trials train")
        wait_until(lambda: used_mib() > before + 400, timeout_s=60, what="they hold memory of the card")
        workers = [pid for pid in titled(descendants(service.pid), "ray::") if "TrialWorker" in title(pid)]
        client.cancel(view.id)
        wait_until(lambda: not any(map(is_alive, workers)), timeout_s=30, what="the workers are gone")
        wait_until(lambda: used_mib() <= before + 100, timeout_s=10, what="the memory is free")
