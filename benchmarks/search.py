"""Search quality on tabulated learning curves: how many epochs until a study has found what the grid would.

    python -m benchmarks.search                the tables (a few minutes on one core)
    python -m benchmarks.search --seeds 3      a quick look
    python -m benchmarks.search tabulate       train the curves anew (half an hour)

The coordinator and the search loops are the service's own; only training is looked up (`benchmarks.curves`), and time
is virtual: so many workers, an epoch each in turn, no Ray and no database. Ray Tune's row drives its own OptunaSearch
and ASHA in the same way, one experiment for each optimizer. Only trials that ran to their end count as found.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import optuna

from benchmarks.curves import EPOCHS, MODELS, Curve, load, tabulate

TOLERANCE = 0.002  # 0.2 points of accuracy
BAR = 0.25  # of the grid's epochs

Table = Mapping[str, Mapping[str, list[float]]]
"""Validation accuracy by epoch, for each optimizer and each of its configurations (`key_of`)."""


def key_of(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def table_of(curves: Sequence[Curve], optimizers: Sequence[str]) -> Table:
    return {name: {key_of(c.settings): c.mean() for c in curves if c.optimizer == name} for name in optimizers}


@dataclass(frozen=True)
class Job:
    """One trial as a searcher hands it out."""

    ticket: str
    optimizer: str
    settings: Mapping[str, Any]


class Searcher(Protocol):
    """What the simulated workers ask."""

    def next(self, ticket: str) -> Job | None:
        """A trial to train, or None while there is none."""
        ...

    def report(self, job: Job, *, epoch: int, value: float) -> bool:
        """Whether the trial is over: stopped, or at its last epoch."""
        ...


class OurSearch:
    """A study of ours on the paper's grids."""

    def __init__(self, table: Table, *, seed: int, n_workers: int, sampler: str, pruner: Mapping[str, Any]) -> None:
        from search.definition import StudyDefinition
        from tests.search.memory_store import MemoryStore
        from tests.search.workers import coordinator_for

        definition = StudyDefinition.model_validate(
            {
                "name": "quality",
                "task": {"name": "digits", "epochs": EPOCHS},
                "optimizers": [{"name": name, "space": "paper"} for name in table],
                "sampler": {"name": sampler, "seed": seed},
                "pruner": pruner,
                "budget": {"trials_per_optimizer": max(len(curves) for curves in table.values())},
                "confirm": {"top_k": 0},
            }
        )
        store = MemoryStore()
        self._coordinator = coordinator_for(store, store.add_study(definition), slots=n_workers)

    def next(self, ticket: str) -> Job | None:
        from search.assignment import Assignment

        assignment = self._coordinator.next(ticket)
        if not isinstance(assignment, Assignment):
            return None
        self._coordinator.begin(ticket)
        return Job(ticket, assignment.optimizer, assignment.settings)

    def report(self, job: Job, *, epoch: int, value: float) -> bool:
        from search.assignment import Report
        from search.records import Point, RunOutcome, RunState

        point = Point(epoch=epoch, step=epoch, value=value, metrics={"val_accuracy": value})
        end = RunOutcome(state=RunState.COMPLETE, value=value) if epoch == EPOCHS else None
        return self._coordinator.report(job.ticket, Report(points=[point], end=end))


class RaySearch:
    """Ray Tune's OptunaSearch and ASHA, one experiment for each optimizer, in turns."""

    def __init__(self, table: Table, *, seed: int) -> None:
        from ray.tune.schedulers import AsyncHyperBandScheduler
        from ray.tune.search.optuna import OptunaSearch

        self._searchers, self._schedulers, self._left = {}, {}, {}
        for name, curves in table.items():
            settings = [json.loads(key) for key in curves]
            space = {
                p: optuna.distributions.CategoricalDistribution(sorted({s[p] for s in settings})) for p in settings[0]
            }
            self._searchers[name] = OptunaSearch(space=space, metric="value", mode="max", seed=seed)
            self._schedulers[name] = AsyncHyperBandScheduler(
                time_attr="epoch", metric="value", mode="max", max_t=EPOCHS, grace_period=1, reduction_factor=3
            )
            self._left[name] = len(curves)
        self._live = dict.fromkeys(table, 0)

    def next(self, ticket: str) -> Job | None:
        open_names = [name for name, left in self._left.items() if left]
        if not open_names:
            return None
        name = min(open_names, key=lambda name: (self._live[name], -self._left[name]))
        settings = self._searchers[name].suggest(ticket)
        self._left[name] -= 1
        self._live[name] += 1
        job = Job(ticket, name, settings)
        self._schedulers[name].on_trial_add(None, _RayTrial(ticket))
        return job

    def report(self, job: Job, *, epoch: int, value: float) -> bool:
        result = {"epoch": epoch, "value": value, "training_iteration": epoch, "done": epoch == EPOCHS}
        scheduler, searcher = self._schedulers[job.optimizer], self._searchers[job.optimizer]
        trial = _RayTrial(job.ticket)
        stopped = epoch == EPOCHS or scheduler.on_trial_result(None, trial, result) == "STOP"
        if not stopped:
            searcher.on_trial_result(job.ticket, result)
            return False
        if epoch == EPOCHS:
            scheduler.on_trial_complete(None, trial, result)
        searcher.on_trial_complete(job.ticket, result)
        self._live[job.optimizer] -= 1
        return True


@dataclass(frozen=True)
class _RayTrial:
    trial_id: str


Build = Callable[[Table, int, int], Searcher]
"""A searcher from the table, the seed and the number of workers."""


def simulate(searcher: Searcher, table: Table, *, n_workers: int) -> Iterator[tuple[int, float]]:
    """Train with several workers, an epoch each in turn.

    Yields:
        (epochs trained so far by all, accuracy) of each trial that reaches its last epoch.
    """
    events: list[tuple[int, int, Job, int]] = []
    time = spent = started = 0

    def fill() -> None:
        nonlocal started
        while len(events) < n_workers and (job := searcher.next(f"t{started}")) is not None:
            heapq.heappush(events, (time + 1, started, job, 1))
            started += 1

    fill()
    while events:
        time, order, job, epoch = heapq.heappop(events)
        spent += 1
        settings = json.loads(next(iter(table[job.optimizer])))
        value = table[job.optimizer][key_of({name: job.settings[name] for name in settings})][epoch - 1]
        over = searcher.report(job, epoch=epoch, value=value)
        if not over:
            heapq.heappush(events, (time + 1, order, job, epoch + 1))
        elif epoch == EPOCHS:
            yield spent, value
        fill()


@dataclass(frozen=True)
class Outcome:
    """How one seed's search went.

    Attributes:
        share: of the grid's epochs, until a trial that ran to its end was as good as the target; infinite: never.
        gap: accuracy by which the best such trial within `BAR` of the grid's epochs is below the grid's best.
    """

    share: float
    gap: float


def play(build: Build, table: Table, *, seed: int, n_workers: int) -> Outcome:
    finals = final_accuracies(table)
    best, grid_epochs = max(finals), len(finals) * EPOCHS
    found, share = 0.0, math.inf
    for spent, value in simulate(build(table, seed, n_workers), table, n_workers=n_workers):
        if spent <= BAR * grid_epochs:
            found = max(found, value)
        if value >= best - TOLERANCE - 1e-9:
            share = min(share, spent / grid_epochs)
        if share < math.inf and spent > BAR * grid_epochs:
            break
    return Outcome(share, best - found)


def final_accuracies(table: Table) -> list[float]:
    return [curve[-1] for of_optimizer in table.values() for curve in of_optimizer.values()]


NONE, ASHA = {"name": "none"}, {"name": "asha"}


def ours(sampler: str, pruner: Mapping[str, Any]) -> Build:
    return lambda table, seed, n_workers: OurSearch(
        table, seed=seed, n_workers=n_workers, sampler=sampler, pruner=pruner
    )


METHODS: Mapping[str, Build] = {
    "TPE + ASHA (default)": ours("tpe", ASHA),
    "TPE + hyperband": ours("tpe", {"name": "hyperband"}),
    "TPE + median": ours("tpe", {"name": "median"}),
    "TPE": ours("tpe", NONE),
    "random + ASHA": ours("random", ASHA),
    "random": ours("random", NONE),
    "grid": ours("grid", NONE),
    "Ray Tune: OptunaSearch + ASHA": lambda table, seed, n_workers: RaySearch(table, seed=seed),
}


def compare(table: Table, *, title: str, n_workers: int, n_seeds: int) -> None:
    """Print every method's epochs as a share of the grid's, over the seeds."""
    finals = final_accuracies(table)
    n_good = sum(final >= max(finals) - TOLERANCE - 1e-9 for final in finals)
    print(
        f"\n**{title}**, {n_workers} at a time: {len(finals)} configurations, {len(finals) * EPOCHS:,} epochs; ", end=""
    )
    print(f"best {max(finals):.4f}, {n_good} within {100 * TOLERANCE:.1f} points of it\n")
    print("| method | median share of the grid's epochs | quartiles | seeds within 25 % | never | gap at 25 % |")
    print("|---|---|---|---|---|---|")
    for method, build in METHODS.items():
        outcomes = [play(build, table, seed=seed, n_workers=n_workers) for seed in range(n_seeds)]
        shares = sorted(outcome.share for outcome in outcomes)
        middle, low, high = statistics.median(shares), shares[n_seeds // 4], shares[(3 * n_seeds) // 4]
        within, never = sum(share <= BAR for share in shares), sum(math.isinf(share) for share in shares)
        gap = statistics.median(outcome.gap for outcome in outcomes)
        row = f"{percent(middle)} | {percent(low)}–{percent(high)} | {within}/{n_seeds} | {never} | {points(gap)}"
        print(f"| {method} | {row} |", flush=True)


def percent(share: float) -> str:
    return "never" if math.isinf(share) else f"{share:.1%}"


def points(gap: float) -> str:
    return "none ended" if gap > 0.5 else f"{100 * gap:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["compare", "tabulate"], default="compare")
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    if args.command == "tabulate":
        for model in MODELS:
            tabulate(model)
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    for model in MODELS:
        curves = load(model)
        every = list(dict.fromkeys(curve.optimizer for curve in curves))
        compare(table_of(curves, every), title=f"{model}, all nine optimizers", n_workers=4, n_seeds=args.seeds)
        for name in ("admetar", "admetas"):
            compare(table_of(curves, [name]), title=f"{model}, {name}", n_workers=1, n_seeds=args.seeds)


if __name__ == "__main__":
    main()
