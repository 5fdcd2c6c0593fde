"""Seconds of overhead a trial: a study of do-nothing trials against the same number in plain Ray Tune.

    python -m benchmarks.overhead [--trials 200] [--slots 2] [--repeats 3] [--postgres URL]

Ours: random search, no early stopping, every trial recorded in SQL (our tables and Optuna's). Plain: Ray Tune's own
random search with reused workers and no database, the same trainable body, the same Ray. Both are timed from the
call to the end, with their workers' start inside; medians of several, interleaved.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import optuna
from ray import tune

from search.definition import StudyDefinition
from search.driver import DriverOptions, drive
from search.tuning import TUNE_ENVIRONMENT
from service.database.schema import prepare
from service.database.studies import create_study
from service.ray.cluster import start_embedded
from service.ray.supervisor import open_store


class Idle(tune.Trainable):
    """What a user's trial costs when it does nothing."""

    def setup(self, config: dict[str, Any]) -> None:
        self._lr = config["lr"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._lr = new_config["lr"]
        return True

    def step(self) -> dict[str, Any]:
        return {"score": -self._lr, "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        pass


def plain(n_trials: int) -> float:
    """Wall seconds of plain Ray Tune."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        tune.Tuner(
            tune.with_resources(Idle, {"cpu": 1}),
            param_space={"lr": tune.loguniform(1e-4, 1.0)},
            tune_config=tune.TuneConfig(num_samples=n_trials, reuse_actors=True, metric="score", mode="max"),
            run_config=tune.RunConfig(storage_path=folder, name="plain", verbose=0),
        ).fit()
        return time.perf_counter() - start


def ours(n_trials: int, database_url: str) -> float:
    """Wall seconds of a study with as many trials, through the driver and the database."""
    definition = StudyDefinition.model_validate(
        {
            "name": f"overhead-{uuid.uuid4().hex[:8]}",
            "task": {"name": "synthetic", "model": "idle", "epochs": 1},
            "optimizers": [{"name": "sgdm"}],
            "sampler": {"name": "random"},
            "pruner": {"name": "none"},
            "budget": {"trials_per_optimizer": n_trials},
            "confirm": {"top_k": 0},
            "resources": {"cpus": 1, "gpus": 0},
        }
    )
    store = open_store(database_url)
    study, _ = create_study(store.engine, definition)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        state = drive(study.id, store=store, options=DriverOptions(owner="benchmark", storage=folder))
        wall = time.perf_counter() - start
    n_complete = sum(run.state == "COMPLETE" for run in store.runs(study.id))
    if state != "COMPLETED" or n_complete != n_trials:
        raise SystemExit(f"the study ended {state} with {n_complete} of {n_trials} trials; nothing to compare")
    store.engine.dispose()
    return wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--slots", type=int, default=2, help="trials at a time")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--postgres", help="URL of an empty PostgreSQL database, to measure it too")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    os.environ.update({key: value for key, value in TUNE_ENVIRONMENT.items() if "OUTPUT" in key})
    start_embedded(num_cpus=arguments.slots, logging_level="ERROR", log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        urls = {"SQLite": f"sqlite:///{Path(folder) / 'overhead.sqlite3'}"}
        if arguments.postgres:
            urls["PostgreSQL"] = arguments.postgres
        for url in urls.values():
            prepare(url)
        walls: dict[str, list[float]] = {"plain Ray Tune": [], **{name: [] for name in urls}}
        for _ in range(arguments.repeats):
            walls["plain Ray Tune"].append(plain(arguments.trials))
            for name, url in urls.items():
                walls[name].append(ours(arguments.trials, url))
    base = statistics.median(walls["plain Ray Tune"])
    print(f"{arguments.trials} do-nothing trials, {arguments.slots} at a time, medians of {arguments.repeats}")
    print(f"{'':16} {'wall s':>8} {'s/trial':>8} {'ratio':>6}")
    for name, values in walls.items():
        wall = statistics.median(values)
        print(f"{name:16} {wall:8.2f} {wall / arguments.trials:8.3f} {wall / base:6.2f}")


if __name__ == "__main__":
    main()
