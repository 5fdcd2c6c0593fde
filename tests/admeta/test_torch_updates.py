"""What torch checks of its own optimizers' updates, checked of ours."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.testing._internal.common_optimizers import OptimizerInfo

from tests.admeta.cases import DEVICE
from tests.admeta.torch_configs import (
    OPTIM_DB,
    Config,
    default_settings,
    drift,
    equal,
    every,
    every_and_differentiable,
    make_params,
    train,
)


@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "strided"])
@every_and_differentiable
def test_goes_in_the_right_direction(config: Config, contiguous: bool) -> None:
    if config.label in ("released", "short-memory") or "no-backward" in config.label:
        pytest.skip("released is the bug that can't train; the others are ablations with other step sizes")
    torch.manual_seed(0)
    if contiguous:
        weight, bias = torch.randn(10, 5, device=DEVICE), torch.randn(10, device=DEVICE)
    else:
        weight, bias = torch.randn(10, 5, 2, device=DEVICE)[..., 0], torch.randn(10, 2, device=DEVICE)[..., 0]
    w, b = Parameter(weight), Parameter(bias)
    x = torch.randn(5, device=DEVICE)
    optimizer = config.create([w, b], lr=1e-3, weight_decay=0.0, maximize=False)

    def loss() -> Tensor:
        return (w @ x + b).square().sum()

    first = loss().item()
    for _ in range(10):
        optimizer.zero_grad()
        loss().backward()
        if optimizer.defaults["differentiable"]:
            with torch.no_grad():
                w.requires_grad_(False)
                b.requires_grad_(False)
                optimizer.step()
                w.requires_grad_(True)
                b.requires_grad_(True)
        else:
            optimizer.step()
    assert loss().item() < first


@every
def test_tensor_lr_equals_float_lr(config: Config) -> None:
    if config.kwargs.get("foreach") and DEVICE == "cpu":
        with pytest.raises(ValueError, match="lr as a Tensor is not supported for capturable=False and foreach=True"):
            config.create(make_params(), lr=torch.tensor(0.01))
        return
    plain = make_params(torch.float64)
    flags = {"capturable": True} if DEVICE == "cuda" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(config.create(plain), plain, 7)
        for shape in ((), (1,), (1, 1)):
            with_tensor = make_params(torch.float64)
            tensor = torch.full(shape, config.kwargs["lr"], dtype=torch.float64, device=DEVICE)
            train(config.create(with_tensor, lr=tensor, **flags), with_tensor, 7)
            for a, b in zip(plain, with_tensor, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@every
def test_complex_parameters_are_pairs_of_reals(config: Config) -> None:
    torch.manual_seed(0)
    start = torch.randn(4, 3, dtype=torch.complex64, device=DEVICE)
    z, pair = Parameter(start.clone()), Parameter(torch.view_as_real(start).clone())
    centralizes = config.info.name == "Ranger" and config.label != "not-centralized"
    optimizer, real = config.create([z]), config.create([pair], **({"centralize": False} if centralizes else {}))
    for _ in range(7):
        grad = torch.randn(4, 3, dtype=torch.complex64, device=DEVICE)
        z.grad = grad
        if centralizes:
            grad = grad - grad.mean(dim=1, keepdim=True)
        pair.grad = torch.view_as_real(grad).clone()
        optimizer.step()
        real.step()
    torch.testing.assert_close(torch.view_as_real(z.detach()), pair.detach(), rtol=1e-5, atol=1e-6)
    assert all(t.dtype == torch.complex64 for k, t in optimizer.state[z].items() if k != "step")


@every
def test_no_gradient_no_step(config: Config) -> None:
    params = make_params()
    optimizer = config.create(params)
    before = copy.deepcopy(params)
    optimizer.step()
    assert equal(params, before)
    assert len(optimizer.state) == 0


@every
def test_zero_gradients_change_nothing(config: Config) -> None:
    if config.label == "released":
        pytest.skip("the released source's scalar μ moves every coordinate, whatever the gradient")
    params = make_params()
    optimizer = config.create(params, weight_decay=0.0)
    before = copy.deepcopy(params)
    for _ in range(7):
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()
    assert equal(params, before)


@every
def test_some_gradients_missing(config: Config) -> None:
    params, alone = make_params(), make_params()
    optimizer, reference = config.create(params), config.create(alone[1:])
    for _ in range(3):
        params[1].grad, params[2].grad = drift(params[1]), drift(params[2])
        optimizer.step()
    train(reference, alone[1:], 3)
    assert equal(params, alone)
    train(optimizer, params, 2)  # now all have one; step counts differ within the group
    assert [optimizer.state[p]["step"].item() for p in params] == [2, 5, 5]


@default_settings
def test_empty_parameters(config: Config) -> None:
    empty, full = Parameter(torch.empty(0, 3, device=DEVICE)), make_params()
    optimizer = config.create([empty, *full])
    train(optimizer, [empty, *full], 3)
    reference = make_params()
    train(config.create(reference), reference, 3)
    assert equal(full, reference)
    assert optimizer.state[empty]["step"].item() == 3


@every
def test_gradients_are_left_alone(config: Config) -> None:
    params = make_params()
    optimizer = config.create(params)
    for _ in range(7):
        for p in params:
            p.grad = drift(p)
        kept = [p.grad.clone() for p in params if p.grad is not None]
        optimizer.step()
        assert all(torch.equal(p.grad, k) for p, k in zip(params, kept, strict=True) if p.grad is not None)


@every
def test_maximize_is_minimizing_the_negative(config: Config) -> None:
    up, down = make_params(), make_params()
    first = config.create(up, maximize=not config.kwargs.get("maximize", False))
    second = config.create(down)
    for _ in range(7):
        for p, q in zip(up, down, strict=True):
            p.grad, q.grad = -drift(p), drift(p)
        first.step()
        second.step()
    for a, b in zip(up, down, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@default_settings
def test_sparse_gradients_are_refused_by_name(config: Config) -> None:
    p = Parameter(torch.zeros(3, 2, device=DEVICE))
    optimizer = config.create([p])
    p.grad = torch.sparse_coo_tensor([[0]], torch.ones(1, 2), (3, 2), check_invariants=True).to(DEVICE)
    with pytest.raises(RuntimeError, match=f"{config.info.name} does not support sparse gradients"):
        optimizer.step()
    train(optimizer, [p], 2)
    p.grad = torch.sparse_coo_tensor([[0]], torch.ones(1, 2), (3, 2), check_invariants=True).to(DEVICE)
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


@default_settings
def test_mixed_dtypes_in_a_group(config: Config) -> None:
    mixed = [make_params(torch.float64)[0], make_params(torch.bfloat16)[1], make_params()[2]]
    train(config.create(mixed), mixed, 7)
    for i, dtype in enumerate((torch.float64, torch.bfloat16, torch.float32)):
        alone = make_params(dtype)
        train(config.create(alone), alone, 7)
        torch.testing.assert_close(mixed[i], alone[i], rtol=1e-6, atol=1e-7)


@default_settings
def test_changes_behind_the_optimizers_back_are_seen(config: Config) -> None:
    """State, parameter data, gradients' memory format and options replaced between steps."""
    params, other = make_params(), make_params()
    optimizer, reference = config.create(params), config.create(other)
    for o, ps in ((optimizer, params), (reference, other)):
        train(o, ps, 4)
        for p in ps:
            # The reference sees the same values, written in place.
            fresh = p.detach() * 2
            ones = torch.ones_like(p)
            if o is optimizer:
                p.data = fresh
                o.state[p]["exp_avg"] = ones
            else:
                with torch.no_grad():
                    p.copy_(fresh)
                o.state[p]["exp_avg"].copy_(ones)
        train(o, ps, 2)
        o.param_groups[0]["weight_decay"] = 0.1
        o.param_groups[0]["lr"] = 0.5e-2
        ps[0].grad = (drift(ps[0]).t().contiguous() if o is optimizer else drift(ps[0]).t()).t()
        ps[1].grad, ps[2].grad = drift(ps[1]), drift(ps[2])
        o.step()
        o.state.clear()
        train(o, ps, 3)
        assert o.state[ps[0]]["step"].item() == 3
    assert equal(params, other)


@pytest.mark.parametrize("info", OPTIM_DB, ids=lambda info: info.name)
def test_differentiable_steps_have_the_right_gradients(info: OptimizerInfo) -> None:
    for given in info.optim_inputs_func("cpu"):
        if given.desc in ("short-memory", "paper", "paper-finetune"):
            continue  # h near 0 under a root of one term, or β2 so small that √v has no gradient to speak of

        def trained(start: Tensor, grads: Tensor, kwargs: dict[str, Any] = given.kwargs) -> Tensor:
            p = start.clone()
            optimizer = info.optim_cls([p], **{**kwargs, "eps": 1e-3} if "S" not in info.name else kwargs,
                                       differentiable=True)  # fmt: skip
            for g in grads:
                p.grad = g
                optimizer.step()
            return p

        torch.manual_seed(0)
        start = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        grads = torch.randn(8, 2, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(trained, (start, grads), atol=1e-4, rtol=1e-3), given.desc
