"""What a search for several objectives gains, and what it costs: hypervolume and the best value, at equal budgets.

    python -m benchmarks.pareto                       a synthetic trade-off (some ten minutes on one core)
    python -m benchmarks.pareto --data DIR            also 653 trainings of others, with their accuracy and seconds
    python -m benchmarks.pareto --noise digits/mlp    seconds of twelve trainings of one configuration, in turn

DIR holds `tuning-runs.jsonl.xz`: AlexNet and ConvNeXt-Tiny on ImageNet. A search takes the training nearest to what the
sampler proposes, each at most once. Searches of one seed are pairs.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from benchmarks.printing import show
from benchmarks.rungs import LOGS, PARAMETERS, WEIGHTS
from search import optuna_samplers, samplers
from search.objectives import corners, cost_of, hypervolume
from search.space import FloatParameter
from search.states import Direction

N_TRIALS = (10, 20, 40)
BOTH = (Direction.MINIMIZE, Direction.MINIMIZE)
NOISE = (0.003, 0.05)
"""Standard deviation of the error between seeds, and of seconds as a share of them."""

Values = tuple[float, float]

TPE, GP = samplers.TpeSampler(), samplers.GpSampler(name="gp", n_startup_trials=4)
SEARCHES: Mapping[str, tuple[samplers.Sampler, int, int]] = {
    "random": (samplers.RandomSampler(name="random"), 1, 40),
    "qmc": (samplers.QmcSampler(name="qmc"), 1, 40),
    "tpe, the error alone": (TPE, 1, 40),
    "tpe, both": (TPE, 2, 40),
    "gp, the error alone": (GP, 1, 20),
    "gp, both": (GP, 2, 20),
}
"""Sampler, number of objectives that it is told, and trials."""


def trade_off(params: Mapping[str, float]) -> Values:
    """Error and seconds of a training: small batches learn more and take longer, so does a larger model.

    The best learning rate grows with the root of the batch.
    """
    batch, width = 16 * 64 ** params["batch"], 1 + 3 * params["width"]
    off = 6 * (params["lr"] - 0.3 - 0.3 * params["batch"])
    error = 0.04 + 0.03 / width + 0.012 * params["batch"] + min(0.6, 0.05 * off**2) + 0.01 * params["other"] ** 2
    return error, (0.3 + 16 / batch) * (0.4 + 0.6 * width)


SPACE = dict.fromkeys(("lr", "batch", "width", "other"), FloatParameter(type="float", low=0, high=1))
CORNERS = (0.04, 0.3), (0.3, 3.25)
"""Ideal point and reference of the synthetic trade-off: an error of 0.3 is that of a training that went wrong."""


class Search:
    """One search: what it proposed, and the values that it was told."""

    def __init__(self, sampler: samplers.Sampler, n_objectives: int, names: Sequence[str], *, seed: int) -> None:
        self._sampler = sampler.model_copy(update={"seed": seed})
        self._n = n_objectives
        self._space = dict.fromkeys(names, SPACE["lr"])
        self._bounds = dict.fromkeys(names, FloatDistribution(0, 1))
        self._rng = np.random.default_rng(seed)
        self._study = optuna.create_study(directions=["minimize"] * n_objectives)

    def propose(self) -> dict[str, float]:
        number = len(self._study.get_trials(deepcopy=False)) // 2
        self._study.sampler = optuna_samplers.build(self._sampler, {**self._space}, label="a", trial_number=number)
        trial = self._study.ask(self._bounds)
        self._study.tell(trial, state=TrialState.FAIL)  # the sampler learns of what was trained in its place
        return dict(trial.params)

    def tell(self, params: Mapping[str, float], values: Values) -> None:
        self._study.add_trial(
            create_trial(
                params=dict(params), distributions=self._bounds, state=TrialState.COMPLETE, values=values[: self._n]
            )
        )


def on_surface(search: Search, n_trials: int, seed: int) -> list[Values]:
    """The values without noise of each trial; the search sees them with it."""
    rng, found = np.random.default_rng(10_000 + seed), []
    for _ in range(n_trials):
        params = search.propose()
        error, seconds = trade_off(params)
        search.tell(params, (error + NOISE[0] * rng.normal(), seconds * math.exp(NOISE[1] * rng.normal())))
        found.append((error, seconds))
    return found


def trainings(data: Path, name: str) -> list[tuple[dict[str, float], Values]]:
    """Settings scaled to 0 to 1, and error and hours, of the trainings that came to their end."""
    with lzma.open(data / "tuning-runs.jsonl.xz", "rt") as file:
        runs = [run for run in map(json.loads, file) if run["set"] == name]
    runs = [run for run in runs if len(run["learning_curve"]) >= run["epochs"]]
    raw = np.array([[math.log(run[p]) if p in LOGS else float(run[p]) for p in PARAMETERS[name]] for run in runs])
    unit = (raw - raw.min(axis=0)) / np.ptp(raw, axis=0)
    ends = [run["learning_curve"][-1] for run in runs]
    return [
        (dict(zip(PARAMETERS[name], map(float, row), strict=True)), (1 - end["top_1"], end["time"] / 3600))
        for row, end in zip(unit, ends, strict=True)
    ]


def on_table(runs: Sequence[tuple[dict[str, float], Values]], search: Search, n_trials: int, _: int) -> list[Values]:
    """Error and hours of each training that a search takes."""
    left, names, found = list(runs), list(runs[0][0]), []
    weights = np.array([WEIGHTS.get(name, 1.0) for name in names])
    for _ in range(n_trials):
        at = np.array([search.propose()[name] for name in names])
        points = np.array([list(params.values()) for params, _ in left])
        params, values = left.pop(int(np.argmin((((points - at) * weights) ** 2).sum(axis=1))))
        search.tell(params, values)
        found.append(values)
    return found


def compare(
    title: str,
    names: Sequence[str],
    run: Callable[[Search, int, int], list[Values]],
    ends: tuple[Sequence[float], Sequence[float]],
    *,
    n_seeds: int,
) -> list[str]:
    """A row for each kind of search: hypervolume and lowest error at each number of trials, with standard errors.

    Args:
        names: of the parameters.
        run: makes a search of so many trials with a seed.
        ends: ideal point and reference of the hypervolume.
        n_seeds: searches of each kind; a fifth by the GP, which takes seconds for a proposal.
    """
    ideal, reference = ends
    rows = []
    for name, (sampler, n_objectives, n_trials) in SEARCHES.items():
        seeds = range(max(2, n_seeds // 5) if isinstance(sampler, samplers.GpSampler) else n_seeds)
        found = [run(Search(sampler, n_objectives, names, seed=seed), n_trials, seed) for seed in seeds]
        cells = []
        for n in N_TRIALS:
            shares = [100 * (hypervolume(one[:n], BOTH, ideal=ideal, reference=reference) or 0.0) for one in found]
            errors = [100 * min(error for error, _ in one[:n]) for one in found]
            cells += [mean(shares), mean(errors)] if n <= n_trials else ["–", "–"]
        rows.append(f"{title} | {name} | {' | '.join(cells)}")
        print(rows[-1], flush=True)
    return rows


def mean(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values) / math.sqrt(len(values)):.2f}"


def noise(of: str, n: int = 12) -> None:
    """Print how much seconds and memory differ between trainings of one configuration, one after another."""
    from tasks.registry import parse_config
    from tasks.runs import open_run

    task, model = of.split("/")
    runs = []
    for seed in range(n):
        run = open_run(parse_config({"name": task, "model": model}), optimizer="adamw", params={"lr": 1e-3}, seed=seed)
        costs = []
        while not run.done:
            costs.append(run.advance().cost)
        run.close()
        runs.append(costs)
    rows = []
    for name in ("train_s", "optimizer_s", "gpu_s", "peak_memory_bytes"):
        columns = {"as an objective": [cost_of(name, [getattr(cost, name) for cost in costs]) for costs in runs]}
        if name.endswith("_s"):
            columns["sum"] = [sum(getattr(cost, name) for cost in costs) for costs in runs]
        for title, found in columns.items():
            center = statistics.mean(found)
            spread = 100 * statistics.stdev(found) / center if center else 0.0
            rows.append(f"{name} | {title} | {found[0]:.4g} | {statistics.mean(found[1:]):.4g} | {spread:.1f}")
    show(f"{of}: {n} trainings of one configuration", "cost | value | first | mean of the others | spread, %", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the public results")
    parser.add_argument("--seeds", type=int, default=50, help="searches of each kind")
    parser.add_argument("--noise", help="TASK/MODEL: only this")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    if options.noise:
        noise(options.noise)
        return
    rows = compare("synthetic", list(SPACE), on_surface, CORNERS, n_seeds=options.seeds)
    if options.data:
        for name in ("alexnet", "convnext-tiny"):
            runs = trainings(options.data, name)
            ends = corners([values for _, values in runs], BOTH)
            rows += compare(name, PARAMETERS[name], partial(on_table, runs), ends, n_seeds=options.seeds)
    cells = " | ".join(f"{n} trials: hypervolume, % | lowest error, %" for n in N_TRIALS)
    show("Searches for the error alone, and for error and seconds", f"trade-off | search | {cells}", rows)


if __name__ == "__main__":
    main()
