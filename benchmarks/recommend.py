"""The regret of what the service recommends, against AdamW's defaults: on others' results, and on our own studies.

    python -m benchmarks.recommend --data DIR               the table (some minutes on one core)
    python -m benchmarks.recommend --data DIR --seeds 1     a quick look
    python -m benchmarks.recommend --unpack benchmarks/data/reproduction.tar.*    our own studies (half a minute)

DIR holds others' results, `algoperf-curves.csv.xz`: 11 submissions of 5 settings each on 8 workloads of AlgoPerf, in 5
studies. Each workload in turn is a task of which nothing is known; the database has a study of each of the others. A
submission stands for an optimizer, its settings for five learning rates; AdamW is the organisers' baseline, a NAdamW
whose settings they had tuned, and its defaults are the first of these. The query, the plan and its warm start are the
service's own (`service.database.queries.recommend`); trainings are looked up, and each takes one GPU hour. What the
plan's study finds is put into the database, and the service is asked once more, without hours.

Of our own studies, packed by `benchmarks.reproduction`, each task and model is left out in turn: its studies get the
tag `void`, so that the service's own queries do not see them. The value of settings is that of the nearest trial of the
study that is left out; one that was stopped early has its last value.

Regret: rank of the settings by the median of the studies, as a share: 0 for the best settings of all, 1 for the worst.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import math
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
from sqlalchemy import Engine, select

from admeta.client.models import RecommendationView, RecommendRequest, StudyChanges
from benchmarks.remember import LOSSES
from benchmarks.reproduction.packing import unpack
from benchmarks.reproduction.work import database_url
from search.definition import StudyDefinition
from search.optimizer_search import OptimizerSearch
from search.records import Lease, Point, SearchRecord, StudyRecord
from search.states import Stage, StudyState
from search.warm_start import nearness, portfolio
from service.database import SqlStore, make_engine, prepare
from service.database.engine import reading
from service.database.models import Study
from service.database.queries import recommendation
from service.database.queries.lookup import VOID_TAG
from service.database.studies import change_study
from tasks.engine.protocol import Cost
from tests.service.database.fill import complete, leased, run

BUDGETS = (0, 4, 8, 16, 32)
"""GPU hours, each of one training."""

TASKS = {
    "criteo1tb": "digits",
    "fastmri": "image_folder",
    "imagenet_resnet": "cifar10",
    "imagenet_vit": "cifar100",
    "librispeech_conformer": "fsdd",
    "librispeech_deepspeech": "superb_ks",
    "ogbg": "synthetic",
    "wmt": "gpt",
}
"""A task of ours that stands for each workload: what counts is which have the same kind of examples."""

OPTIMIZERS = {
    "baseline": "adamw",
    "shampoo_submission": "adam",
    "schedule_free_adamw": "admetar",
    "generalized_adam": "admetas",
    "cyclic_lr": "radam",
    "nadamp": "ranger",
    "amos": "adabelief",
    "caspr_adaptive": "sgd",
    "lawa_queue": "sgdm",
    "lawa_ema": "lion",
    "schedule_free_prodigy": "adan",
}
RATES = tuple(10.0**-k for k in range(1, 6))
"""A learning rate for each of the five settings, far apart, since nothing is known of which are alike."""

SPACE = {"lr": {"type": "categorical", "choices": list(RATES)}}

Values = Mapping[tuple[str, float], Mapping[str, float]]
"""By optimizer and learning rate, the value of each of AlgoPerf's studies, more is better."""


def values_of(data: Path) -> dict[str, Values]:
    """By workload, the best validation values."""
    targets = json.loads((data / "algoperf-v05-targets.json").read_text())
    found: dict[str, dict[tuple[str, float], dict[str, float]]] = {name: defaultdict(dict) for name in TASKS}
    with lzma.open(data / "algoperf-curves.csv.xz", "rt") as file:
        for row in csv.DictReader(file):
            is_wanted = (row["version"], row["rules"]) == ("v05", "external_tuning")
            if not is_wanted or row["workload"] not in TASKS or not row["value"]:
                continue
            sign = -1 if targets["workloads"][row["workload"]]["target_metric_name"] in LOSSES else 1
            studies = found[row["workload"]][OPTIMIZERS[row["submission"]], RATES[int(row["trial"]) - 1]]
            value = sign * float(row["value"])
            studies[row["study"]] = max(studies.get(row["study"], -math.inf), value)
    return {name: dict(values) for name, values in found.items()}


def task_of(workload: str) -> dict[str, Any]:
    name = TASKS[workload]
    return {"name": name, **({"data_dir": "scans"} if name == "image_folder" else {})}


def defined(workload: str, name: str, optimizers: list[str]) -> StudyDefinition:
    """A study of these optimizers on the stand-in of the workload."""
    return StudyDefinition.model_validate(
        {
            "name": name,
            "task": task_of(workload),
            "optimizers": [{"name": one, "space": SPACE} for one in optimizers],
            "objective": {"direction": "maximize"},
            "confirm": {"top_k": 1, "seeds": [0, 1, 2]},
        }
    )


class Database:
    """A database with the results of some workloads."""

    def __init__(self, folder: Path, values: Mapping[str, Values]) -> None:
        url = f"sqlite:///{folder / 'admeta.sqlite3'}"
        prepare(url)
        self.engine = make_engine(url)
        self.store = SqlStore(self.engine)
        self._values = values

    def add_study(self, workload: str, rates: Mapping[str, list[float]], *, name: str, confirms: bool) -> int:
        """Train these rates of each optimizer, and the best of each three times again. Returns the trainings."""
        lease, searches = leased(self.store, defined(workload, name, list(rates)))
        n = 0
        for search, tried in zip(searches, rates.values(), strict=True):
            n += self._add_search(lease, search, self._values[workload], tried, confirms=confirms)
        self.store.set_study_state(lease, StudyState.COMPLETED)
        return n

    def _add_search(
        self, lease: Lease, search: SearchRecord, values: Values, rates: list[float], *, confirms: bool
    ) -> int:
        known = [rate for rate in rates if "0" in values.get((search.optimizer, rate), {})]
        for number, rate in enumerate(known):
            self._train(lease, search, number, rate, values[search.optimizer, rate]["0"])
        if not known or not confirms:
            return len(known)
        best = max(known, key=lambda rate: values[search.optimizer, rate]["0"])
        again = [value for study, value in sorted(values[search.optimizer, best].items()) if study != "0"][:3]
        for seed, value in enumerate(again):
            self._train(lease, search, known.index(best), best, value, stage=Stage.CONFIRM, seed=seed)
        return len(known) + len(again)

    def _train(self, lease: Lease, search: SearchRecord, number: int, rate: float, value: float, **more: Any) -> None:
        points = [Point(epoch=1, step=1, value=value, metrics={}, cost=Cost(train_s=3600.0, gpu_s=3600.0))]
        run(self.store, lease, search, number, complete(value), params={"lr": rate}, points=points, **more)


def ask(database: Database, workload: str, hours: float) -> RecommendationView:
    return recommendation(database.engine, RecommendRequest(task=task_of(workload), gpu_hours=hours))


def chosen(found: RecommendationView, values: Values) -> tuple[str, float]:
    """The settings that stand for the recommended ones: the known ones with the nearest learning rate."""
    rates = [rate for name, rate in values if name == found.optimizer]
    return found.optimizer, min(rates, key=lambda rate: abs(math.log(rate / found.settings["lr"])))


def spend(database: Database, workload: str, values: Values, hours: int, *, seed: int) -> tuple[str, float]:
    """What is used after the plan was carried out, and the service was asked again."""
    found = ask(database, workload, hours)
    if found.plan is None:
        return chosen(found, values)
    names = [one["name"] for one in found.plan["optimizers"] if any(one["name"] == known for known, _ in values)]
    rng = np.random.default_rng(seed)
    share = math.floor(found.plan["budget"]["gpu_hours"] / len(names))
    rates = {}
    for name in names:
        like = defined(workload, "new", [name])
        earlier = database.store.earlier_trials(name, like=like, studies=None)
        first = [one.params["lr"] for one in portfolio(earlier, like.optimizers[0], like=like, n=4)]
        rest = [float(rate) for rate in rng.permutation(RATES) if rate not in first]
        rates[name] = [*first, *rest][: max(1, share)]
    used = database.add_study(workload, rates, name="planned", confirms=False)
    assert used <= max(hours, len(names)), f"{used} trainings of {hours}"
    return chosen(ask(database, workload, 0.0), values)


def regret(values: Values, settings: tuple[str, float]) -> float:
    """Share of all settings that are better."""
    medians = {one: median(studies.values()) for one, studies in values.items()}
    if settings not in medians:
        return 1.0
    return mean(value > medians[settings] for value in medians.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path)
    source.add_argument("--unpack", type=Path, nargs="+", metavar="PIECE")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if args.unpack:
        with tempfile.TemporaryDirectory() as folder:
            unpack(args.unpack, Path(folder) / "home")
            leave_out_each(database_url(Path(folder) / "home"))
        return
    values = values_of(args.data)
    defaults = [regret(of, ("adamw", RATES[0])) for of in values.values()]
    each = [left_out(values, workload, n_seeds=args.seeds) for workload in values]
    print("| GPU hours, of one training each | regret of AdamW's defaults | of the recommended | difference |")
    print("|---|---|---|---|")
    for hours in BUDGETS:
        found = [of[hours] for of in each]
        gains = [a - b for a, b in zip(found, defaults, strict=True)]
        print(f"| {hours} | {_mean(defaults)} | {_mean(found)} | {_mean(gains)} |")


def left_out(values: Mapping[str, Values], workload: str, *, n_seeds: int) -> dict[int, float]:
    """By budget, the regret on one workload, from a database of the others."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "others"
        home.mkdir()
        others = Database(home, values)
        for other, of in values.items():
            if other != workload:
                names = dict.fromkeys(name for name, _ in of)
                others.add_study(other, {name: list(RATES) for name in names}, name=other, confirms=True)
        others.engine.dispose()
        found = {}
        for hours in BUDGETS:
            regrets = []
            for seed in range(n_seeds if hours else 1):
                copy = Path(shutil.copytree(home, Path(folder) / f"{hours}-{seed}"))
                database = Database(copy, values)
                used = spend(database, workload, values[workload], hours, seed=seed)
                database.engine.dispose()
                regrets.append(regret(values[workload], used))
            found[hours] = mean(regrets)
    print(f"{workload}: {', '.join(f'{one:.2f}' for one in found.values())}", flush=True)
    return found


# Our own studies -----------------------------------------------------------------------------------------------------

MIN_SEARCHED = 4
"""Trials of a search that can be left out."""

N_FIRST = 3
"""Settings of a warm start that are looked at; the studies are of four to eight trials."""


@dataclass(frozen=True)
class LeftOut:
    """A search of a study that is left out: its trials with a value, in their order. Of `costs` less is better."""

    spec: OptimizerSearch
    settings: Sequence[Mapping[str, Any]]
    costs: Sequence[float]

    def cost_near(self, settings: Mapping[str, Any]) -> float:
        """The cost of the trial whose settings are nearest."""
        space = {name: parameter for name, parameter in self.spec.space.items() if name in settings}
        near = [nearness(settings, {name: one.get(name) for name in space}, space) for one in self.settings]
        return self.costs[int(np.argmax(near))]


def leave_out_each(url: str) -> None:
    """Print what warm starts and the recommendation would be worth on each task and model without its studies."""
    engine = make_engine(url)
    store = SqlStore(engine)
    with reading(engine) as session:
        completed = select(Study.id, Study.tags).where(Study.state == StudyState.COMPLETED)
        tags = {study: of_study for study, of_study in session.execute(completed)}
    by_task: dict[tuple[str, str | None], list[StudyRecord]] = defaultdict(list)
    for study in map(store.get_study, tags):
        by_task[study.definition.task.name, study.definition.task.model].append(study)
    print("| left out | searches | warm start, first 1, 2, 3 | cold, first 1, 2, 3 | recommended | AdamW's defaults |")
    print("|---|---|---|---|---|---|")
    rows = []
    for (task, model), studies in by_task.items():
        found = [(searches_of(store, one), one.definition) for one in studies]
        most, definition = max(found, key=lambda of: len({search.spec.name for search in of[0]}))
        if not most:
            continue
        for one in studies:
            change_study(engine, one.id, StudyChanges(tags=[VOID_TAG]))
        row = [*_regrets_of_warm_starts(store, most, definition), *_regrets_of_recommended(engine, most, definition)]
        for one in studies:
            change_study(engine, one.id, StudyChanges(tags=tags[one.id]))
        rows.append(row)
        print(f"| {task}, {model} | {len(most)} | {_in_cells([f'{value:.2f}' for value in row])} |", flush=True)
    columns = [list(column) for column in zip(*rows, strict=True)]
    print(f"| mean ± error between tasks | | {_in_cells([_mean(column) for column in columns])} |")
    for k in range(N_FIRST):
        differences = [warm - cold for warm, cold in zip(columns[k], columns[N_FIRST + k], strict=True)]
        print(f"warm less cold after {k + 1}: {_mean(differences)}")
    print(f"recommended less AdamW's defaults: {_mean([a - b for a, b in zip(*columns[-2:], strict=True)])}")
    engine.dispose()


def _in_cells(row: Sequence[str]) -> str:
    return " | ".join([", ".join(row[:N_FIRST]), ", ".join(row[N_FIRST : 2 * N_FIRST]), *row[2 * N_FIRST :]])


def searches_of(store: SqlStore, study: StudyRecord) -> list[LeftOut]:
    """The searches of the study with enough trials."""
    sign = study.definition.objective.direction.cost(1.0)
    found = []
    for search in store.searches(study.id):
        runs = [run for run in store.runs(study.id) if run.search_id == search.id and run.stage is Stage.SEARCH]
        known = [(run.params, sign * run.value) for run in runs if run.value is not None]
        if len(known) >= MIN_SEARCHED:
            spec = study.definition.planned_search(search.label).optimizer
            found.append(LeftOut(spec, [params for params, _ in known], [cost for _, cost in known]))
    return found


def _regrets_of_warm_starts(store: SqlStore, searches: Sequence[LeftOut], definition: StudyDefinition) -> list[float]:
    """Of the best of the first 1, 2, … settings: with a warm start, then in the order of the search itself."""
    warm, cold = [], []
    for one in searches:
        earlier = store.earlier_trials(one.spec.name, like=definition, studies=None)
        first = [one.cost_near(taken.params) for taken in portfolio(earlier, one.spec, like=definition, n=N_FIRST)]
        own = [*first, *one.costs][:N_FIRST]  # what is not taken over is drawn
        warm.append([_share_better(one.costs, min(own[: k + 1])) for k in range(N_FIRST)])
        cold.append([_share_better(one.costs, min(one.costs[: k + 1])) for k in range(N_FIRST)])
    return [*map(mean, zip(*warm, strict=True)), *map(mean, zip(*cold, strict=True))]


def _regrets_of_recommended(
    engine: Engine, searches: Sequence[LeftOut], definition: StudyDefinition
) -> tuple[float, float]:
    """Of what the service recommends, and of AdamW's defaults, among the trials of all optimizers."""
    task = {**definition.task.model_dump(mode="json", exclude_defaults=True), "name": definition.task.name}
    found = recommendation(engine, RecommendRequest(task=task))
    by_name = {one.spec.name: one for one in searches}
    every = [cost for one in searches for cost in one.costs]
    adamw = by_name["adamw"]
    default = adamw.cost_near(adamw.spec.at_defaults().fixed)
    return _share_better(every, by_name[found.optimizer].cost_near(found.settings)), _share_better(every, default)


def _share_better(costs: Sequence[float], cost: float) -> float:
    return mean(other < cost for other in costs)


def _mean(shares: list[float]) -> str:
    return f"{mean(shares):.2f} ± {stdev(shares) / math.sqrt(len(shares)):.2f}"


if __name__ == "__main__":
    main()
