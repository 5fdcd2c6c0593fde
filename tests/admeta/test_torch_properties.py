"""The properties that torch checks of its own optimizers (test/test_optim.py), checked of ours.

Each runs over every optimizer, every setting of ``OptimizerInfo.optim_inputs_func`` and every implementation.
Without a GPU the kernels run in Triton's slow interpreter, so there fused sees the default settings alone.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, OptimizerInfo

from tests.admeta.cases import DEVICE, IMPLEMENTATIONS
from tests.admeta.torch_infos import install

OPTIM_DB = install()
FLAGS: dict[str, dict[str, Any]] = {
    **IMPLEMENTATIONS,
    "differentiable": {"foreach": False, "fused": False, "differentiable": True},
}


@dataclass(frozen=True)
class Config:
    info: OptimizerInfo
    label: str
    kwargs: dict[str, Any]

    def create(self, params: Any, **more: Any) -> Optimizer:
        return self.info.optim_cls(params, **{**self.kwargs, **more})


def _configs(implementations: tuple[str, ...]) -> list[Any]:
    found = []
    for info in OPTIM_DB:
        for given in info.optim_inputs_func(DEVICE):
            for name in implementations:
                if name == "fused" and DEVICE == "cpu" and given.desc != "defaults":
                    continue
                config = Config(info, given.desc, {**given.kwargs, **FLAGS[name]})
                found.append(pytest.param(config, id=f"{info.name}-{given.desc}-{name}"))
    return found


every = pytest.mark.parametrize("config", _configs(("single", "foreach", "fused")))
every_and_differentiable = pytest.mark.parametrize("config", _configs(("single", "foreach", "fused", "differentiable")))
default_settings = pytest.mark.parametrize(
    "config", [p for p in _configs(("single", "foreach", "fused")) if p.values[0].label == "defaults"]
)


def drift(param: Tensor) -> Tensor:
    """A gradient that depends on the parameter and differs from one element to the next."""
    return torch.linspace(0.5, 1.5, param.numel(), device=param.device, dtype=torch.float64).reshape(param.shape).to(
        param.dtype
    ) * (1 + param.detach())


def train(optimizer: Optimizer, params: list[Parameter], steps: int) -> None:
    for _ in range(steps):
        for p in params:
            p.grad = drift(p)
        optimizer.step()


def make_params(dtype: torch.dtype = torch.float32) -> list[Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(s, generator=generator).to(DEVICE, dtype)) for s in ((4, 3), (5,), ())]


def equal(a: list[Parameter], b: list[Parameter]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


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


@every
def test_can_be_printed(config: Config) -> None:
    params = make_params()
    optimizer = config.create([{"params": params[:1], "lr": 0.5}, {"params": params[1:]}])
    text = repr(optimizer)
    assert text.startswith(config.info.name)
    assert "lr: 0.5" in text
    assert "Parameter Group 1" in text


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
    for _ in range(30):
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


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@every
def test_tensor_lr_equals_float_lr(config: Config, shape: tuple[int, ...]) -> None:
    if config.kwargs.get("foreach") and DEVICE == "cpu":
        with pytest.raises(ValueError, match="lr as a Tensor is not supported for capturable=False and foreach=True"):
            config.create(make_params(), lr=torch.tensor(0.01))
        return
    plain, with_tensor = make_params(torch.float64), make_params(torch.float64)
    flags = {"capturable": True} if DEVICE == "cuda" else {}
    tensor = torch.full(shape, config.kwargs["lr"], dtype=torch.float64, device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(config.create(plain), plain, 7)
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
    for _ in range(13):
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


@every
def test_resuming_from_a_state_dict_is_exact(config: Config) -> None:
    straight = make_params()
    train(config.create(straight), straight, 14)
    params = make_params()
    first = config.create(params)
    train(first, params, 8)
    stored = io.BytesIO()
    torch.save(first.state_dict(), stored)
    stored.seek(0)
    second = config.create(params, lr=123.0)
    second.load_state_dict(torch.load(stored, weights_only=True))
    train(second, params, 6)
    assert equal(params, straight)


@default_settings
@pytest.mark.parametrize("by", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_of_the_optimizer_train_on(config: Config, by: Callable[[Any], Any]) -> None:
    params = make_params()
    optimizer = config.create(params)
    train(optimizer, params, 8)
    twin_params, twin = by((params, optimizer))
    train(optimizer, params, 5)
    train(twin, twin_params, 5)
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@default_settings
def test_low_precision_state_is_float32_and_survives_loading(config: Config, dtype: torch.dtype) -> None:
    params = make_params(dtype)
    optimizer = config.create(params)
    train(optimizer, params, 7)
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
        assert value.dtype == torch.float32
    train(optimizer, params, 6)
    train(other, again, 6)
    assert equal(params, again)


@default_settings
def test_mixed_dtypes_in_a_group(config: Config) -> None:
    mixed = [make_params(torch.float64)[0], make_params(torch.bfloat16)[1], make_params()[2]]
    train(config.create(mixed), mixed, 7)
    for i, dtype in enumerate((torch.float64, torch.bfloat16, torch.float32)):
        alone = make_params(dtype)
        train(config.create(alone), alone, 7)
        torch.testing.assert_close(mixed[i], alone[i], rtol=1e-6, atol=1e-7)


@default_settings
def test_default_dtype_decides_the_step_counts(config: Config) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        params = make_params()
        optimizer = config.create(params)
        train(optimizer, params, 2)
        assert optimizer.state[params[0]]["step"].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


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


@pytest.mark.parametrize(("name", "words"), [("AdmetaR", 4), ("AdmetaS", 3), ("Ranger", 3), ("AdaBelief", 2)])
def test_state_is_no_more_than_it_must_be(name: str, words: int) -> None:
    info = next(info for info in OPTIM_DB if info.name == name)
    p = Parameter(torch.zeros(1000, device=DEVICE))
    optimizer = info.optim_cls([p])
    train(optimizer, [p], 1)
    state = [t for t in optimizer.state[p].values() if t.numel() > 1]
    assert sum(t.numel() * t.element_size() for t in state) == words * 4 * 1000
