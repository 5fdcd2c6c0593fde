"""Clipping by a fused optimizer's own division: the parameters that `clip_grad_norm_` and `step` would give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

from admeta import AdmetaR
from tasks.engine.step import step_clipped

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

FUSED: dict[str, MakeOptimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=1e-2, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=1e-2, fused=True),
}
OTHERS: dict[str, MakeOptimizer] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "admetar": lambda p: AdmetaR(p, lr=1e-2),
}


def walk(
    make: MakeOptimizer, step: Callable[[torch.optim.Optimizer, list[nn.Parameter]], None], dtype: torch.dtype
) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    """Seven steps whose gradients lie on both sides of the limit, one parameter without any."""
    draws = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(n, generator=draws, dtype=dtype)) for n in (7, 130, 1)]
    unused = nn.Parameter(torch.ones(2, dtype=dtype))
    optimizer = make([*parameters, unused])
    for size in (0.01, 30.0, 0.05, 3.0, 1e4, 0.0, 1.0):
        for parameter in parameters:
            parameter.grad = size * torch.randn(parameter.shape, generator=draws, dtype=dtype)
        step(optimizer, [*parameters, unused])
    return parameters, optimizer


def clip_then_step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()


def own(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    step_clipped(optimizer, parameters, limit=1.0)


def unclipped(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    optimizer.step()


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_optimizer_that_divides_moves_as_after_clipping(name: str) -> None:
    found, optimizer = walk(FUSED[name], own, torch.float32)
    expected, _ = walk(FUSED[name], clip_then_step, torch.float32)
    free, _ = walk(FUSED[name], unclipped, torch.float32)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-7)
    assert any((one - other).abs().max() > 1e-2 for one, other in zip(found, free, strict=True))
    assert not hasattr(optimizer, "grad_scale")  # a later step without a limit divides by nothing


@pytest.mark.parametrize("name", FUSED)
def test_gradients_within_the_limit_are_not_touched(name: str) -> None:
    draws = torch.Generator().manual_seed(0)
    walks = []
    for step in (own, unclipped):
        parameter = nn.Parameter(torch.ones(50))
        optimizer = FUSED[name]([parameter])
        parameter.grad = 0.01 * torch.randn(50, generator=draws.manual_seed(1))
        step(optimizer, [parameter])
        walks.append(parameter.detach())
    assert torch.equal(*walks)


@pytest.mark.parametrize("name", OTHERS)
def test_other_optimizers_are_clipped_before_they_step(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        found, _ = walk(OTHERS[name], own, dtype)
        expected, _ = walk(OTHERS[name], clip_then_step, dtype)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_double_precision_is_not_divided_by_a_float() -> None:
    found, _ = walk(FUSED["adamw"], own, torch.float64)
    expected, _ = walk(FUSED["adamw"], clip_then_step, torch.float64)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_seen_in_the_parameters(bad: float) -> None:
    """As after clip_grad_norm_: the loss becomes NaN, which the engine reports as a divergence."""
    for step in (own, clip_then_step):
        parameter = nn.Parameter(torch.ones(3))
        optimizer = FUSED["adamw"]([parameter])
        parameter.grad = torch.tensor([1.0, bad, 1.0])
        step(optimizer, [parameter])
        assert torch.isnan(parameter[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("name", ["admetar", "admetas", "adamw", "sgdm"])
def test_on_a_card_fused_kernels_divide_too(name: str) -> None:
    from admeta import registry

    flags = registry.get(name).graph_kwargs
    weights = []
    for step in (own, clip_then_step):
        draws = torch.Generator().manual_seed(0)
        parameters = [nn.Parameter(torch.randn(n, generator=draws).cuda()) for n in (7, 4096, 1)]
        optimizer = registry.create(name, parameters, lr=1e-2, **flags)
        assert getattr(optimizer, "_step_supports_amp_scaling", False)
        for size in (0.01, 30.0, 3.0, 0.0, 1.0):
            for parameter in parameters:
                parameter.grad = size * torch.randn(parameter.shape, generator=draws).cuda()
            step(optimizer, parameters)
        weights.append(parameters)
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)
