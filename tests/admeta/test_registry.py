"""The registry: rules, spaces, construction, and that it needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch

import admeta
from admeta import registry
from admeta.builtin import BUILTIN
from admeta.errors import ParameterError, RegistrationError, UnknownOptimizerError
from admeta.info import OptimInfo
from admeta.spaces import Categorical, Float, Int, ParamSpace
from admeta.theory import beta_cliff
from tests.admeta.cases import KERNEL_CLASSES

NAMES = tuple(sorted(BUILTIN))  # the baselines have tests of their own: tests.tasks.engine.test_baselines


def samples(space: ParamSpace) -> list[Any]:
    return list(space.choices) if isinstance(space, Categorical) else [space.low, space.high]


def ends_of(space: Mapping[str, ParamSpace], fixed: Mapping[str, object]) -> dict[str, list[Any]]:
    return {name: samples(one) for name, one in space.items()} | {name: [value] for name, value in fixed.items()}


def spaces_of(info: OptimInfo) -> list[tuple[Mapping[str, ParamSpace], Mapping[str, object]]]:
    found = [(info.default_space, info.fixed), (info.finetune_space, info.finetune_fixed)]
    for name, space in info.paper_spaces.items():
        found.append((space, info.finetune_fixed if name == "paper_finetune" else info.fixed))
    return found


def test_names() -> None:
    assert NAMES == ("adabelief", "adam", "adamw", "admetar", "admetas", "radam", "ranger", "sgd", "sgdm")
    assert all(name == info.name for name, info in admeta.OPTIMIZERS.items())


def test_importing_the_registry_imports_no_torch() -> None:
    code = "import sys, admeta; admeta.get('admetar').check('lr', 0.1); admeta.stability_limit(1, .2, .9)\n"
    code += "assert not {'torch', 'numpy', 'triton'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_optimizers_train_with_torch_alone() -> None:
    """What ``pip install admeta-search[optimizers]`` brings beside torch is not imported by them."""
    code = """
import sys, warnings
for name in ("httpx", "numpy", "pydantic", "rich", "typer", "yaml", "scipy", "sklearn", "ray", "optuna", "triton"):
    sys.modules[name] = None
warnings.simplefilter("ignore")
import torch, admeta
p = torch.nn.Parameter(torch.ones(3))
for name in ("AdmetaR", "AdmetaS", "Ranger", "AdaBelief", "KernelAdamW"):
    optimizer = getattr(admeta, name)([p], lr=0.1)
    for _ in range(7):
        p.grad = p.detach().clone()
        optimizer.step()
assert float(p.detach().norm()) < 3 ** 0.5
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_resolve_and_are_sorted() -> None:
    assert admeta.__all__ == sorted(admeta.__all__, key=lambda name: (not name.isupper(), name.islower(), name))
    assert all(getattr(admeta, name) is not None for name in admeta.__all__)
    assert set(admeta.__all__) <= set(dir(admeta))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        admeta.nothing  # noqa: B018


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_valid_and_the_constructors_own(name: str) -> None:
    info = admeta.get(name)
    made = admeta.create(name, [torch.nn.Parameter(torch.zeros(2))]).defaults
    for parameter in info.parameters.values():
        info.check(parameter.name, parameter.default)
        if parameter.name != "preset":
            value = made[parameter.name]
            assert (list(value) if isinstance(value, tuple) else value) == parameter.default, parameter.name
    json.dumps([p.default for p in info.parameters.values()], allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_spaces_hold_valid_values_that_train(name: str) -> None:
    info = admeta.get(name)
    for space, fixed in spaces_of(info):
        assert not set(space) & set(fixed)
        for key, value in fixed.items():
            info.check(key, value)
        for key, values in space.items():
            for value in samples(values):
                info.check(key, value)
        for end in (0, -1):
            p = torch.nn.Parameter(torch.ones(3))
            chosen = {key: samples(values)[end] for key, values in space.items()}
            optimizer = admeta.create(name, [p], **fixed, **chosen)
            for _ in range(7):
                p.grad = 0.1 * p.detach()
                optimizer.step()
            assert torch.isfinite(p).all()


def test_default_spaces_keep_admetas_off_the_cliff() -> None:
    info = admeta.get("admetas")
    for space, fixed in ((info.default_space, info.fixed), (info.finetune_space, info.finetune_fixed)):
        lambd = fixed["lambd"]
        assert isinstance(lambd, float)
        assert max(samples(space["beta"])) < beta_cliff(lambd)
        assert admeta.cautions("admetas", ends_of(space, fixed)) == ()


def test_the_papers_admetas_grid_gets_a_caution() -> None:
    info = admeta.get("admetas")
    (text,) = admeta.cautions("admetas", ends_of(info.paper_spaces["paper"], info.fixed))
    assert "beta reaches 0.4" in text
    assert "0.302" in text
    assert admeta.cautions("admetas", {"lr": [0.01, 0.1], "beta": [0.5]}) != ()
    assert admeta.cautions("admetas+adamw", {"lr": [0.01, 0.1], "beta": [0.5], "others.lr": [0.1]}) != ()
    assert admeta.cautions("admetas", {"lr": [0.01, 0.1], "beta": [0.5], "dema": ["off"]}) == ()
    assert admeta.cautions("adamw", {"lr": [0.01, 0.1]}) == ()


@pytest.mark.parametrize(
    ("name", "parameter", "value", "rule"),
    [
        ("admetar", "lambd", 1.0, r"must be a finite number in \(0, 1\)"),
        ("admetar", "lambd", 0, r"must be a finite number in \(0, 1\)"),
        ("admetar", "lr", float("nan"), "must be a finite number"),
        ("admetar", "lr", float("inf"), "must be a finite number"),
        ("admetar", "lr", True, "must be a finite number"),
        ("admetar", "lr", "0.1", "must be a finite number"),
        ("admetar", "betas", [0.9], "must be a list of 2 numbers"),
        ("admetar", "betas", [0.9, 1.0], "must be a list of 2 numbers"),
        ("admetar", "k", 6.0, "must be a whole number ≥ 1"),
        ("admetar", "k", True, "must be a whole number ≥ 1"),
        ("admetar", "slow_step", "dynamic", "must be one of 'dynamic_0.8', 'dynamic_0.5', or a finite"),
        ("admetar", "rectify", 1, "must be true or false"),
        ("admetar", "lamda", 0.1, "no such parameter.*Did you mean 'lambd'"),
        ("admetas", "betas", [0.9, 0.9], "no such parameter.*Did you mean 'beta'"),
        ("sgd", "momentum", 0.9, "no such parameter"),
    ],
)
def test_values_that_are_refused(name: str, parameter: str, value: object, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule) as caught:
        admeta.get(name).check(parameter, value)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("value", ["dynamic_0.8", "dynamic_0.5", 0.5, 1, None])
def test_slow_steps_that_are_taken(value: object) -> None:
    admeta.get("admetar").check("slow_step", value)
    admeta.create("admetar", [torch.nn.Parameter(torch.zeros(1))], slow_step=value)


def test_unknown_optimizers() -> None:
    with pytest.raises(UnknownOptimizerError, match=r"did you mean 'admetar'.*known optimizers: adabelief, adam") as e:
        admeta.get("admtar")
    assert e.value.nearest == "admetar"
    with pytest.raises(UnknownOptimizerError, match=r"unknown optimizer 'zzz'; known"):
        admeta.create("zzz", [])


def test_lists_become_tuples_and_flags_pass() -> None:
    optimizer = admeta.create("adam", [torch.nn.Parameter(torch.zeros(1))], betas=[0.8, 0.9], foreach=False)
    assert optimizer.defaults["betas"] == (0.8, 0.9)
    assert optimizer.defaults["foreach"] is False
    sgdm = admeta.create("sgdm", [torch.nn.Parameter(torch.zeros(1))])
    assert (sgdm.defaults["momentum"], sgdm.defaults["nesterov"]) == (0.9, True)


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_steps_optimizer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info, params = admeta.get(name), [torch.nn.Parameter(torch.zeros(1))]
    plain = type(admeta.create(name, params))
    monkeypatch.setattr("admeta.implementation.has_triton", lambda: True)
    captured = admeta.create_captured(name, params, lr=0.5)
    assert type(captured) is KERNEL_CLASSES.get(name, plain)
    assert captured.defaults["lr"] == 0.5
    assert all(captured.defaults[flag] == value for flag, value in info.graph_kwargs.items())
    flag = next(iter(info.graph_kwargs))
    assert admeta.create_captured(name, params, **{flag: False}).defaults[flag] is False
    monkeypatch.setattr("admeta.implementation.has_triton", lambda: False)
    assert type(admeta.create_captured(name, params)) is plain


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_what_the_captured_class_lacks_is_torchs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admeta.implementation.has_triton", lambda: True)
    params = [torch.nn.Parameter(torch.zeros(1))]
    with_maximum = admeta.create_captured(name, params, amsgrad=True)
    assert type(with_maximum) is type(admeta.create(name, params))
    assert with_maximum.defaults["amsgrad"] is True
    assert type(admeta.create_captured(name, params, amsgrad=False)) is KERNEL_CLASSES[name]


@pytest.mark.parametrize("name", KERNEL_CLASSES)
def test_the_captured_class_has_the_same_defaults(name: str) -> None:
    params = [torch.nn.Parameter(torch.zeros(1))]
    theirs = {"fused": None, **admeta.create(name, params).defaults}  # torch's RAdam has no such flag
    assert KERNEL_CLASSES[name](params).defaults == theirs


MINE = OptimInfo(
    name="mine",
    target="torch.optim:SGD",
    title="Mine",
    description="",
    source=admeta.get("sgd").source,
    parameters=admeta.get("sgd").parameters,
    default_space={},
    fixed={},
    finetune_space={},
    finetune_fixed={},
)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Any:
    def offer(name: str, attribute: str) -> None:
        point = EntryPoint(name=name, value=f"{__name__}:{attribute}", group=registry.ENTRY_POINT_GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda group: [point])
        registry.known_optimizers.cache_clear()

    yield offer
    monkeypatch.undo()
    registry.known_optimizers.cache_clear()


def test_an_installed_package_adds_an_optimizer(offered: Any) -> None:
    offered("mine", "MINE")
    assert isinstance(admeta.create("mine", [torch.nn.Parameter(torch.zeros(1))], lr=0.1), torch.optim.SGD)


def test_packages_that_are_refused(offered: Any) -> None:
    offered("mine", "NAMES")
    with pytest.raises(RegistrationError, match=r"is a tuple; the group 'admeta\.optimizers' takes"):
        admeta.get("mine")
    offered("other", "MINE")
    with pytest.raises(RegistrationError, match="offers the optimizer 'mine'; the name must be the entry point's"):
        admeta.get("other")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float(1.0, 1.0), "low must be below high"),
        (lambda: Float(0.0, 1.0, log=True), "a log scale needs low > 0"),
        (lambda: Float(float("-inf"), 1.0), "both bounds must be finite"),
        (lambda: Float(0.1, 1.0, log=True, step=0.1), "step must be positive"),
        (lambda: Int(3, 2), "low must be below high"),
        (lambda: Categorical(()), "at least one choice"),
    ],
)
def test_spaces_that_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
