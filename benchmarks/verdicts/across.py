"""Optimizers across tasks: AlgoPerf's published scores, and how often ranks over tasks tell optimizers apart."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import chi2, studentized_range
from scipy.stats import f as f_dist

from benchmarks.printing import show, wilson
from search.analysis.across import Outcome, Task, told_apart
from search.analysis.algoperf import read_curves, read_targets, scores
from search.analysis.profiles import Friedman, friedman
from search.states import Direction

LESS = Direction.MINIMIZE

PUBLISHED = {
    "external_tuning": {
        "shampoo_submission": 0.7784, "schedule_free_adamw": 0.7077, "generalized_adam": 0.6383, "cyclic_lr": 0.6301,
        "nadamp": 0.5909, "baseline": 0.5707, "amos": 0.4918, "caspr_adaptive": 0.4722, "lawa_queue": 0.3699,
        "lawa_ema": 0.3384, "schedule_free_prodigy": 0.0,
    },
    "self_tuning": {
        "schedule_free_adamw": 0.8542, "baseline": 0.8194, "nadamw_sequential": 0.3308, "sinv6_75": 0.1420,
        "sinv6": 0.0903, "adamg": 0.0,
    },
}  # fmt: skip
"""Scores of MLCommons AlgoPerf v0.5, as published."""


def algoperf(data: Path) -> None:
    """AlgoPerf v0.5's published scores from its curves."""
    targets = read_targets(data / "algoperf-v05-targets.json")
    curves = list(read_curves(data / "algoperf-curves.csv.xz"))
    rows = []
    for rules, published in PUBLISHED.items():
        found = scores([row for row in curves if row.group == f"v05 {rules}"], targets)
        rows += [f"{rules} | {name} | {score:.4f} | {found[name].score:.4f}" for name, score in published.items()]
    show("AlgoPerf v0.5", "rules | submission | published | here", rows)


def ranks(_: Path) -> None:
    """How often equal optimizers are told apart by their ranks over tasks, and one that is better is."""
    rows = []
    for k, n, p_failed in (
        *((k, n, 0.0) for k in (2, 4, 9) for n in (3, 5, 8, 17)),
        *((k, 8, 0.2) for k in (2, 4, 9)),
    ):
        rng, n_samples = np.random.default_rng(0), 1000
        count = dict.fromkeys(("chi-square", "Iman and Davenport", "permutation", "Nemenyi", "groups", "shown"), 0)
        for _ in range(n_samples):
            values = rng.normal(size=(n, k))
            failed = rng.random((n, k)) < p_failed
            test = ranked(values, failed)
            if test.p_value is None or test.statistic is None:
                continue
            apart = np.ptp(list(test.mean_ranks.values())) > nemenyi(k, n) + 1e-9
            rest = n * (k - 1) - test.statistic
            f = (n - 1) * test.statistic / rest if rest > 1e-9 else math.inf
            count["chi-square"] += bool(chi2.sf(test.statistic, k - 1) <= 0.05)
            count["Iman and Davenport"] += bool(f_dist.sf(f, k - 1, (k - 1) * (n - 1)) <= 0.05)
            count["permutation"] += test.p_value <= 0.05
            count["Nemenyi"] += bool(apart)
            count["groups"] += len(told_apart(test)) > 1
            values[:, 0] -= 1.5
            test = ranked(values, failed)
            groups = told_apart(test)
            count["shown"] += len(groups) > 1 and any("o0" not in group for group in groups)
        failing = f"{n}, runs fail with probability {p_failed}" if p_failed else str(n)
        rows.append(f"{k} | {failing} | " + " | ".join(wilson(of, n_samples) for of in count.values()))
    header = "optimizers | tasks | chi-square | Iman and Davenport | permutation | Nemenyi alone | both | one better"
    show("Equal optimizers told apart by their ranks over tasks, %; one better by 1.5 sd told apart, %", header, rows)
    run_std()


def ranked(values: np.ndarray, failed: np.ndarray) -> Friedman:
    return friedman(
        [
            ({f"o{j}": None if bad else float(value) for j, (value, bad) in enumerate(zip(row, of, strict=True))}, LESS)
            for row, of in zip(values, failed, strict=True)
        ],
        n_draws=2000,
    )


@cache
def nemenyi(k: int, n: int) -> float:
    return float(studentized_range.ppf(0.95, k, np.inf)) * math.sqrt(k * (k + 1) / (12 * n))


def run_std() -> None:
    """How near the standard deviation of a task's runs is to the true one, 1."""
    rows = []
    for k, n in ((2, 3), (4, 3), (9, 3), (9, 5)):
        rng, found = np.random.default_rng(0), []
        for unstable in (1.0, 10.0):
            scales = [unstable, *[1.0] * (k - 1)]
            found.append([
                Task(
                    direction=LESS,
                    outcomes={f"o{i}": Outcome(values=tuple(rng.normal(0, sd, n))) for i, sd in enumerate(scales)},
                ).std() or 0.0
                for _ in range(2000)
            ])  # fmt: skip
        low, middle, high = np.quantile(found[0], [0.1, 0.5, 0.9])
        rows.append(f"{k} | {n} | {middle:.2f} | {low:.2f} to {high:.2f} | {np.median(found[1]):.2f}")
    header = "optimizers | seeds | median | 80 % of estimates | median, one of ten times the standard deviation"
    show("Standard deviation of a task's runs, true: 1", header, rows)
