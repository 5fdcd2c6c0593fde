"""Parameter groups for weight decay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import admeta


def model() -> nn.Module:
    frozen = nn.Linear(2, 2)
    frozen.requires_grad_(False)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2), frozen)


def test_all_is_one_group_with_names() -> None:
    (group,) = admeta.decay_groups(model(), 0.1)
    assert group["weight_decay"] == 0.1
    assert [name for name, _ in group["params"]] == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]


def test_matrices_leave_biases_and_norms_alone() -> None:
    decayed, rest = admeta.decay_groups(model(), 0.1, on="matrices")
    assert [name for name, _ in decayed["params"]] == ["0.weight", "2.weight"]
    assert decayed["weight_decay"] == 0.1
    assert rest["weight_decay"] == 0.0
    optimizer = admeta.create("admetar", [decayed, rest], lr=0.1, weight_decay=0.5)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_an_empty_group_is_left_out() -> None:
    groups = admeta.decay_groups([("w", nn.Parameter(torch.zeros(2, 2)))], 0.1, on="matrices")
    assert len(groups) == 1


def test_refusals() -> None:
    with pytest.raises(ValueError, match="must be 'all' or 'matrices'"):
        admeta.decay_groups(model(), 0.1, on="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no parameter needs a gradient"):
        admeta.decay_groups(nn.Sequential(), 0.1)
