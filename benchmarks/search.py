"""Search quality on tabulated learning curves: how many epochs until a study has found what the grid would.

    python -m benchmarks.search                the tables (about ten minutes on one core)
    python -m benchmarks.search --seeds 3      a quick look
    python -m benchmarks.search views          CMA-ES with and without pruned trials (five minutes)
    python -m benchmarks.search warm           first trials from right and from wrong earlier results (four minutes)
    python -m benchmarks.search tabulate       train the curves anew (three quarters of an hour)

The coordinator and the search loops are the service's own; only training is looked up (`benchmarks.curves`), and time
is virtual: so many workers, an epoch each in turn, no Ray and no database. Ray Tune's row drives its own OptunaSearch
and ASHA in the same way, one experiment for each optimizer. Only trials that ran to their end count as found.
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from unittest.mock import patch

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from pydantic import TypeAdapter

from benchmarks.curves import EPOCHS, TABLES, load, tabulate
from search import optuna_samplers
from search.assignment import Assignment, Report
from search.definition import StudyDefinition
from search.records import Point, RunOutcome
from search.space import Space
from search.states import FailureKind, RunState
from search.trial_views import with_last_value, worst_where_diverged
from tests.search.memory_store import MemoryStore
from tests.search.workers import coordinator_for

TOLERANCE = 0.002  # 0.2 points of accuracy
BAR = 0.25  # of the grid's epochs
ON_LOG_SCALE = ("lr", "lambd")

WIDE_SPACES: Mapping[str, Mapping[str, Any]] = {
    "admetar": {
        "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "lambd": {"type": "float", "low": 0.02, "high": 0.8, "log": True},
    },
    "admetas": {
        "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "beta": {"type": "float", "low": 0.0, "high": 0.6},
    },
}
"""The ranges of the table "mlp_wide"; a draw stands for the nearest configuration there."""


class Problem:
    """Optimizers, their spaces, and the tabulated validation accuracies of a lattice of configurations in them."""

    def __init__(self, table: str, optimizers: list[str], *, n_workers: int, n_trials: int | None = None) -> None:
        self.title = f"{table}, {optimizers[0] if len(optimizers) == 1 else f'{len(optimizers)} optimizers'}"
        self.n_workers = n_workers
        self._names = {name: next(list(c.settings) for c in load(table) if c.optimizer == name) for name in optimizers}
        self._curves = {
            name: {tuple(c.settings.values()): c.mean() for c in load(table) if c.optimizer == name}
            for name in optimizers
        }
        self.grid_spaces = {
            name: {
                parameter: {"type": "categorical", "choices": sorted({key[i] for key in self._curves[name]})}
                for i, parameter in enumerate(self._names[name])
            }
            for name in optimizers
        }
        self.spaces: Mapping[str, Mapping[str, Any]] = self.grid_spaces
        if table == "mlp_wide":
            self.spaces = {name: WIDE_SPACES[name] for name in optimizers}
        self.n_trials = n_trials or max(len(curves) for curves in self._curves.values())

    @property
    def finals(self) -> list[float]:
        """Accuracy of each configuration at the last epoch; 0 where it diverged."""
        curves = [curve for of_optimizer in self._curves.values() for curve in of_optimizer.values()]
        return [curve[-1] if len(curve) == EPOCHS else 0.0 for curve in curves]

    def best(self, optimizer: str, *, n: int) -> list[dict[str, Any]]:
        """The n best settings of an optimizer by their accuracy at the last epoch."""
        curves = self._curves[optimizer]
        complete = [key for key in curves if len(curves[key]) == EPOCHS]
        ranked = sorted(complete, key=lambda key: curves[key][-1], reverse=True)
        return [dict(zip(self._names[optimizer], key, strict=True)) for key in ranked[:n]]

    def value(self, optimizer: str, settings: Mapping[str, Any], *, epoch: int) -> float | None:
        """Validation accuracy after the epoch; None where training has diverged."""
        key = tuple(self._nearest(optimizer, name, settings[name]) for name in self._names[optimizer])
        curve = self._curves[optimizer][key]
        return curve[epoch - 1] if epoch <= len(curve) else None

    def _nearest(self, optimizer: str, name: str, value: float) -> float:
        def distance(choice: float) -> float:
            return abs(math.log(choice / value)) if name in ON_LOG_SCALE else abs(choice - value)

        return float(min(self.grid_spaces[optimizer][name]["choices"], key=distance))


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

    def report(self, job: Job, *, epoch: int, value: float | None) -> bool:
        """Whether the trial is over: stopped, diverged, or at its last epoch."""
        ...


class OurSearch:
    """A study of ours; `first` are the settings that each optimizer's search begins with."""

    def __init__(
        self,
        problem: Problem,
        *,
        seed: int,
        sampler: str,
        pruner: Mapping[str, Any],
        first: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        spaces = problem.grid_spaces if sampler == "grid" else problem.spaces
        definition = StudyDefinition.model_validate(
            {
                "name": "quality",
                "task": {"name": "digits", "epochs": EPOCHS},
                "optimizers": [{"name": name, "space": space, "first": first} for name, space in spaces.items()],
                "sampler": {"name": sampler, "seed": seed},
                "pruner": pruner,
                "budget": {"trials_per_optimizer": problem.n_trials},
                "confirm": {"top_k": 0},
            }
        )
        store = MemoryStore()
        self._coordinator = coordinator_for(store, store.add_study(definition), slots=problem.n_workers)

    def next(self, ticket: str) -> Job | None:
        assignment = self._coordinator.next(ticket)
        if not isinstance(assignment, Assignment):
            return None
        self._coordinator.begin(ticket)
        return Job(ticket, assignment.optimizer, assignment.settings)

    def report(self, job: Job, *, epoch: int, value: float | None) -> bool:
        end = None
        if value is None:
            end = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged")
        elif epoch == EPOCHS:
            end = RunOutcome(state=RunState.COMPLETE, value=value)
        points = [] if value is None else [Point(epoch=epoch, step=epoch, value=value, metrics={})]
        return self._coordinator.report(job.ticket, Report(points=points, end=end))


@dataclass(frozen=True)
class _RayTrial:
    trial_id: str


class RaySearch:
    """Ray Tune's OptunaSearch and ASHA, one experiment for each optimizer, in turns."""

    def __init__(self, problem: Problem, *, seed: int) -> None:
        from ray.tune.schedulers import AsyncHyperBandScheduler
        from ray.tune.search.optuna import OptunaSearch

        self._searchers, self._schedulers = {}, {}
        for name, raw in problem.spaces.items():
            space = {p: parameter.distribution() for p, parameter in TypeAdapter(Space).validate_python(raw).items()}
            self._searchers[name] = OptunaSearch(space=space, metric="value", mode="max", seed=seed)
            self._schedulers[name] = AsyncHyperBandScheduler(
                time_attr="epoch", metric="value", mode="max", max_t=EPOCHS, grace_period=1, reduction_factor=3
            )
        self._left = dict.fromkeys(problem.spaces, problem.n_trials)
        self._live = dict.fromkeys(problem.spaces, 0)

    def next(self, ticket: str) -> Job | None:
        open_names = [name for name, left in self._left.items() if left]
        if not open_names:
            return None
        name = min(open_names, key=lambda name: (self._live[name], -self._left[name]))
        job = Job(ticket, name, self._searchers[name].suggest(ticket))
        self._left[name] -= 1
        self._live[name] += 1
        self._schedulers[name].on_trial_add(None, _RayTrial(ticket))
        return job

    def report(self, job: Job, *, epoch: int, value: float | None) -> bool:
        scheduler, searcher = self._schedulers[job.optimizer], self._searchers[job.optimizer]
        trial, result = _RayTrial(job.ticket), {"epoch": epoch, "value": value, "training_iteration": epoch}
        if value is None:
            searcher.on_trial_complete(job.ticket, error=True)
        elif epoch == EPOCHS:
            scheduler.on_trial_complete(None, trial, result)
            searcher.on_trial_complete(job.ticket, result)
        elif scheduler.on_trial_result(None, trial, result) == "STOP":
            searcher.on_trial_complete(job.ticket, result)
        else:
            searcher.on_trial_result(job.ticket, result)
            return False
        self._live[job.optimizer] -= 1
        return True


def simulate(searcher: Searcher, problem: Problem) -> Iterator[tuple[int, float]]:
    """Train with the problem's workers, an epoch each in turn.

    Yields:
        (epochs trained so far by all, accuracy) of each trial that reaches its last epoch.
    """
    events: list[tuple[int, int, Job, int]] = []
    time = spent = started = 0
    while True:
        while len(events) < problem.n_workers and (job := searcher.next(f"t{started}")) is not None:
            heapq.heappush(events, (time + 1, started, job, 1))
            started += 1
        if not events:
            return
        time, order, job, epoch = heapq.heappop(events)
        spent += 1
        value = problem.value(job.optimizer, job.settings, epoch=epoch)
        if not searcher.report(job, epoch=epoch, value=value):
            heapq.heappush(events, (time + 1, order, job, epoch + 1))
        elif epoch == EPOCHS and value is not None:
            yield spent, value


@dataclass(frozen=True)
class Outcome:
    """How one seed's search went.

    Attributes:
        share: of the grid's epochs, until a trial that ran to its end was as good as the target; infinite: never.
        gap: accuracy by which the best such trial within `BAR` of the grid's epochs is below the grid's best.
    """

    share: float
    gap: float


Build = Callable[[Problem, int], Searcher]
"""A searcher on the problem, from the seed."""


def play(build: Build, problem: Problem, *, seed: int) -> Outcome:
    """One search, until it has reached the target and spent the bar."""
    best, grid_epochs = max(problem.finals), len(problem.finals) * EPOCHS
    found, share = 0.0, math.inf
    for spent, value in simulate(build(problem, seed), problem):
        if spent <= BAR * grid_epochs:
            found = max(found, value)
        if value >= best - TOLERANCE - 1e-9:
            share = min(share, spent / grid_epochs)
        if share < math.inf and spent > BAR * grid_epochs:
            break
    return Outcome(share, best - found)


NONE, ASHA = {"name": "none"}, {"name": "asha"}


def ours(sampler: str, pruner: Mapping[str, Any]) -> Build:
    """A study with this sampler and pruner, all else at its default."""
    return lambda problem, seed: OurSearch(problem, seed=seed, sampler=sampler, pruner=pruner)


METHODS: Mapping[str, Build] = {
    "TPE + ASHA (default)": ours("tpe", ASHA),
    "TPE + hyperband": ours("tpe", {"name": "hyperband"}),
    "TPE + median": ours("tpe", {"name": "median"}),
    "TPE": ours("tpe", NONE),
    "random + ASHA": ours("random", ASHA),
    "random": ours("random", NONE),
    "grid, in random order": ours("grid", NONE),
    "Ray Tune: OptunaSearch + ASHA": lambda problem, seed: RaySearch(problem, seed=seed),
}


def compare(problem: Problem, *, first_seed: int, n_seeds: int) -> None:
    """Print every method's epochs as a share of the grid's, over the seeds."""
    finals = problem.finals
    n_good = sum(final >= max(finals) - TOLERANCE - 1e-9 for final in finals)
    print(f"\n**{problem.title}**, {problem.n_workers} at a time: {len(finals)} configurations, ", end="")
    print(f"{len(finals) * EPOCHS:,} epochs; best {max(finals):.4f}, {n_good} within {100 * TOLERANCE:.1f} points\n")
    print("| method | median share of the grid's epochs | quartiles | seeds within 25 % | never | gap at 25 % |")
    print("|---|---|---|---|---|---|")
    for method, build in METHODS.items():
        outcomes = [play(build, problem, seed=seed) for seed in range(first_seed, first_seed + n_seeds)]
        shares = sorted(outcome.share for outcome in outcomes)
        middle, low, high = statistics.median(shares), shares[n_seeds // 4], shares[(3 * n_seeds) // 4]
        within, never = sum(share <= BAR for share in shares), sum(math.isinf(share) for share in shares)
        gap = statistics.median(outcome.gap for outcome in outcomes)
        row = f"{percent(middle)} | {percent(low)}–{percent(high)} | {within}/{n_seeds} | {never} | {points(gap)}"
        print(f"| {method} | {row} |", flush=True)


def gap(searcher: Searcher, problem: Problem) -> float:
    """Accuracy by which the best trial that ran to its end is below the best there is."""
    return max(problem.finals) - max((value for _, value in simulate(searcher, problem)), default=0.0)


def wins(ours: Sequence[float], others: Sequence[float]) -> str:
    """In how many of the seeds our gap is the smaller, and in how many the larger."""
    better = sum(a < b for a, b in zip(ours, others, strict=True))
    worse = sum(a > b for a, b in zip(ours, others, strict=True))
    return f"{better} : {worse}"


VIEW = worst_where_diverged


def with_pruned(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> list[FrozenTrial]:
    """CMA-ES's view of the trials, with pruned ones at their last value."""
    return VIEW([with_last_value(trial) for trial in trials], directions)


def compare_views(*, first_seed: int, n_seeds: int) -> None:
    """Print how CMA-ES does without pruned trials, and with these at their last value."""
    print(
        "| optimizer | pruner | trials | mean gap without | with | better : worse without |\n|---|---|---|---|---|---|"
    )
    seeds = range(first_seed, first_seed + n_seeds)
    for name in WIDE_SPACES:
        for pruner in ({"name": "asha"}, {"name": "asha", "min_epochs": 2}, {"name": "hyperband"}):
            for n_trials in (40, 80):
                problem = Problem("mlp_wide", [name], n_workers=4, n_trials=n_trials)
                gaps = []
                for view in (VIEW, with_pruned):
                    with patch.object(optuna_samplers, "worst_where_diverged", view):
                        searches = (OurSearch(problem, seed=seed, sampler="cmaes", pruner=pruner) for seed in seeds)
                        gaps.append([gap(search, problem) for search in searches])
                without, with_them = (points(statistics.mean(each)) for each in gaps)
                kind = f"{pruner['name']}, {pruner['min_epochs']} epochs" if "min_epochs" in pruner else pruner["name"]
                print(f"| {name} | {kind} | {n_trials} | {without} | {with_them} | {wins(*gaps)} |", flush=True)


def compare_warm_starts(*, first_seed: int, n_seeds: int) -> None:
    """Print what one and three settings of an earlier study bring, where they are right and where lr is off tenfold."""
    print("| optimizer | lr of the settings | trials | mean gap from 0 | 1 | 3 | better : worse, 1 | 3 |")
    print("|---|---|---|---|---|---|---|---|")
    seeds = range(first_seed, first_seed + n_seeds)
    for name in WIDE_SPACES:
        for factor in (1.0, 10.0, 0.1):
            for n_trials in (10, 20):
                problem = Problem("mlp_wide", [name], n_workers=2, n_trials=n_trials)
                known = [{**best, "lr": min(1.0, max(1e-4, factor * best["lr"]))} for best in problem.best(name, n=3)]
                gaps = [
                    [
                        gap(OurSearch(problem, seed=seed, sampler="tpe", pruner=ASHA, first=known[:n_first]), problem)
                        for seed in seeds
                    ]
                    for n_first in (0, 1, 3)
                ]
                means = " | ".join(points(statistics.mean(each)) for each in gaps)
                row = f"{means} | {wins(gaps[1], gaps[0])} | {wins(gaps[2], gaps[0])}"
                print(f"| {name} | {'right' if factor == 1 else f'× {factor:g}'} | {n_trials} | {row} |", flush=True)


def percent(share: float) -> str:
    return "never" if math.isinf(share) else f"{share:.1%}"


def points(gap: float) -> str:
    return "none ended" if gap > 0.5 else f"{100 * gap:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["compare", "views", "warm", "tabulate"], default="compare")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0, help="others than those that defaults were chosen on")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    args = parser.parse_args()
    if args.command == "tabulate":
        for table in args.tables:
            tabulate(table)
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    if args.command in ("views", "warm"):
        show = compare_views if args.command == "views" else compare_warm_starts
        show(first_seed=args.first_seed, n_seeds=args.seeds)
        return
    for table in args.tables:
        optimizers = list(dict.fromkeys(curve.optimizer for curve in load(table)))
        if len(optimizers) > 2:
            compare(Problem(table, optimizers, n_workers=4), first_seed=args.first_seed, n_seeds=args.seeds)
        for name in ("admetar", "admetas"):
            problem = Problem(table, [name], n_workers=4 if table == "mlp_wide" else 1)
            compare(problem, first_seed=args.first_seed, n_seeds=args.seeds)


if __name__ == "__main__":
    main()
