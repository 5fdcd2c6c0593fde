"""How well a study fills 64 workers, and how trials an hour grow with the cards of one host.

    python -m benchmarks.scaling --part busy [--workers 64] [--trials 2000] [--seconds 10] [--postgres URL]
    python -m benchmarks.scaling --part cards --data DIR [--cards 1 2 4] [--gpus 1] [--trials 16] [--epochs 15]

Both run whole studies: our driver, its Ray workers and a database, random search, no early stopping.
    busy     trials that sleep, on one CPU each. Utilisation is their seconds over those of all workers, told thrice:
             - from the driver's start to its end: the start of all processes counts. Where the host has fewer cores
               than the study has workers, they start by turns, and this is more the host's figure than the driver's.
             - from the first trial's start to the last one's end: workers that start late count, and so do those that
               run out of work in the last round.
             - steady state: from the moment when every worker has begun a trial until the first of them has ended its
               last one. What is missing here is the driver's: the time between a worker's trials.
    cards    CIFAR-10, resnet20, the same study on so many cards, one number after another, each in a process and a Ray
             of its own. Trials an hour count from the driver's start (Ray runs by then, no worker does) to its end.
Markdown on stdout, with the card's name. The data set is decoded before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from search.definition import StudyDefinition
from search.driver import DriverOptions, drive
from service.database.models import Attempt, Run, Search
from service.database.schema import prepare
from service.database.studies import create_study
from service.ray.cluster import start_embedded
from service.ray.supervisor import open_store

BUSY_BAR = 0.90
CARDS_BAR = {4: 3.7}
SGDM = {"lr": {"type": "float", "low": 0.02, "high": 0.2, "log": True}}


@dataclass(frozen=True, kw_only=True)
class Driven:
    """A study from its driver's start to its end.

    Attributes:
        wall_s: of the driver, from its start to its end.
        span_s: from the first trial's start to the last one's end.
        train_s: of all trials together.
        driver_cpu_s: processor seconds of the driver's process.
        n_workers: processes that ran a trial.
        start_s: from the first trial's start until every worker has begun one.
        steady_s: from then until the first worker has ended its last trial; 0 where one had by then.
        steady_train_s: of the trials within these seconds; of one that is partly within, the part.
    """

    wall_s: float
    span_s: float
    train_s: float
    driver_cpu_s: float
    n_trials: int
    n_workers: int
    start_s: float
    steady_s: float
    steady_train_s: float

    def utilisation(self, n_workers: int) -> float:
        """Of so many workers, from the first trial's start to the last one's end."""
        return self.train_s / (n_workers * self.span_s)

    def utilisation_from_start(self, n_workers: int) -> float:
        """Of so many workers, from the driver's start to its end."""
        return self.train_s / (n_workers * self.wall_s)

    @property
    def has_steady_state(self) -> bool:
        return self.steady_s > 0

    @property
    def steady_utilisation(self) -> float:
        return self.steady_train_s / (self.n_workers * self.steady_s)

    @property
    def steady_gap_s(self) -> float:
        """Seconds between two trials of a worker, in steady state."""
        each_s = self.train_s / self.n_trials
        return each_s / self.steady_utilisation - each_s


@dataclass(frozen=True, kw_only=True)
class Stint:
    """A trial's time on a worker, from its start to its end as the driver recorded them, in seconds since any moment.

    Attributes:
        train_s: what of it the worker trained.
    """

    worker: tuple[str | None, int | None]
    begin_s: float
    end_s: float
    train_s: float


def steady(stints: Sequence[Stint]) -> tuple[float, float, float]:
    """When all workers were at work.

    Returns:
        The moment when every worker has begun a trial, the one when the first has ended its last trial, and the seconds
        trained between the two: of a trial that is partly between them, the part.
    """
    first: dict[Any, float] = {}
    last: dict[Any, float] = {}
    for one in stints:
        first[one.worker] = min(first.get(one.worker, one.begin_s), one.begin_s)
        last[one.worker] = max(last.get(one.worker, one.end_s), one.end_s)
    begin_s, end_s = max(first.values()), min(last.values())
    train_s = 0.0
    for one in stints:
        within_s = max(0.0, min(one.end_s, end_s) - max(one.begin_s, begin_s))
        train_s += one.train_s * within_s / max(one.end_s - one.begin_s, 1e-9)
    return begin_s, end_s, train_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", required=True, choices=["busy", "cards"])
    parser.add_argument("--trials", type=int, help="default: 2000 (busy), 16 (cards)")
    parser.add_argument("--workers", type=int, default=64, help="of `busy`")
    parser.add_argument("--seconds", type=float, default=10.0, help="that each trial of `busy` sleeps")
    parser.add_argument("--postgres", help="URL of an empty PostgreSQL database, to measure `busy` there too")
    parser.add_argument("--data", type=Path, help="the folder that holds CIFAR-10, for `cards`")
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--gpus", type=float, default=1.0, help="cards that each trial holds, a fraction to pack them")
    parser.add_argument("--epochs", type=int, default=15, help="of each trial of `cards`")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--cpus", type=int, default=os.cpu_count(), help="that Ray may use in `cards`")
    parser.add_argument("--out", type=Path, help="write all figures there as JSON")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.trials = options.trials or {"busy": 2000, "cards": 16}[options.part]
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    if options.child:
        print(json.dumps(vars(_on_cards(options, options.child))), flush=True)
    elif options.part == "busy":
        measure_busy(options)
    elif options.data is None:
        parser.error("--part cards needs --data")
    else:
        measure_cards(options)


def measure_busy(options: argparse.Namespace) -> None:
    """Print the table of the simulated trials."""
    task = {"name": "synthetic", "model": "idle", "epochs": 1, "sleep_s": options.seconds}
    # A sleeper has no weights. Its checkpoint, due where it sleeps for as long, would bring torch into each process.
    definition = _definition(task, options, resources={"cpus": 1, "gpus": 0}, checkpoint_every_s=3600)
    rounds = options.trials / options.workers
    print(
        f"{options.trials} trials of {options.seconds:g} s on {options.workers} workers, {os.cpu_count()} CPU cores; "
        f"the last round's empty places alone leave {rounds / -(-options.trials // options.workers):.1%}",
        flush=True,
    )
    start_embedded(num_cpus=options.workers, logging_level="ERROR", log_to_driver=False)
    found: dict[str, Driven] = {}
    with tempfile.TemporaryDirectory() as folder:
        urls = {"SQLite": f"sqlite:///{Path(folder) / 'busy.sqlite3'}"}
        if options.postgres:
            urls["PostgreSQL"] = options.postgres
        for name, url in urls.items():
            found[name] = driven(definition, url, storage=folder)
    print(busy_table(found, n_workers=options.workers))
    _write(options, {name: vars(driven) for name, driven in found.items()})


def busy_table(found: dict[str, Driven], *, n_workers: int) -> str:
    lines = [
        "| database | driver's start to end, s | utilisation | first trial's start to last one's end, s | utilisation "
        "| all workers run after, s | steady state, s | utilisation | bar | between two trials then, s "
        "| driver's CPU, s | a trial, ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, one in found.items():
        then = [f"never, {one.n_workers} did", "", "", ""]
        if one.has_steady_state and one.n_workers == n_workers:
            share, gap_s = one.steady_utilisation, one.steady_gap_s
            then = [f"{one.start_s:.1f}", f"{one.steady_s:.1f}", f"{share:.1%}", f"{gap_s:.3f}"]
        cells = [
            name,
            f"{one.wall_s:.1f}",
            f"{one.utilisation_from_start(n_workers):.1%}",
            f"{one.span_s:.1f}",
            f"{one.utilisation(n_workers):.1%}",
            *then[:3],
            f"{BUSY_BAR:.0%}",
            then[3],
            f"{one.driver_cpu_s:.1f}",
            f"{1000 * one.driver_cpu_s / one.n_trials:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def measure_cards(options: argparse.Namespace) -> None:
    """Print the table of the trained trials, a row for each number of cards as it comes."""
    print(
        f"{options.model}, {options.trials} trials of {options.epochs} epochs, {options.gpus:g} of a card each, "
        f"{options.cpus} CPU cores, on {card_name()}\n\n"
        "| cards | trials/h | × one card | bar | driver's start to end, s | first trial's start to last one's end, s | "
        "trials/h then | × |\n|---:|---:|---:|---:|---:|---:|---:|---:|",
        flush=True,
    )
    found: dict[int, Driven] = {}
    for n_cards in options.cards:
        found[n_cards] = one = _child(n_cards)
        base = found.get(1)
        ratios = [f"{base.wall_s / one.wall_s:.2f}", f"{base.span_s / one.span_s:.2f}"] if base else ["", ""]
        bar = f"{CARDS_BAR[n_cards]:g}" if n_cards in CARDS_BAR else ""
        hourly = [3600 * one.n_trials / seconds for seconds in (one.wall_s, one.span_s)]
        print(
            f"| {n_cards} | {hourly[0]:.0f} | {ratios[0]} | {bar} | {one.wall_s:.1f} | {one.span_s:.1f} | "
            f"{hourly[1]:.0f} | {ratios[1]} |",
            flush=True,
        )
    _write(options, {str(n_cards): vars(driven) for n_cards, driven in found.items()})


def _child(n_cards: int) -> Driven:
    """The study on the first so many cards, in a process that sees no others."""
    seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    visible = seen[:n_cards] or [str(i) for i in range(n_cards)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scaling", *sys.argv[1:], "--child", str(n_cards)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"wall_s"')]
    if done.returncode or not lines:
        raise SystemExit(
            f"the study on {n_cards} cards failed with exit code {done.returncode}:\n{done.stdout[-2000:]}"
        )
    return Driven(**json.loads(lines[-1]))


def _on_cards(options: argparse.Namespace, n_cards: int) -> Driven:
    import tasks.runs
    from tasks.registry import parse_config

    task = {"name": "cifar10", "model": options.model, "epochs": options.epochs}
    tasks.runs.check(parse_config(task), data_dir=options.data)  # decodes the images, once a machine
    definition = _definition(task, options, resources={"cpus": 1, "gpus": options.gpus})
    start_embedded(num_cpus=options.cpus, num_gpus=n_cards, logging_level="ERROR", log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'cards.sqlite3'}"
        return driven(definition, url, storage=folder, data_dir=options.data.resolve())


def driven(definition: StudyDefinition, url: str, *, storage: str, data_dir: Path | None = None) -> Driven:
    """Drive the study to its end in this process.

    Raises:
        SystemExit: not every trial is COMPLETE at its first attempt, so that there is nothing to compare.
    """
    prepare(url)
    store = open_store(url)
    study, _ = create_study(store.engine, definition)
    where = DriverOptions(owner="benchmark", storage=storage, data_dir=None if data_dir is None else str(data_dir))
    begin, cpu_begin = time.perf_counter(), time.process_time()
    state = drive(study.id, store=store, options=where)
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
    runs = store.runs(study.id)
    n_planned = definition.budget.trials_per_optimizer
    n_complete = sum(run.state == "COMPLETE" and run.attempt == 1 for run in runs)
    if state != "COMPLETED" or n_complete != n_planned:
        reasons = {run.error for run in runs if run.error}
        raise SystemExit(f"the study ended {state}, {n_complete} of {n_planned} trials as planned: {reasons}")
    with Session(store.engine) as session:
        of_study = select(Attempt).join(Run).join(Search).where(Search.study_id == study.id)
        attempts = session.scalars(of_study).all()
    store.engine.dispose()
    train_s = {run.id: run.cost.train_s for run in runs}
    stints = [
        Stint(
            worker=(one.node, one.pid),
            begin_s=one.started_at.timestamp(),
            end_s=one.finished_at.timestamp(),
            train_s=train_s[one.run_id],
        )
        for one in attempts
        if one.finished_at is not None
    ]
    first_s = min(one.begin_s for one in stints)
    begin_s, end_s, steady_train_s = steady(stints)
    return Driven(
        wall_s=wall_s,
        span_s=max(one.end_s for one in stints) - first_s,
        train_s=sum(train_s.values()),
        driver_cpu_s=cpu_s,
        n_trials=len(runs),
        n_workers=len({one.worker for one in stints}),
        start_s=begin_s - first_s,
        steady_s=max(0.0, end_s - begin_s),
        steady_train_s=steady_train_s,
    )


def _definition(
    task: dict[str, Any], options: argparse.Namespace, *, resources: dict[str, float], **changes: Any
) -> StudyDefinition:
    return StudyDefinition.model_validate(
        {
            "name": f"scaling-{uuid.uuid4().hex[:8]}",
            "task": task,
            "optimizers": [{"name": "sgdm", "space": SGDM}],
            "sampler": {"name": "random"},
            "pruner": {"name": "none"},
            "budget": {"trials_per_optimizer": options.trials},
            "confirm": {"top_k": 0},
            "resources": resources,
            **changes,
        }
    )


def card_name() -> str:
    """The cards' names as the driver's own tool tells them: CUDA must not start in this process."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return "no card"
    names: Sequence[str] = told.strip().splitlines()
    return " and ".join(f"{names.count(name)} × {name}" for name in sorted(set(names))) or "no card"


def _write(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    if options.out is not None:
        options.out.write_text(json.dumps({"cards": card_name(), **figures}, indent=1))


if __name__ == "__main__":
    main()
