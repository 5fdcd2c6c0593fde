"""What a search gains from earlier studies, and what it loses where these mislead: `warm_start: {from: everything}`.

    python -m benchmarks.remember --data DIR               all tables (twenty minutes on one core)
    python -m benchmarks.remember --data DIR --seeds 4     a quick look

DIR holds others' results. `tuning-runs.jsonl.xz`: 2,048 random settings of AlexNet and ConvNeXt-Tiny on ImageNet and of
DeBERTa on MNLI with their accuracies. A Gaussian process fitted to their ranks gives the accuracy of any settings; a
model at one batch size (ImageNet) or number of epochs (MNLI) is a task. The earlier studies are cold searches of the
other tasks. `algoperf-curves.csv.xz`: 11 submissions of 5 settings each on 8 workloads, where a search tries settings
in turn, and knows from the other workloads which were best there.

The portfolio and the steps near the best settings are the service's own (`search.warm_start`), and so is TPE. Every
task is left out once. The constants of the steps were chosen on every second task; "others" are those that remain.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy import stats

from benchmarks.rungs import LOGS
from search import optuna_samplers
from search.definition import StudyDefinition
from search.optimizer_search import OptimizerSearch
from search.samplers import TpeSampler
from search.sections import Budget, WarmStart
from search.space import CategoricalParameter, FloatParameter, Parameter
from search.states import Direction
from search.trial_views import FAILURE_KIND
from search.warm_start import EarlierTrial, Taken, near_best, portfolio

N_TRIALS = 20
"""Trainings of an earlier search, and of the cold search that a warm one is compared with."""

N_COLD = 60
"""Cold searches of each task: what is compared with, and the earlier studies."""

DIVERGED = 0.01
"""Accuracy on ImageNet up to which a training learned nothing."""

Array = NDArray[np.float64]

SEARCHED = {
    "alexnet": ("lr", "lr_peak_epoch", "momentum", "weight_decay", "label_smoothing"),
    "deberta-base": ("learning_rate", "train_batch_size", "warmup_steps", "cls_drop_out"),
}
SEARCHED["convnext-tiny"] = SEARCHED["alexnet"]
HELD = {
    "alexnet": ("epochs", "batch_size"),
    "convnext-tiny": ("epochs", "batch_size"),
    "deberta-base": ("num_train_epochs",),
}
HELD_AT: Mapping[str, Sequence[tuple[float, ...]]] = {
    "alexnet": [(60, math.log(size)) for size in (128, 256, 512, 1024)],
    "convnext-tiny": [(60, math.log(size)) for size in (128, 256, 512, 1024)],
    "deberta-base": [(epochs,) for epochs in (1, 2, 3, 4)],
}
"""Where the tasks of each model are cut out of its settings. The logarithm of the batch size is fitted."""


@dataclass(frozen=True)
class Task:
    """A model with the settings that are the same for all its trials."""

    model: str
    held: tuple[float, ...]
    value: Callable[[Array], float]

    @property
    def searched(self) -> tuple[str, ...]:
        return SEARCHED[self.model]

    @property
    def space(self) -> dict[str, Parameter]:
        return {name: FloatParameter(type="float", low=0, high=1) for name in self.searched}

    @property
    def title(self) -> str:
        last = self.held[-1]
        return f"{self.model}, {f'{last:g} epochs' if self.model == 'deberta-base' else f'batch {math.exp(last):.0f}'}"


@dataclass(frozen=True)
class Tried:
    """A training of a search; no value where it diverged."""

    at: Array
    value: float | None


def tasks(data: Path) -> list[Task]:
    """All tasks, each with the surface that stands for its trainings."""
    with lzma.open(data / "tuning-runs.jsonl.xz", "rt") as file:
        runs = [json.loads(line) for line in file]
    found = []
    for model, cuts in HELD_AT.items():
        names = (*HELD[model], *SEARCHED[model])
        alike = [one for one in HELD_AT if SEARCHED[one] == SEARCHED[model]]
        raw = {one: np.array([_point(run, names) for run in runs if run["set"] == one]) for one in alike}
        low, span = np.concatenate([*raw.values()]).min(axis=0), np.ptp(np.concatenate([*raw.values()]), axis=0)
        surface = _surface((raw[model] - low) / span, np.array([_final(run) for run in runs if run["set"] == model]))
        for cut in cuts:
            held = (np.array(cut) - low[: len(cut)]) / span[: len(cut)]
            found.append(Task(model, cut, _cut(surface, held)))
    return found


def _point(run: Mapping[str, Any], names: Sequence[str]) -> list[float]:
    return [math.log(run[name]) if name in (*LOGS, "batch_size") else float(run[name]) for name in names]


def _final(run: Mapping[str, Any]) -> float:
    if "learning_curves" in run:
        return float(run["learning_curves"]["matched"][-1][1])
    is_whole = not run["nan_train_loss"] and len(run["learning_curve"]) == run["epochs"]
    return float(run["learning_curve"][-1]["top_1"]) if is_whole else 0.0


def _cut(surface: Callable[[Array], float], held: Array) -> Callable[[Array], float]:
    return lambda at: surface(np.concatenate([held, at]))


def _surface(x: Array, values: Array) -> Callable[[Array], float]:
    """A Gaussian process of the normal scores of the ranks; its mean is turned into a value by its rank."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    normal = stats.norm.ppf((stats.rankdata(values) - 0.5) / len(values))
    scores = normal / normal.std()
    kernel = ConstantKernel() * Matern([0.5] * x.shape[1], (0.05, 20), nu=2.5) + WhiteKernel(0.1)
    fitted = GaussianProcessRegressor(kernel, random_state=0).fit(x, scores)
    folds = np.arange(len(x)) % 5
    held_out = np.zeros(len(x))
    for fold in range(5):
        part = GaussianProcessRegressor(fitted.kernel_, optimizer=None)
        held_out[folds == fold] = part.fit(x[folds != fold], scores[folds != fold]).predict(x[folds == fold])
    print(
        f"surface of {len(x)} trainings: rank correlation {stats.spearmanr(held_out, scores)[0]:.2f} of held-out ones"
    )
    in_order = np.sort(values)

    def value(at: Array) -> float:
        score = normal.std() * float(fitted.kernel_.k1(at[None], x)[0] @ fitted.alpha_)
        return float(np.interp(stats.norm.cdf(score) * len(in_order) - 0.5, np.arange(len(in_order)), in_order))

    return value


Steps = Callable[[Sequence[FrozenTrial], OptimizerSearch, TpeSampler, Direction], Taken | None]


def no_steps(*_: object) -> None:
    """The portfolio alone, as it was before."""


def search(
    task: Task, *, seed: int, n: int = N_TRIALS, first: Sequence[Taken] = (), steps: Steps = near_best
) -> list[Tried]:
    """One search by our TPE, which begins with these settings and then takes these steps."""
    rng = np.random.default_rng(seed)
    spec = _spec(task.space)
    sampler = TpeSampler(seed=seed)
    bounds = {name: FloatDistribution(0, 1) for name in task.searched}
    study = optuna.create_study(direction="maximize")
    tried: list[Tried] = []
    trials: list[FrozenTrial] = []
    for number in range(n):
        taken = first[number] if number < len(first) else steps(trials, spec, sampler, Direction.MAXIMIZE)
        if taken is not None:
            at = np.array([taken.params[name] for name in task.searched])
        else:
            study.sampler = optuna_samplers.build(sampler, task.space, label="a", trial_number=number)
            trial = study.ask()
            wanted = trial.relative_params
            study.tell(trial, state=TrialState.FAIL)  # what it learns from is added below
            at = np.array([wanted[name] for name in task.searched]) if wanted else rng.random(len(task.searched))
        value = task.value(at)
        is_lost = task.model != "deberta-base" and value <= DIVERGED
        tried.append(Tried(at, None if is_lost else value))
        trials.append(
            create_trial(
                state=TrialState.FAIL if is_lost else TrialState.COMPLETE,
                value=None if is_lost else value,
                params=dict(zip(task.searched, map(float, at), strict=True)),
                distributions=bounds,
                user_attrs={
                    **({} if taken is None else taken.attributes),
                    **({FAILURE_KIND: "diverged"} if is_lost else {}),
                },
            )
        )
        study.add_trial(trials[-1])
    return tried


def best_so_far(tried: Sequence[Tried]) -> Array:
    return np.maximum.accumulate([one.value or 0.0 for one in tried])


Prior = Callable[[list[tuple[Tried, int]]], list[tuple[Tried, int]]]
"""What becomes of an earlier search's trials with their places before they are read."""


def as_found(ranked: list[tuple[Tried, int]]) -> list[tuple[Tried, int]]:
    return ranked


def inverted(ranked: list[tuple[Tried, int]]) -> list[tuple[Tried, int]]:
    """The worst trials take the places of the best ones."""
    return [(one, len(ranked) + 1 - place) for one, place in ranked]


def lr_is_off(ranked: list[tuple[Tried, int]]) -> list[tuple[Tried, int]]:
    """The first parameter, lr, is off by a quarter of its range: a factor of 10 on ImageNet, of 6 on MNLI."""
    return [(Tried(np.where(_FIRST[: len(one.at)], (one.at + 0.25) % 1, one.at), one.value), p) for one, p in ranked]


_FIRST = np.arange(5) == 0


def earlier(task: Task, others: Mapping[Task, Sequence[Tried]], prior: Prior) -> list[EarlierTrial]:
    """The trials of the other tasks' searches, as the database gives them."""
    found = []
    for other, tried in others.items():
        complete = sorted((one for one in tried if one.value is not None), key=lambda one: -(one.value or 0.0))
        ranked = sorted(prior([(one, i) for i, one in enumerate(complete, 1)]), key=lambda pair: pair[1])
        for one, place in ranked[:3]:
            found.append(
                EarlierTrial(
                    study=other.title, label="a", trial=place, metric="val_accuracy", same_recipe=False, place=place,
                    task="digits", model="mlp" if other.model == task.model else "another",
                    settings=dict(zip(task.searched, map(float, one.at), strict=True)),
                )
            )  # fmt: skip
    return found


LIKE = StudyDefinition.model_validate(
    {"name": "new", "task": {"name": "digits", "model": "mlp"}, "optimizers": ["sgdm"]}
)


def begin_with(trials: Sequence[EarlierTrial], space: Mapping[str, Parameter], *, n_trials: int) -> list[Taken]:
    """What the service would begin with, of a budget of so many trials."""
    n = WarmStart.model_validate({"from": "everything"}).n_trials_within(Budget(trials_per_optimizer=n_trials))
    return portfolio(trials, _spec(space), like=LIKE, n=n)


def _spec(space: Mapping[str, Parameter]) -> OptimizerSearch:
    return OptimizerSearch.model_construct(name="sgdm", label="a", space=dict(space), fixed={}, first=[], when=[])


@dataclass(frozen=True)
class Arm:
    """A kind of earlier studies."""

    title: str
    uses: Callable[[Task, Task], bool]
    prior: Prior = as_found


ARMS = (
    Arm("all other tasks of the optimizer", lambda a, b: a.searched == b.searched),
    Arm("of another model only", lambda a, b: a.searched == b.searched and a.model != b.model),
    Arm("misleading: the worst trials as the best", lambda a, b: a.searched == b.searched, inverted),
    Arm("misleading: lr is off", lambda a, b: a.searched == b.searched, lr_is_off),
)


def needed(cold: Array, warm: Array) -> int:
    """Trainings after which the mean warm search is as good as the mean cold one after `N_TRIALS`."""
    reached = np.flatnonzero(warm.mean(axis=0) >= cold[:, N_TRIALS - 1].mean())
    return int(reached[0]) + 1 if len(reached) else warm.shape[1] + 1


def compare(found: Sequence[Task], *, n_seeds: int) -> None:
    """The tables of the searches on surfaces."""
    cold = {task: [search(task, seed=seed) for seed in range(N_COLD)] for task in found}
    curves = {task: np.array([best_so_far(one) for one in runs]) for task, runs in cold.items()}
    print("\n| earlier studies | tasks | trials | steps | trainings until as good as cold after 20 |", end="")
    print(" error against cold, % | the same, worst task, % |\n|---|---|---|---|---|---|---|")
    for arm in ARMS:
        for n in (10, N_TRIALS):
            found_by: list[dict[Task, Array]] = []
            for steps in (no_steps, near_best):
                warm: dict[Task, Array] = {}
                for task in found:
                    known = [other for other in found if other is not task and arm.uses(task, other)]
                    if known:
                        runs = [_warm(task, known, cold, arm, n, seed, steps) for seed in range(n_seeds)]
                        warm[task] = np.array([best_so_far(one) for one in runs])
                found_by.append(warm)
                for title, part in (("all", found), ("others", found[1::2])):
                    of_part = {task: warm[task] for task in part if task in warm}
                    print(
                        f"| {arm.title} | {title} | {n} | {steps.__name__} | {_row(curves, of_part, n)} |", flush=True
                    )
            print(f"steps against none: {_paired(found_by[0], found_by[1], n)} % of the error", flush=True)
    for task, curve in curves.items():
        print(
            f"{task.title}: cold {', '.join(f'{curve[:, i - 1].mean():.4f}' for i in (1, 4, 8, 20))} after 1, 4, 8, 20"
        )


def _warm(
    task: Task,
    known: Sequence[Task],
    cold: Mapping[Task, Sequence[Sequence[Tried]]],
    arm: Arm,
    n: int,
    seed: int,
    steps: Steps,
) -> list[Tried]:
    others = {other: cold[other][(seed + 7 * i) % N_COLD] for i, other in enumerate(known)}
    first = begin_with(earlier(task, others, arm.prior), task.space, n_trials=n)
    return search(task, seed=1000 + seed, n=n, first=first, steps=steps)


def _row(cold: Mapping[Task, Array], warm: Mapping[Task, Array], n: int) -> str:
    """Trainings that are needed, and the change of the error (one minus the accuracy) after n, with standard errors."""
    rng = np.random.default_rng(0)

    def drawn(curves: Array) -> Array:
        return curves[rng.integers(len(curves), size=len(curves))]

    def change(a: Array, b: Array) -> float:
        return 100 * (float((1 - b[:, n - 1]).mean() / (1 - a[:, n - 1]).mean()) - 1)

    counts = [needed(cold[task], curves) for task, curves in warm.items()]
    changes = [change(cold[task], curves) for task, curves in warm.items()]
    resampled = [[(drawn(cold[task]), drawn(curves)) for task, curves in warm.items()] for _ in range(200)]
    count_error = np.std([np.mean([needed(a, b) for a, b in each]) for each in resampled])
    change_errors = np.std([[change(a, b) for a, b in each] for each in resampled], axis=0)
    worst = int(np.argmax(changes))
    of_count = f"{np.mean(counts):.1f} ± {count_error:.1f}" if n == N_TRIALS else "–"
    mean_error = float(np.sqrt((change_errors**2).sum())) / len(changes)
    return (
        f"{of_count} | {np.mean(changes):+.1f} ± {mean_error:.1f} | {changes[worst]:+.1f} ± {change_errors[worst]:.1f}"
    )


def _paired(without: Mapping[Task, Array], with_steps: Mapping[Task, Array], n: int) -> str:
    """What steps change of the error, with its standard error over the searches, in which all else is the same."""
    changes, errors = [], []
    for task, curves in without.items():
        level = (1 - curves[:, n - 1]).mean() / 100
        differences = (curves[:, n - 1] - with_steps[task][:, n - 1]) / level
        changes.append(differences.mean())
        errors.append(differences.std(ddof=1) / math.sqrt(len(differences)))
    return f"{np.mean(changes):+.1f} ± {np.sqrt(np.square(errors).sum()) / len(errors):.1f}"


@cache
def workloads(data: Path) -> dict[str, dict[str, float]]:
    """By base workload of AlgoPerf, each configuration's rank by its best validation value, a median over studies."""
    targets = json.loads((data / "algoperf-v05-targets.json").read_text())
    signs = {name: -1 if one["target_metric_name"] in LOSSES else 1 for name, one in targets["workloads"].items()}
    best: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with lzma.open(data / "algoperf-curves.csv.xz", "rt") as file:
        for row in csv.DictReader(file):
            workload = row["workload"]
            is_wanted = (row["version"], row["rules"]) == ("v05", "external_tuning")
            if is_wanted and workload in targets["base_workloads"] and row["value"]:
                studies = best[workload][f"{row['submission']}/{row['trial']}"]
                value = signs[workload] * float(row["value"])
                studies[row["study"]] = max(studies.get(row["study"], -math.inf), value)
    medians = {name: {one: median(of.values()) for one, of in each.items()} for name, each in best.items()}
    return {
        name: dict(zip(each, map(float, stats.rankdata([-value for value in each.values()])), strict=True))
        for name, each in medians.items()
    }


LOSSES = ("loss", "wer")


def compare_workloads(data: Path, *, n_seeds: int) -> None:
    """Print how many configurations a search that begins with the portfolio tries until it is as good as one of 20."""
    ranks = workloads(data)
    needed_by, cold_rank = [], []
    for target, of_target in ranks.items():
        names = sorted(of_target)
        space = {"configuration": CategoricalParameter(type="categorical", choices=list(names))}
        known = [
            EarlierTrial(
                study=other, label="a", trial=place, task="digits", model="mlp", metric="val_accuracy",
                settings={"configuration": name}, same_recipe=False, place=place,
            )
            for other, of_other in ranks.items() if other != target
            for place, name in enumerate(sorted(of_other, key=of_other.__getitem__)[:3], 1) if name in of_target
        ]  # fmt: skip
        first = [one.params["configuration"] for one in begin_with(known, space, n_trials=N_TRIALS)]
        warm, cold = [], []
        for seed in range(n_seeds):
            order = list(np.random.default_rng(seed).permutation(names))
            cold.append(np.minimum.accumulate([of_target[name] for name in order[:N_TRIALS]]))
            rest = [name for name in order if name not in first]
            warm.append(np.minimum.accumulate([of_target[name] for name in [*first, *rest][:N_TRIALS]]))
        needed_by.append(needed(-np.array(cold), -np.array(warm)))
        cold_rank.append(float(np.array(cold)[:, -1].mean()))
        print(
            f"{target}: rank {cold_rank[-1]:.1f} of {len(names)} after 20 cold; the portfolio's "
            f"{', '.join(f'{of_target[name]:.0f}' for name in first)}; {needed_by[-1]} needed"
        )
    error = np.std(needed_by, ddof=1) / math.sqrt(len(needed_by))
    print(f"AlgoPerf: {np.mean(needed_by):.1f} ± {error:.1f} (between workloads) configurations needed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    compare_workloads(args.data, n_seeds=200)
    compare(tasks(args.data), n_seeds=args.seeds)


if __name__ == "__main__":
    main()
