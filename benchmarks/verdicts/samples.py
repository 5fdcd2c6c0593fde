"""What verdicts are given on: others' public results, and drawn values; and the rules of all tables."""

from __future__ import annotations

import csv
import json
import lzma
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from search.analysis import PairVerdict, Rules, Sample
from search.states import Direction, Verdict

MINIMIZE = Rules(direction=Direction.MINIMIZE, n_draws=3000)
MAXIMIZE = Rules(direction=Direction.MAXIMIZE, n_draws=3000)
REAL = 0.002
"""Differences of validation loss above this count as real: two standard deviations between seeds."""


def last_losses(data: Path) -> dict[str, np.ndarray]:
    """Last validation loss of each seed, by recipe, of those with at least 8 seeds."""
    runs: dict[tuple[str, str], dict[str, tuple[int, float]]] = defaultdict(dict)
    with lzma.open(data / "gpt-track3.csv.xz", "rt") as file:
        for row in csv.DictReader(file):
            of = runs[row["entry"], row["train_steps"]]
            of[row["run"]] = max(of.get(row["run"], (-1, 0.0)), (int(row["step"]), float(row["val_loss"])))
    return {" ".join(key): np.array([loss for _, loss in of.values()]) for key, of in runs.items() if len(of) >= 8}


def final_values(data: Path) -> dict[str, np.ndarray]:
    """Final accuracy of each run of the random searches, by data set; a run that ended without one counts as 0."""
    values: dict[str, list[float]] = defaultdict(list)
    with lzma.open(data / "tuning-runs.jsonl.xz", "rt") as file:
        for line in file:
            run = json.loads(line)
            if "learning_curves" in run:
                curve = [value for _, value in run["learning_curves"]["matched"]]
            else:
                curve = [point["top_1"] for point in run["learning_curve"]]
            values[run["set"]].append(curve[-1] if curve and curve[-1] is not None else 0.0)
    return {name: np.array(of) for name, of in values.items()}


def samples_of(values: Sequence[Sequence[float]]) -> dict[str, Sample]:
    return {f"o{i}": Sample(values=dict(enumerate(of))) for i, of in enumerate(values)}


def any_better(verdicts: Iterable[PairVerdict]) -> bool:
    """Whether any optimizer is called better than another."""
    return any(pair.verdict is Verdict.BETTER for pair in verdicts)
