"""The trial's optimizer as the engine builds it, and checkpoints that change how it is implemented."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import pytorch_optimizer
import torch
from torch import nn

import admeta
from admeta.roles import create_for_model
from tasks.engine.optimizers import IMPLEMENTATION_FLAGS, load_optimizer_state, lr_tensors
from tasks.errors import CheckpointError, ConfigError
from tasks.registry import parse_config
from tasks.runs import check

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
    settings = {"lr": 1e-2, "weight_decay": 0.1, **params}
    return create_for_model(name, network, settings, weight_decay_on="matrices", captured=captured)


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
    optimizer = create_for_model("adamw", network, {"lr": 0.1})
    state = {**optimizer.state_dict(), "param_groups": []}
    with pytest.raises(CheckpointError, match=r"groups of \[\] parameters, this run's of \[\d+\]"):
        load_optimizer_state(optimizer, state)


class NeedsClosure(torch.optim.SGD):
    def step(self, closure: Any) -> Any:
        return super().step(closure)


class DifferentiatesGradients(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        parameter = self.param_groups[0]["params"][0]
        return torch.autograd.grad(parameter.grad.sum(), parameter)


class FailsInTheStep(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise KeyError("the state of nothing")


class HasNoGroups(torch.optim.SGD):
    def __init__(self, params: Any, lr: float) -> None:
        self.lr = lr


class KeepsItsLr(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {})
        self.lr = lr


class KeepsAnObject(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        self.state[self.param_groups[0]["params"][0]]["loss"] = CheckpointError("an object")
        return super().step(closure)


def tried(name: str, **settings: Any) -> None:
    check(parse_config({"name": "digits"}), optimizers={"mine": (name, [settings])})


@pytest.mark.parametrize(
    ("name", "settings", "rule"),
    [
        ("torch.optim:Adamax", {"lr": 0.1, "betas": [0.9, 2.0]}, r"cannot be constructed for .*Invalid beta parameter"),
        ("torch.optim:Adamax", {"learning_rate": 0.1}, "unexpected keyword argument 'learning_rate'"),
        ("torch.optim:Nothing", {"lr": 0.1}, "module 'torch.optim' has no 'Nothing'"),
        ("torch.optim:lr_scheduler", {}, "is not a subclass of torch.optim.Optimizer"),
        ("no_such_module:Mine", {"lr": 0.1}, "cannot be imported: ModuleNotFoundError"),
        (
            "pytorch_optimizer:SpectralSphere",
            {"lr": 0.1},
            "cannot train convnet: ValueError: SpectralSphere only supports 2D",
        ),
        ("pytorch_optimizer:ScalableShampoo", {"lr": 0.1}, "a state that cannot be stored in a checkpoint"),
        (f"{__name__}:NeedsClosure", {"lr": 0.1}, r"cannot train here: it computes the loss again within a step"),
        (f"{__name__}:DifferentiatesGradients", {"lr": 0.1}, "cannot train convnet: it differentiates the gradient"),
        (f"{__name__}:FailsInTheStep", {"lr": 0.1}, r"KeyError: 'the state of nothing' .*line \d+, in step\)$"),
        (f"{__name__}:HasNoGroups", {"lr": 0.1}, r"has no param_groups; its __init__ must call super\(\)"),
        (f"{__name__}:KeepsItsLr", {"lr": 0.1}, "has no 'lr' in its param_groups, where the schedule sets it"),
        (f"{__name__}:KeepsAnObject", {"lr": 0.1}, "a state that cannot be stored in a checkpoint"),
    ],
)
def test_an_optimizer_that_cannot_train_is_told_before_the_first_trial(
    name: str, settings: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^optimizer 'mine' \({name}\).*{rule}"):
        tried(name, **settings)


@pytest.mark.parametrize("name", ["muon", "schedulefree", "torch.optim:NAdam", "pytorch_optimizer:Lion+adamw"])
def test_an_optimizer_that_trains_passes(name: str) -> None:
    tried(name, lr=0.01)


def test_one_that_diverges_in_its_step_does_not_fail_the_next() -> None:
    optimizers = {"wild": ("torch.optim:SGD", [{"lr": 1e30}]), "soap": ("soap", [{"lr": 0.01}])}
    check(parse_config({"name": "digits"}), optimizers=optimizers)


def classes_of(module: Any) -> list[str]:
    found = [name for name, one in vars(module).items() if isinstance(one, type)]
    return [name for name in sorted(found) if issubclass(getattr(module, name), torch.optim.Optimizer)]


@pytest.mark.slow
def test_every_optimizer_of_both_libraries_trains_or_is_refused_with_a_reason() -> None:
    refused = {}
    for module in (torch.optim, pytorch_optimizer):
        for name in classes_of(module):
            path = f"{module.__name__}:{name}"
            try:
                check(parse_config({"name": "digits", "model": "mlp"}), optimizers={"it": (path, [{"lr": 1e-3}])})
            except ConfigError as error:
                refused[name] = str(error)
    reasons = {
        "a state that cannot be stored in a checkpoint": {
            "AdaShift",
            "Conda",
            "SCION",
            "SCIONLight",
            "ScalableShampoo",
        },
        "differentiates the gradient": {"AdaHessian", "SophiaH"},
        "computes the loss again within a step": {"LBFGS", "SAM", "WSAM", "LookSAM", "GSAM", "BSAM", "AliG"},
        "in a study give it roles": {"AdaGO", "AdaMuon", "DistributedMuon", "Muon", "MuonClip", "NorMuon"},
        "it wraps another optimizer": {"Lookahead", "TRAC", "OrthoGrad", "PCGrad", "ScheduleFreeWrapper"},
    }
    for reason, names in reasons.items():
        assert names <= {name for name, told in refused.items() if reason in told}
    assert len(refused) < 45
