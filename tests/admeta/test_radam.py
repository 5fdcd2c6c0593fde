"""KernelRAdam against torch.optim.RAdam: numbers, options, checkpoints both ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import admeta
from tests.admeta.cases import DEVICE, IMPLEMENTATIONS
from tests.admeta.test_adam import assert_goes_on, assert_near, make_params, train

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "rectified-early": {"betas": (0.8, 0.9), "lr": 1e-2},  # from the sixth step at 0.999, the eighth at 0.9
    "epsilon": {"eps": 1e-2, "weight_decay": 0.1, "lr": 3e-3},
    "decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
}
settings = pytest.mark.parametrize("setting", SETTINGS)
implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@implementations
@settings
def test_float64_trajectories_are_torchs(setting: str, implementation: str) -> None:
    ours, theirs = (make_params(torch.float64) for _ in range(2))
    train(admeta.KernelRAdam(ours, **SETTINGS[setting], **IMPLEMENTATIONS[implementation]), ours, range(25))
    train(torch.optim.RAdam(theirs, **SETTINGS[setting], foreach=False), theirs, range(25))
    assert_near(ours, theirs, rtol=1e-12, atol=1e-12)


@settings
def test_float32_kernels_are_torchs_to_a_few_ulp(setting: str) -> None:
    ours, theirs = (make_params(torch.float32) for _ in range(2))
    train(admeta.KernelRAdam(ours, **SETTINGS[setting], fused=True), ours, range(15))
    train(torch.optim.RAdam(theirs, **SETTINGS[setting], foreach=False), theirs, range(15))
    assert_near(ours, theirs, rtol=2e-6, atol=5e-7)


def test_the_rate_may_be_a_tensor() -> None:
    ours, theirs = (make_params(torch.float32) for _ in range(2))
    for cls, params in ((admeta.KernelRAdam, ours), (torch.optim.RAdam, theirs)):
        lr = torch.tensor(1e-2, device=DEVICE)
        optimizer = cls(params, lr=lr, weight_decay=0.1, foreach=False)
        train(optimizer, params, range(5))
        lr.fill_(3e-3)
        train(optimizer, params, range(5, 12))
    assert_near(ours, theirs, rtol=2e-6, atol=5e-7)


@pytest.mark.parametrize("first", ["ours", "torch's"])
@implementations
def test_either_goes_on_from_the_others_checkpoint(implementation: str, first: str) -> None:
    flags = IMPLEMENTATIONS[implementation]
    assert_goes_on(admeta.KernelRAdam, torch.optim.RAdam, flags=flags, ours_first=first == "ours")
