"""Launches of the fused update used again: whatever changes between two steps is seen.

The reference is the single-tensor implementation, which asks every tensor at every step.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import Parameter

import admeta
from tests.admeta.cases import DEVICE

Optimizer = torch.optim.Optimizer
Meddle = Callable[[Optimizer, list[Parameter]], None]


def make_params() -> list[Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(s, generator=generator).to(DEVICE)) for s in ((4, 4), (5,), (), (0, 3))]


def accumulate(params: list[Parameter], seed: int) -> None:
    """New values in the same gradients where there are any, as after ``zero_grad(set_to_none=False)``."""
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        value = torch.randn(p.shape, generator=generator).to(DEVICE)
        if p.grad is None:
            p.grad = value
        else:
            p.grad.copy_(value)


def gradient_gone(_: Optimizer, params: list[Parameter]) -> None:
    params[1].grad = None


def gradient_replaced(_: Optimizer, params: list[Parameter]) -> None:
    params[2].grad = torch.full_like(params[2], 0.25)


def gradient_turned(_: Optimizer, params: list[Parameter]) -> None:
    params[0].grad = params[0].grad.t() if params[0].grad is not None else None


def gradient_of_another_storage(_: Optimizer, params: list[Parameter]) -> None:
    assert params[1].grad is not None
    params[1].grad.data = torch.full((5,), -0.5, device=DEVICE)


def gradient_of_lazy_sign(_: Optimizer, params: list[Parameter]) -> None:
    params[1].grad = torch.full((5,), 1j, device=DEVICE).conj().imag
    assert params[1].grad.is_neg()


def parameter_moved(_: Optimizer, params: list[Parameter]) -> None:
    params[0].data = params[0].data * 2


def state_replaced(optimizer: Optimizer, params: list[Parameter]) -> None:
    optimizer.state[params[1]]["exp_avg"] = torch.ones(5, device=DEVICE)


def state_of_a_parameter_replaced(optimizer: Optimizer, params: list[Parameter]) -> None:
    optimizer.state[params[1]] = {name: t.clone() for name, t in optimizer.state[params[1]].items()}
    optimizer.state[params[1]]["exp_avg"] += 1


def state_forgotten(optimizer: Optimizer, params: list[Parameter]) -> None:
    del optimizer.state[params[1]]


def option_changed(optimizer: Optimizer, _: list[Parameter]) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.5


def constant_changed(optimizer: Optimizer, _: list[Parameter]) -> None:
    optimizer.param_groups[0]["betas"] = (0.5, 0.99)


def rate_changed(optimizer: Optimizer, _: list[Parameter]) -> None:
    optimizer.param_groups[0]["lr"] = 0.5


def parameter_dropped(optimizer: Optimizer, _: list[Parameter]) -> None:
    optimizer.param_groups[0]["params"].pop(1)


def group_added(optimizer: Optimizer, _: list[Parameter]) -> None:
    extra = Parameter(torch.ones(3, device=DEVICE))
    extra.grad = torch.ones(3, device=DEVICE)
    optimizer.add_param_group({"params": [extra]})


MEDDLING: list[Meddle] = [
    gradient_gone, gradient_replaced, gradient_turned, gradient_of_another_storage, gradient_of_lazy_sign,
    parameter_moved, state_replaced, state_of_a_parameter_replaced, state_forgotten, option_changed, constant_changed,
    rate_changed,     parameter_dropped, group_added,
]  # fmt: skip


@pytest.mark.parametrize("meddle", MEDDLING, ids=lambda m: m.__name__)
def test_a_change_between_steps_is_seen(meddle: Meddle) -> None:
    results = []
    for flags in ({"fused": True}, {"foreach": False, "fused": False}):
        params = make_params()
        optimizer = admeta.AdmetaR(params, lr=0.05, **flags)
        for step in range(5):
            accumulate(params, step)
            optimizer.step()
        if flags["fused"]:
            assert 0 in optimizer._plans
        meddle(optimizer, params)
        optimizer.step()
        for step in range(5, 7):
            accumulate(params, step)
            optimizer.step()
        results.append([p.detach() for group in optimizer.param_groups for p in group["params"]])
    for fused, single in zip(*results, strict=True):
        torch.testing.assert_close(fused, single, rtol=1e-5, atol=1e-6)


def test_hooks_and_scaled_gradients_are_heeded_in_a_repeated_step() -> None:
    params = make_params()
    optimizer = admeta.AdmetaR(params, fused=True)
    for step in range(5):
        accumulate(params, step)
        optimizer.step()
    seen: list[str] = []
    handle = optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    optimizer.step()
    handle.remove()
    optimizer.step()
    assert seen == ["post"]
    before = [p.detach().clone() for p in params]
    optimizer.found_inf = torch.ones((), device=DEVICE)
    optimizer.step()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    assert optimizer.state[params[0]]["step"].item() == 7


def test_the_profiler_sees_repeated_steps() -> None:
    params = make_params()
    optimizer = admeta.AdmetaS(params, fused=True)
    for step in range(5):
        accumulate(params, step)
        optimizer.step()
    with torch.profiler.profile() as profile:
        optimizer.step()
    assert "Optimizer.step#AdmetaS.step" in {event.name for event in profile.events()}
