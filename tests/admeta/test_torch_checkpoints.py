"""What torch checks of its own optimizers' state, checked of ours: saving, loading, copies, dtypes, size."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from tests.admeta.cases import DEVICE
from tests.admeta.torch_configs import (
    OPTIM_DB,
    Config,
    default_settings,
    equal,
    every,
    make_params,
    train,
)


@every
def test_resuming_from_a_state_dict_is_exact(config: Config) -> None:
    """Just before the sixth step: the first that is rectified, and the first synchronisation with the slow weights."""
    straight = make_params()
    train(config.create(straight), straight, 8)
    params = make_params()
    first = config.create(params)
    train(first, params, 5)
    stored = io.BytesIO()
    torch.save(first.state_dict(), stored)
    stored.seek(0)
    second = config.create(params, lr=123.0)
    second.load_state_dict(torch.load(stored, weights_only=True))
    train(second, params, 3)
    assert equal(params, straight)


@default_settings
@pytest.mark.parametrize("by", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_of_the_optimizer_train_on(config: Config, by: Callable[[Any], Any]) -> None:
    params = make_params()
    optimizer = config.create(params)
    train(optimizer, params, 5)
    twin_params, twin = by((params, optimizer))
    train(optimizer, params, 3)
    train(twin, twin_params, 3)
    assert equal(params, twin_params)
    assert twin.param_groups[0]["params"][0] is twin_params[0]


@default_settings
def test_older_state_dicts_load(config: Config) -> None:
    params = make_params()
    optimizer = config.create(params)
    train(optimizer, params, 2)
    old = optimizer.state_dict()
    for group in old["param_groups"]:
        for flag in ("foreach", "fused", "maximize", "capturable", "differentiable"):
            del group[flag]
    other = config.create(make_params())
    other.load_state_dict(old)
    train(other, other.param_groups[0]["params"], 2)
    unpickled = pickle.loads(pickle.dumps(optimizer))
    for group in unpickled.param_groups:
        assert group["differentiable"] is False


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@default_settings
def test_low_precision_state_is_float32_and_survives_loading(config: Config, dtype: torch.dtype) -> None:
    params = make_params(dtype)
    optimizer = config.create(params)
    train(optimizer, params, 5)
    tensors = {k: v for k, v in optimizer.state[params[0]].items() if k != "step"}
    assert {t.dtype for t in tensors.values()} == {torch.float32}
    again = make_params(dtype)
    other = config.create(again)
    with torch.no_grad():
        for a, p in zip(again, params, strict=True):
            a.copy_(p)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for name, value in other.state[again[0]].items():
        assert torch.equal(value, optimizer.state[params[0]][name]), name
        assert value.dtype == (torch.float64 if name == "step" else torch.float32)
    train(optimizer, params, 3)
    train(other, again, 3)
    assert equal(params, again)


@default_settings
def test_step_counts_go_beyond_the_integers_of_float32(config: Config) -> None:
    params = make_params()
    optimizer = config.create(params)
    train(optimizer, params, 1)
    for p in params:
        optimizer.state[p]["step"].fill_(2.0**24)
    train(optimizer, params, 3)
    assert [state["step"].item() for state in optimizer.state.values()] == [2**24 + 3] * 3
    other = config.create(make_params())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(state["step"].item() == 2**24 + 3 for state in other.state.values())


@default_settings
def test_step_counts_that_are_numbers_load(config: Config) -> None:
    """As other frameworks write them, and torch before 1.12 did."""
    params = make_params()
    optimizer = config.create(params)
    train(optimizer, params, 3)
    stored = copy.deepcopy(optimizer.state_dict())
    for state in stored["state"].values():
        state["step"] = int(state["step"])
    other_params = [Parameter(p.detach().clone()) for p in params]
    other = config.create(other_params)
    other.load_state_dict(stored)
    train(other, other_params, 4)
    train(optimizer, params, 4)
    assert equal(params, other_params)
    for p in params:
        optimizer.state[p]["step"] = int(optimizer.state[p]["step"])
    train(optimizer, params, 1)
    assert optimizer.state[params[0]]["step"].item() == 8


@pytest.mark.parametrize(
    ("name", "words"), [("AdmetaR", 4), ("AdmetaS", 3), ("Ranger", 3), ("AdaBelief", 2), ("KernelAdam", 2)]
)
def test_state_is_no_more_than_it_must_be(name: str, words: int) -> None:
    info = next(info for info in OPTIM_DB if info.name == name)
    p = Parameter(torch.zeros(1000, device=DEVICE))
    optimizer = info.optim_cls([p])
    train(optimizer, [p], 1)
    state = [t for t in optimizer.state[p].values() if t.numel() > 1]
    assert sum(t.numel() * t.element_size() for t in state) == words * 4 * 1000
