"""Spot capacity: `admeta worker` is told to stop, and its run goes on elsewhere from the epoch it had come to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from service.database.engine import make_engine
from tests.chaos.installation import Service, TwoNodes, two_nodes
from tests.chaos.ledger import Expected, audit
from tests.chaos.processes import titled
from tests.chaos.studies import quiet_study
from tests.machine import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray]

N_EPOCHS = 40  # at half a second: a busy machine needs seconds to tell Ray that a node leaves
ATTEMPTS = """SELECT r.id, r.n_failures, a.attempt, a.state, a.error, a.pid, a.resumed_from_epoch AS start
    FROM admeta_attempts a JOIN admeta_runs r ON r.id = a.run_id ORDER BY r.id, a.attempt"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_a_worker_told_to_stop_gives_its_run_back_within_30_s(cluster: TwoNodes, tmp_path: Path) -> None:
    study = quiet_study(
        "spot",
        sleep_s=0.5,
        n_epochs=N_EPOCHS,
        checkpoint_every_s=3600,  # so that nothing but the notice makes it save
        budget={"trials_per_optimizer": 2},
        confirm={"top_k": 0},
    )
    study["optimizers"] = study["optimizers"][:1]
    url = f"sqlite:///{tmp_path / 'admeta.sqlite3'}"
    with (
        Service(tmp_path, database_url=url, ray_address=cluster.address) as service,
        service.client as client,
    ):
        cluster.replace_second_by_worker()
        engine = make_engine(url, pool_size=1)
        view = client.submit(study).study

        def rows() -> list[dict[str, object]]:
            with engine.connect() as connection:
                return [dict(row) for row in connection.execute(text(ATTEMPTS)).mappings()]

        def trains_there() -> set[object]:
            there = set(titled(cluster.second.pids, "ray::TrialWorker"))
            return {row["id"] for row in rows() if row["state"] == "RUNNING" and row["pid"] in there}

        wait_until(lambda: bool(trains_there()), what="the worker has a run and has told an epoch of it")
        given_back = trains_there()
        cluster.second.tell_to_stop()
        assert "not given back in time" not in (cluster.folder / "worker.log").read_text()
        service.completed(view.id)
        expected = Expected(n_trials=2, n_confirm_runs=0, n_epochs=N_EPOCHS, steps_per_epoch=2)
        assert audit(engine, view.id, expected=expected, snapshots=[]).faults == []
        told = {row["id"]: row for row in rows() if "told to stop" in str(row["error"])}
        assert told.keys() == given_back
        for row in rows():
            assert row["n_failures"] == 0
            if row["attempt"] == 2:
                assert f"from epoch {row['start']}" in str(told[row["id"]]["error"])
                assert row["start"] in range(1, N_EPOCHS)
        engine.dispose()


def test_a_worker_with_another_token_is_told_so(cluster: TwoNodes) -> None:
    """By Ray's own words for it, which change with its releases."""
    asked = subprocess.run(
        [sys.executable, "-c", "from service.cli import main; main()", "worker", "--address", cluster.address],
        env={**os.environ, "RAY_AUTH_TOKEN": "0" * 64},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert asked.returncode == 1
    assert f"the cluster at {cluster.address} refuses this machine's token" in asked.stderr
    assert "Traceback" not in asked.stderr
