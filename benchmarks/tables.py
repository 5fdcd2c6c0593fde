"""Task `table` beside scikit-learn's networks with their defaults, on the same rows of three of its data sets.

    python -m benchmarks.tables

Ours: the task's defaults, AdamW at lr 0.001. Prints mean ± standard deviation of the test set over seeds.
"""

from __future__ import annotations

import csv
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.neural_network import MLPClassifier, MLPRegressor

from tasks.engine.task import load_task
from tasks.registry import parse_config
from tasks.runs import open_run

SEEDS = range(5)
KINDS = {"wine": "class", "breast_cancer": "class", "diabetes": "number"}


def write(name: str, path: Path) -> None:
    """One of scikit-learn's data sets as a CSV file with a column `label`."""
    found: Any = getattr(datasets, f"load_{name}")()
    labels = found.target_names[found.target] if KINDS[name] == "class" else found.target
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*found.feature_names, "label"])
        writer.writerows([*row, label] for row, label in zip(found.data, labels, strict=True))


def ours(config: Any, folder: Path, seed: int) -> float:
    """Accuracy, or Pearson's correlation, of the test rows."""
    run = open_run(config, optimizer="adamw", params={"lr": 1e-3}, seed=seed, data_dir=folder, device="cpu")
    while not run.done:
        run.advance()
    return run.test()["test_accuracy" if config.predict == "class" else "test_pearson"]


def theirs(config: Any, folder: Path, seed: int) -> float:
    """The same of scikit-learn's network on the same standardised rows."""
    data = load_task(config, data_dir=folder, device=torch.device("cpu")).data
    train, test = ((part.numbers.numpy(), part.labels.numpy()) for part in (data.train, data.test))
    if config.predict == "class":
        return float(MLPClassifier(random_state=seed).fit(*train).score(*test))
    labels = (train[1] - train[1].mean()) / train[1].std()
    network = MLPRegressor(random_state=seed).fit(train[0], labels)
    return float(np.corrcoef(network.predict(test[0]), test[1])[0, 1])


def main() -> None:
    warnings.simplefilter("ignore")  # theirs stop after 200 epochs, not always converged
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, predict in KINDS.items():
            write(name, folder / f"{name}.csv")
            config = parse_config({"name": "table", "train_file": f"{name}.csv", "predict": predict})
            for label, measure in (("ours", ours), ("scikit-learn", theirs)):
                scores = [measure(config, folder, seed) for seed in SEEDS]
                print(f"{name:14} {label:12} {np.mean(scores):.3f} ± {np.std(scores, ddof=1):.3f}")


if __name__ == "__main__":
    main()
