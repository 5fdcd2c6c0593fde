"""What tests of runs in one process share: runs, those that they would be alone, and an epoch of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.engine.protocol import Evaluation
from tasks.engine.slots import SlotRun, Slots
from tasks.registry import parse_config
from tasks.runs import open_run
from tests.tasks.text.conftest import reviews, write_csv

JOBS: list[tuple[str, dict[str, Any], int]] = [
    ("sgdm", {"lr": 0.05, "weight_decay": 1e-4}, 0),
    ("adamw", {"lr": 3e-3}, 0),
    ("admetar", {"lr": 0.01, "lambd": 0.1}, 1),
    ("admetas", {"lr": 0.02}, 2),
]


def config(**fields: Any) -> Any:
    return parse_config({"name": "digits", "model": "mlp", "epochs": 3, **fields})


def join(cohort: Slots[Any], cfg: Any, job: tuple[str, dict[str, Any], int]) -> Any:
    optimizer, params, seed = job
    return cohort.open(cfg, optimizer=optimizer, params=params, seed=seed)


def alone(cfg: Any, job: tuple[str, dict[str, Any], int], **where: Any) -> Any:
    optimizer, params, seed = job
    return open_run(cfg, optimizer=optimizer, params=params, seed=seed, **{"device": "cpu", **where})


def train(cohort: Slots[Any], *members: SlotRun) -> list[Evaluation]:
    """An epoch of each, together."""
    for member in members:
        member.begin()
    while any(member.is_training for member in members):
        cohort.step()
    return [member.finish() for member in members]


def assert_equal(ours: Evaluation, theirs: Evaluation, *, rel: float = 1e-4) -> None:
    assert (ours.epoch, ours.step, ours.lr) == (theirs.epoch, theirs.step, theirs.lr)
    assert ours.metrics.keys() == theirs.metrics.keys()
    for name in ("train_loss", "val_loss"):
        assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=rel), name


def write_reviews(folder: Path, *, n_train: int) -> None:
    """Texts of a classification task in its data folder."""
    write_csv(folder / "train.csv", reviews(n_train, seed=0))
    write_csv(folder / "test.csv", reviews(60, seed=1))
