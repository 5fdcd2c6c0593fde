"""The interface that torch checks of its own optimizers, checked of ours: errors, groups, names, hooks, flags."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, OptimizerInfo

from tests.admeta.torch_configs import (
    OPTIM_DB,
    Config,
    default_settings,
    drift,
    equal,
    every,
    make_params,
    train,
)


@pytest.mark.parametrize("info", OPTIM_DB, ids=lambda info: info.name)
def test_optimizer_errors(info: OptimizerInfo) -> None:
    from torch.testing._internal.common_optimizers import get_error_inputs_for_all_optims

    general = get_error_inputs_for_all_optims("cpu", torch.float32)
    for wrong in [*general, *info.optim_error_inputs_func("cpu", torch.float32)]:
        given = wrong.optimizer_error_input
        params = given.params if given.params is not None else [Parameter(torch.zeros(1, 1))]
        assert wrong.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
        if issubclass(wrong.error_type, Warning):
            with pytest.warns(wrong.error_type, match=wrong.error_regex):
                info.optim_cls(params, **given.kwargs)
        else:
            with pytest.raises(wrong.error_type, match=wrong.error_regex):
                info.optim_cls(params, **given.kwargs)


@pytest.mark.parametrize("info", OPTIM_DB, ids=lambda info: info.name)
def test_a_later_group_is_checked_too(info: OptimizerInfo) -> None:
    for wrong in info.optim_error_inputs_func("cpu", torch.float32):
        if "preset" in wrong.optimizer_error_input.kwargs:
            continue  # resolved by the constructor, no option of a group
        optimizer = info.optim_cls([Parameter(torch.zeros(1))])
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            optimizer.add_param_group({"params": [Parameter(torch.zeros(1))], **wrong.optimizer_error_input.kwargs})


@pytest.mark.parametrize("info", OPTIM_DB, ids=lambda info: info.name)
def test_flags_that_exclude_one_another(info: OptimizerInfo) -> None:
    params = [Parameter(torch.zeros(2))]
    with pytest.raises(RuntimeError, match="`fused` does not support `differentiable`"):
        info.optim_cls(params, fused=True, differentiable=True)
    with pytest.raises(RuntimeError, match="`fused` and `foreach` cannot be `True` together"):
        info.optim_cls(params, fused=True, foreach=True)
    params[0].grad = torch.ones(2)
    with pytest.raises(AssertionError, match="foreach ops don't support autograd"):
        info.optim_cls(params, foreach=True, differentiable=True).step()
    with pytest.raises(AssertionError, match="capturable=True, params and state_steps must be on supported devices"):
        info.optim_cls(params, capturable=True).step()


def test_fused_on_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    for info in OPTIM_DB:
        params = [Parameter(torch.zeros(2))]
        params[0].grad = torch.ones(2)
        with pytest.raises(RuntimeError, match="`fused=True` requires all the params to be floating point Tensors"):
            info.optim_cls(params, fused=True).step()


@every
def test_can_be_printed(config: Config) -> None:
    params = make_params()
    optimizer = config.create([{"params": params[:1], "lr": 0.5}, {"params": params[1:]}])
    text = repr(optimizer)
    assert text.startswith(config.info.name)
    assert "lr: 0.5" in text
    assert "Parameter Group 1" in text


@default_settings
def test_named_parameters(config: Config) -> None:
    params = make_params()
    optimizer = config.create([(f"p{i}", p) for i, p in enumerate(params)])
    train(optimizer, params, 2)
    state = optimizer.state_dict()
    assert state["param_groups"][0]["param_names"] == ["p0", "p1", "p2"]
    other = config.create(make_params())
    other.load_state_dict(state)
    assert other.state_dict()["param_groups"][0]["param_names"] == ["p0", "p1", "p2"]


@default_settings
def test_hooks(config: Config) -> None:
    params = make_params()
    optimizer = config.create(params)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("step pre"))
    optimizer.register_step_post_hook(lambda *_: seen.append("step post"))
    optimizer.register_state_dict_pre_hook(lambda *_: seen.append("save pre"))
    optimizer.register_state_dict_post_hook(lambda *_: seen.append("save post"))
    optimizer.register_load_state_dict_post_hook(lambda *_: seen.append("load post"))

    def rename(_: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        seen.append("load pre")
        changed = copy.deepcopy(state)
        changed["param_groups"][0]["lr"] = 0.125
        return changed

    optimizer.register_load_state_dict_pre_hook(rename)
    train(optimizer, params, 1)
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["step pre", "step post", "save pre", "save post", "load pre", "load post"]
    assert optimizer.param_groups[0]["lr"] == 0.125


@default_settings
def test_closure(config: Config) -> None:
    params = make_params()
    optimizer = config.create(params)

    def closure() -> float:
        assert torch.is_grad_enabled()
        for p in params:
            p.grad = drift(p)
        return 3.0

    assert optimizer.step(closure) == 3.0
    assert optimizer.state[params[0]]["step"].item() == 1
    assert optimizer.step() is None


@pytest.mark.parametrize(
    "scheduler", [lambda o: StepLR(o, step_size=3, gamma=0.5), lambda o: ReduceLROnPlateau(o, patience=1)]
)
@default_settings
def test_schedulers(config: Config, scheduler: Callable[[Optimizer], Any]) -> None:
    params = make_params()
    optimizer = config.create(params)
    schedule = scheduler(optimizer)
    for _ in range(8):
        train(optimizer, params, 1)
        schedule.step(1.0) if isinstance(schedule, ReduceLROnPlateau) else schedule.step()
    assert optimizer.param_groups[0]["lr"] < config.kwargs["lr"]
    other = make_params()
    constant = config.create(other)
    train(constant, other, 8)
    assert not equal(params, other)


@default_settings
def test_groups_with_options_of_their_own(config: Config) -> None:
    params, apart = make_params(), make_params()
    own: list[dict[str, Any]] = [{"lr": 0.02}, {"weight_decay": 0.1}, {"maximize": True}]
    optimizer = config.create([{"params": [p], **options} for p, options in zip(params, own, strict=True)])
    singles = [config.create([p], **options) for p, options in zip(apart, own, strict=True)]
    train(optimizer, params, 7)
    for single, p in zip(singles, apart, strict=True):
        train(single, [p], 7)
    assert equal(params, apart)


@default_settings
def test_a_group_added_later(config: Config) -> None:
    params, apart = make_params(), make_params()
    optimizer = config.create(params[:1])
    train(optimizer, params[:1], 3)
    optimizer.add_param_group({"params": params[1:]})
    train(optimizer, params, 4)
    first, second = config.create(apart[:1]), config.create(apart[1:])
    train(first, apart[:1], 7)
    train(second, apart[1:], 4)
    assert equal(params, apart)
