"""Where successive halving should compare first, by what limits a search: trials, or the epochs of all its trials.

    python -m benchmarks.rungs --data DIR               both tables (half an hour on one core)
    python -m benchmarks.rungs --data DIR --seeds 10    a quick look

DIR holds `tuning-runs.jsonl.xz`: 2,048 trainings of others with settings drawn at random and their learning curves
(AlexNet and ConvNeXt-Tiny on ImageNet, DeBERTa on MNLI), all scaled to one length. A search draws from these trainings,
one after another: at random, or the one nearest to what our TPE proposes, each at most once. Pruning is the service's
own (`search.pruners`). The searches of two rows have the same seeds, and their differences are of pairs.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmarks.printing import show, wilson
from search import optuna_samplers, pruners, samplers
from search.space import FloatParameter
from search.states import Direction
from search.trial_views import FAILURE_KIND

EPOCHS = 36
"""Length to which the learning curves are scaled; a ninth and a third of it are epochs."""

N_TRIALS = (8, 20, 40)
TRAININGS = (5, 10, 20)
"""Budgets: trials, and the epochs of so many whole trainings."""

LOGS = ("lr", "learning_rate", "weight_decay")
PARAMETERS = {
    "alexnet": ("epochs", "batch_size", "lr", "lr_peak_epoch", "momentum", "weight_decay", "label_smoothing"),
    "convnext-tiny": ("epochs", "batch_size", "lr", "lr_peak_epoch", "momentum", "weight_decay", "label_smoothing"),
    "deberta-base": ("num_train_epochs", "train_batch_size", "learning_rate", "warmup_steps", "cls_drop_out"),
}
WEIGHTS = {"lr": 5.0, "learning_rate": 5.0}
"""By how much more than others a parameter counts where the nearest training is looked for: it decides the result."""

PRUNERS: Mapping[str, pruners.Pruner] = {
    "nothing is stopped": pruners.NoPruner(name="none"),
    "a third": pruners.AshaPruner(min_epochs=EPOCHS // 3),
    "a sixth and a half": pruners.AshaPruner(min_epochs=EPOCHS // 6),
    "a ninth and a third": pruners.AshaPruner(min_epochs=EPOCHS // 9),
}

NOW = "a third"
"""What the others are compared with."""


@dataclass(frozen=True)
class Training:
    """One of the others' trainings: its settings, scaled to 0 to 1, and its accuracy by epoch until it diverged."""

    params: Mapping[str, float]
    curve: Mapping[int, float]

    @property
    def final(self) -> float:
        return self.curve.get(EPOCHS, 0.0)


def trainings(data: Path, name: str) -> list[Training]:
    """The trainings of one set."""
    with lzma.open(data / "tuning-runs.jsonl.xz", "rt") as file:
        runs = [run for run in map(json.loads, file) if run["set"] == name]
    raw = np.array([[math.log(run[p]) if p in LOGS else float(run[p]) for p in PARAMETERS[name]] for run in runs])
    unit = (raw - raw.min(axis=0)) / np.ptp(raw, axis=0)
    return [
        Training(dict(zip(PARAMETERS[name], map(float, row), strict=True)), _curve(run))
        for run, row in zip(runs, unit, strict=True)
    ]


def _curve(run: Mapping[str, Any]) -> dict[int, float]:
    """Accuracy after each of `EPOCHS` equal parts of the training, the last evaluation within each."""
    if "learning_curves" in run:
        known = [(step / run["total_model_steps"], value) for step, value in run["learning_curves"]["matched"]]
    else:
        known = [((p["epoch"] + 1) / run["epochs"], p["top_1"]) for p in run["learning_curve"]]
    found: dict[int, float] = {}
    for epoch in range(1, EPOCHS + 1):
        done = [value for share, value in known if share <= epoch / EPOCHS + 1e-9]
        if not known or known[-1][0] < epoch / EPOCHS - 1e-9:  # it diverged before
            break
        if done:
            found[epoch] = done[-1]
    return found


class Pool:
    """The trainings that a search has not made yet, and TPE's view of those that it has."""

    def __init__(self, runs: Sequence[Training], sampler: samplers.Sampler, *, seed: int) -> None:
        self._sampler = sampler.model_copy(update={"seed": seed})
        self._rng = np.random.default_rng(seed)
        self._left = list(runs)
        names = list(runs[0].params)
        self._space = {name: FloatParameter(type="float", low=0, high=1) for name in names}
        self._bounds = {name: FloatDistribution(0, 1) for name in names}
        self._weights = np.array([WEIGHTS.get(name, 1.0) for name in names])
        self._study = optuna.create_study(direction="maximize")

    def propose(self) -> Training:
        """The next training: at random, or the one nearest to TPE's proposal."""
        wanted: Mapping[str, float] = {}
        if not isinstance(self._sampler, samplers.RandomSampler):
            number = len(self._study.get_trials(deepcopy=False))
            self._study.sampler = optuna_samplers.build(self._sampler, {**self._space}, label="a", trial_number=number)
            trial = self._study.ask()
            wanted = trial.relative_params
            self._study.tell(trial, state=TrialState.FAIL)  # TPE learns of the training that stands for it instead
        if not wanted:  # random search, and TPE's first trials
            return self._left.pop(int(self._rng.integers(len(self._left))))
        at = np.array([wanted[name] for name in self._space])
        points = np.array([list(run.params.values()) for run in self._left])
        return self._left.pop(int(np.argmin((((points - at) * self._weights) ** 2).sum(axis=1))))

    def tell(self, run: Training, curve: Mapping[int, float], *, stopped: bool) -> None:
        """Record what the search saw of a training."""
        state = TrialState.PRUNED if stopped else TrialState.COMPLETE if EPOCHS in curve else TrialState.FAIL
        self._study.add_trial(_trial(run, curve, state, self._bounds))


def _trial(
    run: Training, curve: Mapping[int, float], state: TrialState, bounds: Mapping[str, FloatDistribution]
) -> FrozenTrial:
    return create_trial(
        state=state,
        value=None if state is TrialState.FAIL else curve[max(curve)],
        params=dict(run.params),
        distributions=dict(bounds),
        intermediate_values=dict(curve),
        user_attrs={FAILURE_KIND: "diverged"} if state is TrialState.FAIL else {},
    )


@dataclass(frozen=True)
class Step:
    """Where a search is after a trial: epochs trained by all, the best complete trial, the best of all if whole."""

    spent: int
    best: float
    best_if_whole: float


def search(runs: Sequence[Training], pruner: pruners.Pruner, sampler: samplers.Sampler, *, seed: int) -> Iterator[Step]:
    """One search, a step after each trial."""
    pool = Pool(runs, sampler, seed=seed)
    others: list[pruners.OtherTrial] = []
    spent, best, whole = 0, 0.0, 0.0
    for number in range(len(runs)):
        run = pool.propose()
        curve: dict[int, float] = {}
        stopped = False
        for epoch, value in run.curve.items():
            curve[epoch] = value
            stopped = pruners.stops(
                pruner, trial_number=number, curve=curve, others=lambda: others, direction=Direction.MAXIMIZE,
                max_epochs=EPOCHS,
            )  # fmt: skip
            if stopped:
                break
        spent += max(curve, default=0) if stopped or EPOCHS in curve else max(curve, default=0) + 1
        others.append(pruners.OtherTrial(curve=curve, is_complete=EPOCHS in curve))
        pool.tell(run, curve, stopped=stopped)
        best, whole = max(best, curve.get(EPOCHS, 0.0)), max(whole, run.final)
        yield Step(spent, best, whole)


def outcomes(steps: Iterator[Step]) -> tuple[dict[int, Step], dict[int, float]]:
    """The step at each number of trials, and the best value within the epochs of so many whole trainings.

    As in the service, a search asks for trials until its budget is spent, and its last one runs to its end.
    """
    at_trials: dict[int, Step] = {}
    at_trainings: dict[int, float] = {}
    for n, step in enumerate(steps, 1):
        if n in N_TRIALS:
            at_trials[n] = step
        for budget in TRAININGS:
            if step.spent >= budget * EPOCHS:
                at_trainings.setdefault(budget, step.best)
        if n >= N_TRIALS[-1] and len(at_trainings) == len(TRAININGS):
            break
    return at_trials, at_trainings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the public results")
    parser.add_argument(
        "--seeds", type=int, default=50, help="searches of each kind by TPE; four times as many at random"
    )
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    by_trials, by_epochs = [], []
    for name in PARAMETERS:
        runs = trainings(options.data, name)
        random, tpe = samplers.RandomSampler(name="random"), samplers.TpeSampler()
        for sampler, n_seeds in ((random, 4 * options.seeds), (tpe, options.seeds)):
            found = {
                title: [outcomes(search(runs, pruner, sampler, seed=seed)) for seed in range(n_seeds)]
                for title, pruner in PRUNERS.items()
            }
            for title, of in found.items():
                head = f"{name} | {sampler.name} | {title}"
                by_trials.append(f"{head} | {' | '.join(_at_trials([t for t, _ in of], n) for n in N_TRIALS)}")
                gains = (_gain([e[n] for _, e in of], [e[n] for _, e in found[NOW]]) for n in TRAININGS)
                by_epochs.append(f"{head} | {' | '.join(gains)}")
                print(by_trials[-1], by_epochs[-1], sep="\n", flush=True)
    head = "set | sampler | first compared after"
    show(
        "Budgets in trials: best value in percent, and searches that stopped their best trial, in percent",
        f"{head} | {' | '.join(f'{n} trials | lost' for n in N_TRIALS)}",
        by_trials,
    )
    show(
        f"Budgets in epochs: best value in percent, and its difference to the row '{NOW}'",
        f"{head} | {' | '.join(f'{n} trainings | difference' for n in TRAININGS)}",
        by_epochs,
    )


def _at_trials(found: Sequence[Mapping[int, Step]], n: int) -> str:
    steps = [one[n] for one in found]
    lost = sum(step.best < step.best_if_whole for step in steps)
    return f"{_mean([step.best for step in steps])} | {wilson(lost, len(steps))}"


def _gain(values: Sequence[float], others: Sequence[float]) -> str:
    """The mean of a row, and that of its pairs with another."""
    return f"{100 * np.mean(values):.2f} | {_mean(np.subtract(values, others))}"


def _mean(values: Sequence[float] | np.ndarray) -> str:
    return f"{100 * np.mean(values):.2f} ± {100 * np.std(values, ddof=1) / math.sqrt(len(values)):.2f}"


if __name__ == "__main__":
    main()
