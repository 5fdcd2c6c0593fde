"""Learning curves on digits, computed once with the engine and kept as tables.

Owns how a table is made, written and read. What is simulated on it is `benchmarks.search`'s. Every configuration is
trained with several seeds, each with its own validation split: the mean over five is known to about 0.1 points, where
one validation set of 300 digits moves in steps of 0.33.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import admeta.registry
from search.space import CategoricalParameter, from_registry
from tasks.errors import Diverged

DATA = Path(__file__).parent / "data"
EPOCHS = 27
N_VAL = 300  # validation digits of one split; a curve is kept as counts of correct ones


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One configuration's validation curves.

    Attributes:
        correct: for each seed, the number of validation digits classified right after each epoch; a seed that
            diverged has a shorter list.
    """

    optimizer: str
    settings: Mapping[str, Any]
    correct: tuple[tuple[int, ...], ...]

    def mean(self) -> list[float]:
        """Mean validation accuracy over the seeds by epoch, up to the first divergence of any seed."""
        return [sum(at) / (len(at) * N_VAL) for at in zip(*self.correct, strict=False)]

    def of_seed(self, index: int) -> list[float]:
        """Validation accuracy by epoch under one seed."""
        return [correct / N_VAL for correct in self.correct[index]]


def paper_grid(optimizer: str) -> Iterator[dict[str, Any]]:
    """Every configuration of the optimizer's grid in the paper's appendix (searched parameters only)."""
    space = from_registry(admeta.registry.get(optimizer).paper_spaces["paper"])
    choices = [p.choices for p in space.values() if isinstance(p, CategoricalParameter)]
    for values in itertools.product(*choices):
        yield dict(zip(space, values, strict=True))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a table holds: the settings of each optimizer, trained on one of the digits task's models."""

    model: str
    seeds: tuple[int, ...]
    grids: Mapping[str, Sequence[Mapping[str, Any]]]


LEARNING_RATES = tuple(float(f"{10 ** (k / 3):.2g}") for k in range(-12, 1))  # 1e-4 to 1, three a decade


def plan_of(table: str) -> Plan:
    """The plan of "convnet" or "mlp" (the paper's grids), or "mlp_wide" (two optimizers, four decades of lr)."""
    if table != "mlp_wide":
        grids = {name: list(paper_grid(name)) for name in admeta.registry.OPTIMIZERS}
        return Plan(model=table, seeds=(100, 101, 102, 103, 104), grids=grids)
    lambdas, betas = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8), (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    return Plan(
        model="mlp",
        seeds=(100, 101, 102),
        grids={
            "admetar": [{"lr": lr, "lambd": lambd} for lr in LEARNING_RATES for lambd in lambdas],
            "admetas": [{"lr": lr, "beta": beta} for lr in LEARNING_RATES for beta in betas],
        },
    )


TABLES = ("convnet", "mlp", "mlp_wide")


def path_of(table: str) -> Path:
    """Where the table lies."""
    return DATA / f"digits_{table}.json"


def tabulate(table: str) -> None:
    """Train every configuration and write the table; goes on where it was stopped."""
    path, plan = path_of(table), plan_of(table)
    partial = path.with_suffix(".partial.jsonl")
    done = {}
    if partial.exists():
        rows = [json.loads(line) for line in partial.read_text().splitlines()]
        done = {json.dumps([row["optimizer"], row["settings"]]): row for row in rows}
    path.parent.mkdir(exist_ok=True)
    todo = [(name, settings) for name, grid in plan.grids.items() for settings in grid]
    for i, (name, settings) in enumerate(todo, start=1):
        key = json.dumps([name, settings])
        if key not in done:
            row = {
                "optimizer": name,
                "settings": settings,
                "correct": [_train(plan, name, settings, seed) for seed in plan.seeds],
            }
            done[key] = row
            with partial.open("a") as file:
                file.write(json.dumps(row) + "\n")
        finals = [curve[-1] if len(curve) == EPOCHS else "diverged" for curve in done[key]["correct"]]
        print(f"{i}/{len(todo)} {name} {settings}: {finals} of {N_VAL}", flush=True)
    rows = [json.dumps(done[json.dumps([name, settings])]) for name, settings in todo]
    head = json.dumps({"task": "digits", "model": plan.model, "epochs": EPOCHS, "seeds": plan.seeds, "n_val": N_VAL})
    path.write_text(f'{{"about": {head},\n"curves": [\n' + ",\n".join(rows) + "\n]}\n")
    partial.unlink()


def load(table: str) -> list[Curve]:
    """The table's curves."""
    rows = json.loads(path_of(table).read_text())["curves"]
    return [
        Curve(
            optimizer=row["optimizer"],
            settings=row["settings"],
            correct=tuple(tuple(curve) for curve in row["correct"]),
        )
        for row in rows
    ]


def _train(plan: Plan, optimizer: str, settings: Mapping[str, Any], seed: int) -> list[int]:
    from tasks.registry import parse_config
    from tasks.runs import open_run

    config = parse_config({"name": "digits", "model": plan.model, "epochs": EPOCHS, "split_seed": seed - plan.seeds[0]})
    params = {**admeta.registry.get(optimizer).fixed, **settings}
    run = open_run(config, optimizer=optimizer, params=params, seed=seed, device="cpu")
    correct = []
    try:
        while not run.done:
            correct.append(round(run.advance().metrics["val_accuracy"] * N_VAL))
    except Diverged:
        pass
    finally:
        run.close()
    return correct
