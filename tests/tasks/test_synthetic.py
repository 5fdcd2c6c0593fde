"""Toy surfaces: minimised by the optimizer, resumable, and idle where asked."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tasks.errors import CheckpointError, Diverged
from tasks.registry import parse_config
from tasks.runs import check, open_run


def start(model: str, *, params: dict[str, Any], **fields: Any) -> Any:
    config = parse_config({"name": "synthetic", "model": model, **fields})
    check(config)
    return open_run(config, optimizer="adamw", params=params, seed=0)


@pytest.mark.parametrize("model", ["quadratic", "rosenbrock", "noisy_quadratic"])
def test_the_surface_is_walked_down_and_resumes(model: str) -> None:
    whole, part = (start(model, params={"lr": 0.05, "weight_decay": 0.0}) for _ in range(2))
    losses = [whole.advance().metrics["val_loss"] for _ in range(10)]
    assert losses[-1] < 0.5 * losses[0]
    for _ in range(4):
        part.advance()
    resumed = start(model, params={"lr": 0.05, "weight_decay": 0.0})
    resumed.load_state_dict(part.state_dict())
    assert [resumed.advance().metrics["val_loss"] for _ in range(6)] == losses[4:]
    assert resumed.done
    assert whole.test()["test_loss"] == losses[-1]


def test_idle_scores_by_the_learning_rate_and_sleeps() -> None:
    scores = [start("idle", params={"lr": lr}, epochs=1).advance().metrics["val_score"] for lr in (1e-4, 1e-2, 1.0)]
    assert max(scores) == scores[1]
    begin = time.perf_counter()
    start("idle", params={"lr": 0.1}, epochs=1, sleep_s=0.05).advance()
    assert time.perf_counter() - begin >= 0.05


def test_the_record_says_how_the_steps_run() -> None:
    run = start("idle", params={"lr": 0.1})
    assert run.environment() == {"device": "cpu", "step": run.step_status}


def test_divergence_and_foreign_state() -> None:
    config = parse_config({"name": "synthetic", "model": "rosenbrock"})
    run = open_run(config, optimizer="sgdm", params={"lr": 100.0}, seed=0)
    with pytest.raises(Diverged, match="diverged at step"):
        run.advance()
    with pytest.raises(CheckpointError):
        start("quadratic", params={"lr": 0.1}).load_state_dict(run.state_dict())
    torch.set_num_threads(1)
