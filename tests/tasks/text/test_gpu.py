"""Text on a CUDA card: a graph for each width, captured steps as eager ones, exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.engine.run import TrainingRun
from tasks.registry import parse_config
from tasks.runs import open_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]


def start(data_dir: Path, **fields: Any) -> TrainingRun:
    raw = {"name": "text_classification", "model": "tiny", "data_dir": "reviews", "epochs": 3, "batch_size": 8}
    run = open_run(
        parse_config({**raw, **fields}),
        optimizer="adamw",
        params={"lr": 3e-3},
        seed=0,
        data_dir=data_dir,
        device="cuda",
    )
    assert isinstance(run, TrainingRun)
    return run


def weights(run: TrainingRun) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


def test_each_width_has_a_graph_and_trains_as_eager_steps_do(data_dir: Path) -> None:
    captured, eager = start(data_dir, deterministic=True), start(data_dir, deterministic=True, acceleration="eager")
    for _ in range(3):
        ours, theirs = captured.advance(), eager.advance()
        assert ours.metrics["train_loss"] == pytest.approx(theirs.metrics["train_loss"], rel=0.02)
    batches = [batch for epoch in range(3) for batch in captured._task.train_batches(seed=0, epoch=epoch)]
    widths = {batch["input_ids"].shape[1] for batch in batches}
    assert captured.environment()["step"] == f"graph: {len(widths)} shape(s)"
    assert len(widths) > 2
    moved = (weights(eager) - weights(start(data_dir))).norm()
    assert (weights(captured) - weights(eager)).norm() < 0.05 * moved


def test_resume_is_bit_for_bit(data_dir: Path) -> None:
    whole = start(data_dir, deterministic=True)
    evaluations = [whole.advance() for _ in range(3)]
    first = start(data_dir, deterministic=True)
    first.advance()
    second = start(data_dir, deterministic=True)
    second.load_state_dict(first.state_dict())
    assert [second.advance().metrics for _ in range(2)] == [evaluation.metrics for evaluation in evaluations[1:]]
    assert torch.equal(weights(second), weights(whole))
