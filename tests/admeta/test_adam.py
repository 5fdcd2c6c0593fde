"""KernelAdam and KernelAdamW against torch.optim's Adam and AdamW: numbers, options, checkpoints both ways."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import admeta
from tests.admeta.cases import DEVICE, IMPLEMENTATIONS

Optimizer = torch.optim.Optimizer
PAIRS: dict[str, tuple[Any, Any]] = {
    "adam": (admeta.KernelAdam, torch.optim.Adam),
    "adamw": (admeta.KernelAdamW, torch.optim.AdamW),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no-decay": {"weight_decay": 0.0, "lr": 1e-2},
    "decay": {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-4, "lr": 3e-3},
    "ascend": {"weight_decay": 0.1, "maximize": True},
}
pairs = pytest.mark.parametrize("name", PAIRS)
settings = pytest.mark.parametrize("setting", SETTINGS)
implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def make_params(dtype: torch.dtype) -> list[Parameter]:
    draws = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(s, generator=draws).to(DEVICE, dtype)) for s in ((7, 5), (1030,), ())]


def train(optimizer: Optimizer, params: list[Parameter], steps: range, *, scale: float | None = None) -> None:
    """Steps whose gradients depend on their number alone; with ``scale`` as GradScaler's protocol gives them."""
    for step in steps:
        draws = torch.Generator().manual_seed(1 + step)
        for p in params:
            gradient = torch.randn(p.shape, generator=draws, dtype=torch.float64).to(DEVICE, p.dtype)
            p.grad = gradient if scale is None else scale * gradient
        if scale is not None:
            optimizer.grad_scale = torch.tensor(scale, device=DEVICE)  # type: ignore[attr-defined]
        optimizer.step()


def assert_near(got: list[Parameter], wanted: list[Parameter], *, rtol: float, atol: float) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=rtol, atol=atol)


@implementations
@settings
@pairs
def test_float64_trajectories_are_torchs(name: str, setting: str, implementation: str) -> None:
    ours, theirs = (make_params(torch.float64) for _ in range(2))
    kernel, plain = PAIRS[name]
    train(kernel(ours, **SETTINGS[setting], **IMPLEMENTATIONS[implementation]), ours, range(25))
    train(plain(theirs, **SETTINGS[setting], foreach=False), theirs, range(25))
    assert_near(ours, theirs, rtol=1e-12, atol=1e-12)


@settings
@pairs
def test_float32_kernels_are_torchs_to_a_few_ulp(name: str, setting: str) -> None:
    ours, theirs = (make_params(torch.float32) for _ in range(2))
    kernel, plain = PAIRS[name]
    train(kernel(ours, **SETTINGS[setting], fused=True), ours, range(15))
    train(plain(theirs, **SETTINGS[setting], fused=True), theirs, range(15))
    assert_near(ours, theirs, rtol=2e-6, atol=2e-7)  # an ulp a step


@pairs
def test_the_rate_may_be_a_tensor_and_gradients_scaled(name: str) -> None:
    ours, theirs = (make_params(torch.float32) for _ in range(2))
    made = []
    for cls, params in zip(PAIRS[name], (ours, theirs), strict=True):
        lr = torch.tensor(1e-2, device=DEVICE)
        optimizer = cls(params, lr=lr, weight_decay=0.1, fused=True)
        train(optimizer, params, range(5))
        lr.fill_(3e-3)
        train(optimizer, params, range(5, 12), scale=37.0)
        made.append(optimizer)
    assert_near(ours, theirs, rtol=1e-6, atol=2e-7)
    assert made[0]._step_supports_amp_scaling  # what clipping by the optimizer's own division asks


@pairs
def test_options_groups_and_state_have_torchs_names_and_defaults(name: str) -> None:
    described = []
    for cls in PAIRS[name]:
        params = make_params(torch.float32)
        optimizer = cls(params)
        train(optimizer, params, range(1))
        described.append((optimizer.defaults, optimizer.state_dict()))
    (ours, our_state), (theirs, their_state) = described
    assert ours == theirs
    assert our_state["param_groups"] == their_state["param_groups"]
    for index, values in their_state["state"].items():
        mine = our_state["state"][index]
        assert {k: v.shape for k, v in mine.items()} == {k: v.shape for k, v in values.items()}
        assert all(v.dtype == (torch.float64 if k == "step" else values[k].dtype) for k, v in mine.items())


@pytest.mark.parametrize("first", ["ours", "torch's"])
@implementations
@pairs
def test_either_goes_on_from_the_others_checkpoint(name: str, implementation: str, first: str) -> None:
    assert_goes_on(*PAIRS[name], flags=IMPLEMENTATIONS[implementation], ours_first=first == "ours")


def assert_goes_on(kernel: Any, plain: Any, *, flags: dict[str, Any], ours_first: bool) -> None:
    """One class takes the other's checkpoint and ends where torch's alone would have."""
    options: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1}
    straight = make_params(torch.float64)
    train(plain(straight, **options), straight, range(12))
    params = make_params(torch.float64)
    before, after = kernel(params, **options, **flags), plain(params, lr=123.0)
    if not ours_first:
        before, after = plain(params, **options), kernel(params, lr=123.0, **flags)
    train(before, params, range(7))
    stored = io.BytesIO()
    torch.save(before.state_dict(), stored)
    stored.seek(0)
    state = torch.load(stored, weights_only=True)
    for group, own in zip(state["param_groups"], after.param_groups, strict=True):
        group.update({flag: own[flag] for flag in ("foreach", "fused", "capturable", "differentiable") if flag in own})
    after.load_state_dict(state)
    train(after, params, range(7, 12))
    assert_near(params, straight, rtol=1e-12, atol=1e-12)


def test_decay_stays_decoupled_as_in_torch_whatever_is_loaded() -> None:
    params = make_params(torch.float32)
    coupled = torch.optim.Adam(params, weight_decay=0.1)
    train(coupled, params, range(1))
    state = coupled.state_dict()
    for cls in PAIRS["adamw"]:
        optimizer = cls(params)
        optimizer.load_state_dict(copy.deepcopy(state))
        assert optimizer.param_groups[0]["decoupled_weight_decay"] is True
    adam = admeta.KernelAdam(params)
    adam.load_state_dict(state)
    assert adam.param_groups[0]["decoupled_weight_decay"] is False


def test_amsgrad_is_refused_in_a_checkpoint_too() -> None:
    params = make_params(torch.float32)
    with pytest.raises(ValueError, match="Invalid amsgrad value: True; it must be False"):
        admeta.KernelAdam(params, amsgrad=True)
    theirs = torch.optim.AdamW(params, amsgrad=True)
    train(theirs, params, range(1))
    with pytest.raises(ValueError, match="Invalid amsgrad value: True; it must be False"):
        admeta.KernelAdamW(params).load_state_dict(theirs.state_dict())


def test_checkpoints_from_before_torch_had_the_options_load() -> None:
    params = make_params(torch.float32)
    theirs = torch.optim.Adam(params)
    train(theirs, params, range(1))
    state = theirs.state_dict()
    for group in state["param_groups"]:
        del group["amsgrad"], group["decoupled_weight_decay"]
    ours = admeta.KernelAdam(params)
    ours.load_state_dict(state)
    train(ours, params, range(1, 3))
    assert ours.state[params[0]]["step"].item() == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@settings
@pairs
def test_captured_steps_are_torchs_captured_steps(name: str, setting: str) -> None:
    finals: list[list[Tensor]] = []
    for cls in PAIRS[name]:
        params = make_params(torch.float32)
        options = {"lr": 1e-3, **SETTINGS[setting]}
        lr = torch.tensor(options.pop("lr"), device=DEVICE)
        scale = torch.ones((), device=DEVICE)
        optimizer = cls(params, lr=lr, fused=True, capturable=True, **options)
        optimizer.grad_scale = scale
        for p in params:
            p.grad = torch.zeros_like(p)
        graph = torch.cuda.CUDAGraph()
        for step in range(20):
            draws = torch.Generator().manual_seed(step)
            scale.fill_(1.0 + step % 3)
            for p in params:
                assert p.grad is not None
                p.grad.copy_(torch.randn(p.shape, generator=draws))
            lr.fill_(1e-3 * (1 + step % 2))
            if step < 3:
                optimizer.step()
            else:
                if step == 3:
                    torch.cuda.synchronize()
                    with torch.cuda.graph(graph):
                        optimizer.step()
                graph.replay()
        finals.append([p.detach().clone() for p in params])
        assert optimizer.state[params[0]]["step"].item() == 20
    for one, other in zip(*finals, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=5e-7)
