"""The trial's optimizer as the engine builds it, and checkpoints that change how it is implemented."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import admeta
from tasks.engine.optimizers import IMPLEMENTATION_FLAGS, build_optimizer, load_optimizer_state, lr_tensors
from tasks.errors import CheckpointError

PAIRS = {
    "adam": (torch.optim.Adam, admeta.KernelAdam),
    "adamw": (torch.optim.AdamW, admeta.KernelAdamW),
    "radam": (torch.optim.RAdam, admeta.KernelRAdam),
}


@pytest.fixture(autouse=True)
def _triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admeta.implementation.has_triton", lambda: True)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def built(network: nn.Module, name: str, *, captured: bool, **params: Any) -> torch.optim.Optimizer:
    return build_optimizer(
        network.named_parameters(),
        name=name,
        params={"lr": 1e-2, "weight_decay": 0.1, **params},
        weight_decay_on="matrices",
        captured=captured,
    )


@pytest.mark.parametrize("name", PAIRS)
def test_a_captured_step_takes_our_kernels_and_an_eager_one_torchs(name: str) -> None:
    eager, kernels = PAIRS[name]
    assert type(built(model(), name, captured=False)) is eager
    captured = built(model(), name, captured=True, betas=[0.8, 0.9])
    assert type(captured) is kernels
    assert [group["weight_decay"] for group in captured.param_groups] == [0.1, 0.0]
    assert captured.defaults["betas"] == (0.8, 0.9)
    if name != "radam":
        assert type(built(model(), name, captured=True, amsgrad=True)) is eager


@pytest.mark.parametrize("name", PAIRS)
def test_a_captured_run_resumes_eagerly_and_the_other_way_round(name: str) -> None:
    """A checkpoint of either class: groups keep the new one's implementation, state and options are the old one's."""
    straight = model()
    expected = built(straight, name, captured=False)
    walk(straight, expected, range(9))
    for captured_first in (True, False):
        network = model()
        first = on_the_cpu(built(network, name, captured=captured_first))
        walk(network, first, range(4))
        second = on_the_cpu(built(network, name, captured=not captured_first, lr=5.0))
        named = on_the_cpu(built(model(), name, captured=not captured_first))
        own = [{flag: group.get(flag) for flag in IMPLEMENTATION_FLAGS} for group in second.param_groups]
        load_optimizer_state(second, copy.deepcopy(first.state_dict()))
        assert [{flag: group.get(flag) for flag in IMPLEMENTATION_FLAGS} for group in second.param_groups] == own
        assert [group.keys() for group in second.param_groups] == [group.keys() for group in named.param_groups]
        lr_tensors(second, device=torch.device("cpu"))
        walk(network, second, range(4, 9))
        for got, wanted in zip(network.parameters(), straight.parameters(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=2e-6, atol=1e-7)


def on_the_cpu(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Steps one tensor at a time, as neither a card nor Triton's interpreter may be here."""
    for group in optimizer.param_groups:
        group.update({flag: False for flag in ("fused", "capturable", "foreach") if flag in group})
    return optimizer


def walk(network: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        draws = torch.Generator().manual_seed(step)
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draws)
        optimizer.step()


def test_a_state_over_other_groups_is_told() -> None:
    network = model()
    optimizer = build_optimizer(network.named_parameters(), name="adamw", params={"lr": 0.1})
    state = {**optimizer.state_dict(), "param_groups": []}
    with pytest.raises(CheckpointError, match=r"groups of \[\] parameters, this run's of \[\d+\]"):
        load_optimizer_state(optimizer, state)
