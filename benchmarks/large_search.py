"""A search of 10,000 trials: seconds to the next suggestion and to a report, and the driver's memory.

    python -m benchmarks.large_search [--trials 10000] [--sampler tpe] [--url sqlite:///…]

The database is filled as a search with ASHA would have left it (most trials pruned at a rung), then a new search loop
is opened on it, as after a driver's restart, and asks, reports and ends trials one after the other. Bars: the median
suggestion after the first within 0.2 s, the peak of resident memory within 1.5 GiB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy import insert

from search import samplers
from search.definition import StudyDefinition
from search.loop import SearchLoop
from search.records import Lease, Point, RunOutcome, SearchRecord
from search.space import draw
from search.states import RunState, Stage
from service.database import models
from service.database.engine import make_engine
from service.database.schema import prepare
from service.database.store import SqlStore
from service.database.studies import create_study

EPOCHS = 27
RUNGS = (1, 3, 9)
N_TIMED = 30


def define(sampler: str) -> StudyDefinition:
    return StudyDefinition.model_validate(
        {
            "name": "large",
            "task": {"name": "synthetic", "model": "idle", "epochs": EPOCHS},
            "optimizers": [{"name": "admetar"}],
            "sampler": {"name": sampler},
            "pruner": {"name": "asha", "min_epochs": 1},
            "budget": {"trials_per_optimizer": 100_000},
            "confirm": {"top_k": 0},
        }
    )


def fill(store: SqlStore, record: SearchRecord, definition: StudyDefinition, *, n_trials: int) -> None:
    """Finished trials in Optuna's tables and their runs in ours; curves are in Optuna's alone."""
    study = optuna.create_study(
        study_name=record.optuna_name, storage=store.optuna_storage(), direction=definition.objective.direction
    )
    space = definition.optimizers[0].space
    drawn = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    rng = random.Random(0)
    rows = []
    for number in range(n_trials):
        trial = drawn.ask()
        params = draw(trial, space)
        rung = next((i for i in range(len(RUNGS)) if rng.random() < 2 / 3), len(RUNGS))
        last = (*RUNGS, EPOCHS)[rung]
        value = rng.random()
        state = RunState.PRUNED if last < EPOCHS else RunState.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState[state],
                value=value if state is RunState.COMPLETE else None,
                params=trial.params,
                distributions=trial.distributions,
                intermediate_values={epoch: value * epoch / last for epoch in range(1, last + 1)},
                system_attrs={f"completed_rung_{i}": value for i in range(min(rung + 1, len(RUNGS)))},
            )
        )
        rows.append(
            {
                "search_id": record.id,
                "trial_number": number,
                "stage": Stage.SEARCH,
                "seed": definition.training_seed,
                "params": params,
                "state": state,
                "epoch": last,
                "value": value,
                "test_metrics": {},
                "created_at": store.get_study(record.study_id).created_at if number == 0 else rows[0]["created_at"],
            }
        )
    with store.engine.begin() as connection:
        connection.execute(insert(models.Run), rows)


@dataclass
class Timing:
    """Wall and processor seconds of each call of a kind."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def of(self, call: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        answer = call()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        return answer

    def __str__(self) -> str:
        rest = sorted(self.wall[1:])
        high = rest[int(0.95 * len(rest))]
        return (
            f"first {self.wall[0]:.3f} s, then median {statistics.median(rest):.3f} s "
            f"({statistics.median(self.cpu[1:]):.3f} s of processor time), 95 % {high:.3f} s"
        )


def measure(loop: SearchLoop) -> dict[str, Timing]:
    """Each call's seconds, over trials of three epochs."""
    timings = {name: Timing() for name in ("suggestion", "report", "prune?", "finish")}
    for _ in range(N_TIMED):
        run = timings["suggestion"].of(loop.propose)
        for epoch in (1, 2, 3):
            point = Point(epoch=epoch, step=epoch, value=0.5 + epoch / 100, metrics={"val_score": 0.5})
            timings["report"].of(lambda run=run, point=point: loop.report(run, [point]))
            timings["prune?"].of(lambda run=run: loop.should_prune(run))
        outcome = RunOutcome(state=RunState.PRUNED, value=0.53)
        timings["finish"].of(lambda run=run, outcome=outcome: loop.finish(run, outcome))
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--sampler", choices=samplers.NAMES, default="tpe")
    parser.add_argument("--url", help="an empty database; default: a temporary SQLite file")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.url or f"sqlite:///{Path(folder) / 'large.sqlite3'}"
        begin = time.perf_counter()
        # In a process of its own, so that the memory reported below is a driver's.
        filler = multiprocessing.get_context("spawn").Process(
            target=fill_database, args=(url, arguments.sampler, arguments.trials)
        )
        filler.start()
        filler.join()
        print(f"{arguments.trials:,} trials written in {time.perf_counter() - begin:.0f} s", flush=True)
        report(url, define(arguments.sampler))


def fill_database(url: str, sampler: str, n_trials: int) -> None:
    """Create the study and its finished trials."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    prepare(url)
    store = SqlStore(make_engine(url))
    study, _ = create_study(store.engine, define(sampler))
    fill(store, store.searches(study.id)[0], define(sampler), n_trials=n_trials)
    store.engine.dispose()


def report(url: str, definition: StudyDefinition) -> None:
    """Open a loop on the filled database and print what its calls take."""
    store = SqlStore(make_engine(url))
    study_id = create_study(store.engine, definition)[0].id  # the one that is there
    lease = store.acquire_lease(study_id, owner="bench", ttl_s=3600)
    assert isinstance(lease, Lease)
    begin = time.perf_counter()
    loop = SearchLoop(
        store=store,
        lease=lease,
        record=store.searches(study_id)[0],
        definition=definition,
        runs=store.runs(study_id),
    )
    print(f"restart: {time.perf_counter() - begin:.1f} s", flush=True)
    for name, timing in measure(loop).items():
        print(f"{name:11}{timing}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    store.engine.dispose()


if __name__ == "__main__":
    main()
