"""Verdicts after a fixed number of seeds: how many real differences they show, and how often they are wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.printing import show, wilson
from benchmarks.verdicts.samples import MAXIMIZE, MINIMIZE, REAL, any_better, last_losses, samples_of
from search.analysis import Sample, compare
from search.states import SignificanceTest


def gpt(data: Path) -> None:
    """How many of the real differences nine recipes with few seeds show."""
    groups = list(last_losses(data).values())
    rows = []
    for n in (3, 5):
        for name, rules, n_earlier in (
            ("Welch + Holm", replace(MINIMIZE, test=SignificanceTest.WELCH), 0),
            ("moderated", MINIMIZE, 0),
            ("moderated, with the variances of an earlier study of nine others", MINIMIZE, 9),
        ):
            rng = np.random.default_rng(0)
            decided = real = wrong = 0
            n_studies = 150
            for _ in range(n_studies):
                order = rng.permutation(len(groups))
                chosen = order[:9]
                drawn = [rng.choice(groups[i], n, replace=False) for i in order[: 9 + n_earlier]]
                means = [groups[i].mean() for i in chosen]
                earlier = [(float(of.var(ddof=1)), n - 1.0) for of in drawn[9:]]
                is_wrong = False
                for pair in compare(samples_of(drawn[:9]), replace(rules, earlier=earlier)):
                    a, b = int(pair.a[1:]), int(pair.b[1:])
                    right = pair.better == (pair.a if means[a] < means[b] else pair.b)
                    is_real = abs(means[a] - means[b]) > REAL
                    real += is_real
                    decided += is_real and right
                    is_wrong |= pair.better is not None and not right
                wrong += is_wrong
            rows.append(f"{n} | {name} | {100 * decided / real:.1f} | {wilson(wrong, n_studies)}")
    show(
        "Nine of 24 recipes of one GPT (validation loss; 8 to 30 seeds each), 150 draws",
        "seeds | test | real differences decided, % | draws with a wrong decision, %",
        rows,
    )


CASES: Mapping[str, Callable[[np.random.Generator, int], list[np.ndarray]]] = {
    "equal": lambda rng, n: [rng.standard_normal(n) for _ in range(9)],
    "unequal (log-normal standard deviations, 0.5)": lambda rng, n: [
        std * rng.standard_normal(n) for std in np.exp(rng.normal(0, 0.5, 9))
    ],
    "one of ten times the standard deviation": lambda rng, n: [
        (10 if i == 8 else 1) * rng.standard_normal(n) for i in range(9)
    ],
    "one of a tenth": lambda rng, n: [(0.1 if i == 8 else 1) * rng.standard_normal(n) for i in range(9)],
    "skew (exponential)": lambda rng, n: [rng.exponential(size=n) for _ in range(9)],
    "outliers (t with 3 degrees of freedom)": lambda rng, n: [rng.standard_t(3, n) for _ in range(9)],
    "two optimizers": lambda rng, n: [rng.standard_normal(n) for _ in range(2)],
    "two optimizers, one of three times": lambda rng, n: [rng.standard_normal(n), 3 * rng.standard_normal(n)],
}


def family(_data: Path) -> None:
    """How often anything is shown among optimizers that are equal in the mean."""
    rows = []
    n_studies = 500
    for case, draw in CASES.items():
        cells = []
        for n in (3, 5):
            rng = np.random.default_rng(1)
            wrong = sum(any_better(compare(samples_of(draw(rng, n)), MAXIMIZE)) for _ in range(n_studies))
            cells.append(wilson(wrong, n_studies))
        rows.append(f"{case} | {' | '.join(cells)}")
    for chance in (0.1, 0.3):
        cells = []
        for n in (3, 5):
            rng = np.random.default_rng(2)
            wrong = 0
            for _ in range(n_studies):
                failed = rng.binomial(n, chance, 9)
                samples = {
                    f"o{i}": Sample(values=dict(enumerate(rng.standard_normal(n - f))), n_failed=int(f))
                    for i, f in enumerate(failed)
                }
                wrong += any_better(compare(samples, MAXIMIZE))
            cells.append(wilson(wrong, n_studies))
        rows.append(f"each run fails with probability {chance:g} | {' | '.join(cells)}")
    show(
        f"Nine equal optimizers, {n_studies} studies: studies in which anything is called better, %",
        "case | 3 seeds | 5 seeds",
        rows,
    )
