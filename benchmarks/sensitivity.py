"""How well the range of a learning rate is found from a few runs: error and coverage, by points, span and noise.

    python -m benchmarks.sensitivity                 simulated curves and digits (three minutes on one core)
    python -m benchmarks.sensitivity --data DIR      also others' fine-tuning of DeBERTa, from DIR/tuning-runs.jsonl.xz

The error is a factor: of a range from 0.01 to 0.08 that is found as 0.01 to 0.06, it is 1.33. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.random import Generator
from scipy.interpolate import PchipInterpolator

from benchmarks.curves import load
from benchmarks.printing import show
from search.analysis import GoodRange, good_range
from search.states import Direction

N = 400
WITHIN = 0.01
SPANS: dict[str, float | None] = {"÷ 10 to × 10": 10.0, "÷ 30 to × 30": 30.0, "space of 3.5 decades": None}
HEADER = "points | span | spread, % | error, median | error, 9 of 10 | open, % | low end held, % | high end held, %"
Curve = Callable[[float], float | None]


class Tally:
    """What many repetitions found, against the true ends of the range."""

    def __init__(self) -> None:
        self.errors: list[float] = []
        self.n_open = self.n_low = self.n_high = 0

    def add(self, found: GoodRange | None, low: float, high: float) -> None:
        assert found is not None
        self.errors.append(abs(math.log(found.high.at / found.low.at) - math.log(high / low)))
        self.n_open += found.low.is_open or found.high.is_open
        if found.low.inner is not None and found.high.inner is not None:
            self.n_low += (found.low.outer or 0.0) <= low <= found.low.inner
            self.n_high += found.high.inner <= high <= (found.high.outer or math.inf)

    def row(self) -> str:
        median, most = (math.exp(float(np.quantile(self.errors, q))) for q in (0.5, 0.9))
        shares = (100 * n / len(self.errors) for n in (self.n_open, self.n_low, self.n_high))
        return f"× {median:.2f} | × {most:.2f} | " + " | ".join(f"{share:.0f}" for share in shares)


def smooth_curve(rng: Generator) -> tuple[Curve, float, float]:
    """Loss over lr with its best, 1, at lr = 1: a slope to either side and a divergence; and the true ends."""
    low, high = rng.uniform(1.5, 8), rng.uniform(1.3, 5)
    to_low, to_high = rng.choice([1.5, 2.0, 3.0]), rng.choice([2.0, 4.0])
    diverges = math.log(high) * rng.uniform(1.5, 4)

    def loss(lr: float) -> float | None:
        x = math.log(lr)
        if x > diverges:
            return None
        rise = (-x / math.log(low)) ** to_low if x < 0 else (x / math.log(high)) ** to_high
        return 1 + min(WITHIN * float(rise), 3.0)

    return loss, 1 / low, high


def simulated() -> list[str]:
    """Curves of known width; the chosen value is off the best by a part of the range, as after a search."""
    rows = []
    for spread in (0.0, 0.001, 0.003, 0.01):
        for name, span in SPANS.items():
            for n_points in (5, 7, 9):
                rng, tally = np.random.default_rng(0), Tally()
                for _ in range(N):
                    loss, low, high = smooth_curve(rng)
                    if span is None:
                        begin = rng.uniform(-2.8, -0.7) * math.log(10)
                        xs = np.linspace(begin, begin + 3.5 * math.log(10), n_points)
                    else:
                        chosen = rng.normal(0, 0.4) * math.log(min(1 / low, high))
                        xs = chosen + np.linspace(-math.log(span), math.log(span), n_points)
                    points = [
                        (lr, [None if y is None else y + rng.normal(0, spread)])
                        for lr in np.exp(xs)
                        for y in [loss(lr)]
                    ]
                    if all(runs == [None] for _, runs in points):
                        continue
                    found = good_range(points, direction=Direction.MINIMIZE, within=WITHIN, std=spread)
                    tally.add(found, low, high)
                rows.append(f"{n_points} | {name} | {100 * spread:g} | {tally.row()}")
    return rows


def digits() -> list[str]:
    """Tabulated trainings of a network on digits: 13 rates over four decades, three seeds of each."""
    lines: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(dict)
    for curve in load("mlp_wide"):
        others = json.dumps({name: value for name, value in curve.settings.items() if name != "lr"})
        lines[curve.optimizer, others][float(curve.settings["lr"])] = [c[-1] / 300 for c in curve.correct]
    spread = statistics.median(statistics.stdev(runs) for line in lines.values() for runs in line.values())
    rows = []
    for within in (0.01, 0.03):
        for seeds in (1, 3):
            tally = Tally()
            for line in lines.values():
                rates = sorted(line)
                whole = good_range(
                    list(line.items()), direction=Direction.MAXIMIZE, within=within, std=spread / math.sqrt(3)
                )
                assert whole is not None
                for first in (0, 1):
                    for seed in range(3 if seeds == 1 else 1):
                        points = [(lr, line[lr][seed : seed + 1] if seeds == 1 else line[lr]) for lr in rates[first::2]]
                        found = good_range(points, direction=Direction.MAXIMIZE, within=within, std=spread)
                        tally.add(found, whole.low.at, whole.high.at)
            rows.append(f"{100 * within:g} | {seeds} | {100 * spread:.2f} | {tally.row()}")
    return rows


def deberta(data: Path) -> list[str]:
    """Random searches of others, by epochs: the truth is the median over lr; a draw is one run near each rate.

    Runs differ in batch size, warm-up and dropout as well, which adds to the spread between seeds.
    """
    by_epochs: dict[int, list[tuple[float, float]]] = defaultdict(list)
    with lzma.open(data / "tuning-runs.jsonl.xz", "rt") as file:
        for run in map(json.loads, file):
            if run["set"] == "deberta-base":
                accuracy = run["learning_curves"]["matched"][-1][1]
                by_epochs[run["num_train_epochs"]].append((math.log(run["learning_rate"]), accuracy))
    rows = []
    for epochs, runs in sorted(by_epochs.items()):
        x, y = (np.array(column) for column in zip(*sorted(runs), strict=True))
        ends = np.linspace(x[0], x[-1], 16)
        groups = [(x >= a) & (x <= b) for a, b in itertools.pairwise(ends)]
        middles = np.array([float(np.median(x[group])) for group in groups])
        truth = PchipInterpolator(middles, [float(np.median(y[group])) for group in groups])
        near_best = [group for group in groups if np.median(y[group]) > 0.99 * y.max()]
        spread = float(np.median([1.4826 * np.median(np.abs(y[g] - np.median(y[g]))) for g in near_best]))
        fine = np.linspace(middles[0], middles[-1], 2000)
        good = np.flatnonzero(truth(fine) >= (1 - WITHIN) * truth(fine).max())
        low, high = math.exp(fine[good[0]]), math.exp(fine[good[-1]])
        rng, tally = np.random.default_rng(0), Tally()
        for _ in range(N):
            chosen = rng.choice(x[y > np.quantile(y, 0.85)])
            points = []
            for at in chosen + np.linspace(-math.log(30), math.log(30), 7):
                if x[0] <= at <= x[-1]:
                    k = int(rng.choice(np.argsort(np.abs(x - at))[:6]))
                    points.append((math.exp(x[k]), [float(y[k])]))
            found = good_range(points, direction=Direction.MAXIMIZE, within=WITHIN, std=spread)
            tally.add(found, low, high)
        rows.append(f"{epochs} | {low:.2g} to {high:.2g} | {100 * spread:.2f} | {tally.row()}")
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the public results")
    arguments = parser.parse_args(argv)
    ends = HEADER.partition("spread")[2]
    show("Simulated curves, one run at each value, within 1 %", HEADER, simulated())
    show("Digits, 7 or 6 of 13 rates", f"within, % | seeds | spread{ends}", digits())
    if arguments.data is not None:
        show("DeBERTa on MNLI, ÷ 30 to × 30", f"epochs | true range | spread{ends}", deberta(arguments.data))


if __name__ == "__main__":
    main()
