"""The luck of searches: verdicts on the best of each, estimates of that luck, and bands of the best of n trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import optuna
from scipy.stats.qmc import Sobol

from benchmarks.printing import show, wilson
from benchmarks.verdicts.samples import MAXIMIZE, any_better, final_values, samples_of
from search.analysis import Sample, best_of_n, compare
from search.analysis.moderated import Contrast, Group, contrasts
from search.states import Direction

NOISE = 0.004
"""Standard deviation between seeds on the simulated surface, in accuracy."""


def surface(x: float, y: float) -> float:
    """Accuracy at settings within the unit square; the best is 0.92."""
    return 0.92 - 0.25 * (x - 0.62) ** 2 - 0.06 * (y - 0.35) ** 2 - 0.3 * max(0.0, x - 0.85)


def chosen_settings(sampler: str, n_trials: int, seed: int) -> float:
    """True accuracy of the settings that one search chooses, by the sampler and pruner of Optuna."""
    samplers = {"qmc": partial(optuna.samplers.QMCSampler, scramble=True), "tpe": optuna.samplers.TPESampler}
    pruner = optuna.pruners.SuccessiveHalvingPruner() if sampler == "tpe" else optuna.pruners.NopPruner()
    study = optuna.create_study(direction="maximize", sampler=samplers[sampler](seed=seed), pruner=pruner)
    rng = np.random.default_rng(seed)

    def objective(trial: optuna.Trial) -> float:
        value = surface(trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)) + rng.normal(0, NOISE)
        for epoch in (1, 3, 9):
            trial.report(value - 0.3 / epoch + rng.normal(0, NOISE), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    study.optimize(objective, n_trials=n_trials)
    return surface(study.best_params["x"], study.best_params["y"])


def aa(data: Path) -> None:
    """The same optimizer under several labels, each with searches of its own: who is called better than itself?"""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pools = {
        "QMC, 4 trials": [chosen_settings("qmc", 4, seed) for seed in range(200)],
        "QMC, 8 trials": [chosen_settings("qmc", 8, seed) for seed in range(200)],
        "TPE, 20 trials, ASHA": [chosen_settings("tpe", 20, seed) for seed in range(80)],
    }
    if (data / "tuning-runs.jsonl.xz").exists():
        values, rng = final_values(data)["alexnet"], np.random.default_rng(3)
        pools["8 random trials of AlexNet, as trained"] = [float(rng.choice(values, 8).max()) for _ in range(400)]
    rows, n_studies = [], 200
    for name, pool in pools.items():
        for n_labels in (2, 9):
            for n_seeds in (3, 10):
                cells = []
                for n_searches in (1, 3):
                    rng = np.random.default_rng(4)
                    study = partial(_aa_study, pool, n_labels=n_labels, n_searches=n_searches, n_seeds=n_seeds, rng=rng)
                    wrong = sum(any_better(compare(study(), MAXIMIZE)) for _ in range(n_studies))
                    cells.append(wilson(wrong, n_studies))
                rows.append(f"{name} | {n_labels} | {n_seeds} | {' | '.join(cells)}")
    show(
        f"The same optimizer under several labels, {n_studies} studies: called better than itself, %",
        "search | labels | seeds | one search: on these settings, which do differ | `searches: 3`: on the optimizers",
        rows,
    )


def _aa_study(
    pool: Sequence[float], *, n_labels: int, n_searches: int, n_seeds: int, rng: np.random.Generator
) -> dict[str, Sample]:
    """Values by seed of one search; with several searches, each search's mean over its seeds."""
    chosen = rng.choice(pool, (n_labels, n_searches))
    values = chosen[:, :, None] + rng.normal(0, NOISE, (n_labels, n_searches, n_seeds))
    return samples_of(values[:, 0] if n_searches == 1 else values.mean(axis=2))


def resampled(data: Path) -> None:
    """One search of each: its luck from its own trials resampled, which the service does not do, and why.

    `plain` takes the variance of the best of resampled trials as known with two degrees of freedom, `wide` twice that
    variance with one. `shifted`: the first optimizer is better, by 0.05 on the surface and by 0.1 on AlexNet.
    """
    pools: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
        "random": lambda rng, n, m: np.array([surface(*point) for point in rng.random((n * m, 2))]).reshape(n, m),
        "QMC": lambda rng, n, m: np.array(
            [[surface(*p) for p in Sobol(2, seed=int(rng.integers(2**31))).random(m)] for _ in range(n)]
        ),
    }
    if (data / "tuning-runs.jsonl.xz").exists():
        values = final_values(data)["alexnet"]
        pools["random, AlexNet"] = lambda rng, n, m: rng.choice(values, (n, m))
    rows, n_studies = [], 200
    for name, pool in pools.items():
        better_by = 0.1 if "AlexNet" in name else 0.05
        for n_trials in (4, 8, 16):
            for n_labels in (2, 9):
                cells = []
                for better_by_now in (0.0, better_by):
                    for factor, df in ((1, 2), (2, 1)):
                        rng = np.random.default_rng(9)
                        shown = 0
                        for _ in range(n_studies):
                            trained = pool(rng, n_labels, n_trials)
                            trained[0] += better_by_now
                            found = _resampled_study(trained, rng, factor=factor, df=df)
                            right = [c for c in found if not better_by_now or (c.a == 0 and c.difference > 0)]
                            shown += any(contrast.decided for contrast in right)
                        cells.append(wilson(shown, n_studies))
                rows.append(f"{name} | {n_trials} | {n_labels} | {' | '.join(cells)}")
    show(
        f"The luck of one search by resampling its trials, 3 seeds, {n_studies} studies",
        "search | trials | labels | equal, plain: any called better, % | equal, wide | shifted, plain: shown, % | "
        "shifted, wide",
        rows,
    )


def _resampled_study(trained: np.ndarray, rng: np.random.Generator, *, factor: float, df: float) -> Sequence[Contrast]:
    """Optimizers compared by 3 confirm seeds of each one's best trial; `trained`: true values, (labels, trials)."""
    observed = trained + rng.normal(0, NOISE, trained.shape)
    best = trained[np.arange(len(trained)), observed.argmax(axis=1)]
    confirmed = best[:, None] + rng.normal(0, NOISE, (len(trained), 3))
    m = trained.shape[1]
    place = np.arange(1, m + 1)
    chance = ((m - place + 1) / m) ** m - ((m - place) / m) ** m  # that the i-th best is the best of m drawn again
    in_order = -np.sort(-observed, axis=1)
    between = ((in_order - (in_order @ chance)[:, None]) ** 2) @ chance
    variances = factor * between + confirmed.var(axis=1, ddof=1) / 3
    means = confirmed.mean(axis=1)
    groups = [Group(mean=mean, variance=v, n=(1,), df=df) for mean, v in zip(means, variances, strict=True)]
    return contrasts(groups, list(combinations(range(len(groups)), 2)), n_draws=MAXIMIZE.n_draws)


def bands(data: Path) -> None:
    """How often the band of the best of n covers the truth at every n."""
    rows = []
    for name, values in final_values(data).items():
        for n_trials in (8, 32):
            quantile = 0.5 ** (1 / np.arange(1, n_trials + 1))
            truth = np.sort(values)[np.ceil(quantile * len(values)).astype(int) - 1]
            rng, covered, n_samples = np.random.default_rng(7), 0, 500
            for _ in range(n_samples):
                band = best_of_n(list(rng.choice(values, n_trials)), direction=Direction.MAXIMIZE)
                low = np.array([-math.inf if value is None else value for value in band.low])
                high = np.array([math.inf if value is None else value for value in band.high])
                covered += bool(((low <= truth) & (truth <= high)).all())
            rows.append(f"{name} ({len(values)} runs) | {n_trials} | {wilson(covered, n_samples)}")
    show("Bands of the median best of n, from random searches", "set | trials | covered at every n, %", rows)
