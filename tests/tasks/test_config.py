"""Learning-rate factors against torch's schedulers and the paper's milestones."""

from __future__ import annotations

import math

import pytest
import torch

from tasks.config import Schedule

N = 160 * 390  # the paper's CIFAR run


def factors(schedule: Schedule, n: int = 200) -> list[float]:
    return [schedule.lr_factor(step, n_steps=n) for step in range(n)]


def test_paper_milestones() -> None:
    paper = Schedule(name="multistep")
    at = {epoch: paper.lr_factor(epoch * 390, n_steps=N) for epoch in (0, 79, 80, 119, 120, 159)}
    assert at == pytest.approx({0: 1.0, 79: 1.0, 80: 0.1, 119: 0.1, 120: 0.01, 159: 0.01})


def test_a_shorter_budget_keeps_the_shape() -> None:
    assert factors(Schedule(name="multistep"), 200)[::2] == factors(Schedule(name="multistep"), 100)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_against_torch(name: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
        if name == "cosine"
        else torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=200)
    )
    for ours in factors(Schedule.model_validate({"name": name})):
        assert ours == pytest.approx(reference.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        reference.step()


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "multistep"])
def test_warmup_rises_to_one_and_all_is_finite(name: str) -> None:
    values = factors(Schedule.model_validate({"name": name, "warmup": 0.1}))
    assert values[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert values[20] == pytest.approx(1.0)
    assert all(math.isfinite(value) and 0 <= value <= 1 for value in values)


def test_final_factor() -> None:
    assert factors(Schedule(name="linear", final=0.5), 1000)[-1] == pytest.approx(0.5, abs=1e-3)
