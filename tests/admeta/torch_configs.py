"""Every optimizer, setting of ``OptimizerInfo.optim_inputs_func`` and implementation, for torch's own properties.

Without a GPU the kernels run in Triton's slow interpreter, so there fused sees the default settings alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

pytest.importorskip("torch.testing._internal.common_optimizers", reason="this torch comes without its test helpers")

from torch.testing._internal.common_optimizers import OptimizerInfo

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
