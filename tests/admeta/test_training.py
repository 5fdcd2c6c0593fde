"""Every registered optimizer trains a small network on real digits; the released bug does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import admeta
from admeta.builtin import BUILTIN
from admeta.spaces import Categorical, Float, Int


def final_loss(name: str, *, steps: int = 300, **options: Any) -> tuple[float, float]:
    """(first, last) full-batch cross-entropy of a 64-32-10 network."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images[:500] / 16.0, dtype=torch.float32), torch.tensor(labels[:500])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = admeta.create(name, model.parameters(), **options)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


@pytest.mark.parametrize("name", sorted(BUILTIN))  # the baselines: tests/tasks/engine/test_baselines.py
def test_trains_in_the_middle_of_its_default_space(name: str) -> None:
    info = admeta.get(name)
    chosen: dict[str, object] = dict(info.fixed)
    for key, space in info.default_space.items():
        if isinstance(space, Categorical):
            chosen[key] = space.choices[0]
        elif isinstance(space, Float | Int):
            chosen[key] = math.sqrt(space.low * space.high) if space.log else (space.low + space.high) / 2
    first, last = final_loss(name, **chosen)
    assert last < 0.5 * first


def test_the_released_bug_cannot_train() -> None:
    _, bug = final_loss("admetas", lr=0.05, preset="released")
    _, fixed = final_loss("admetas", lr=0.05)
    assert not bug < 10 * fixed
