"""The code that `best` and a trial's page give: it runs, and makes what a trial trains with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import admeta
from admeta.registry import construction
from admeta.roles import JointOptimizer, create_for_model

NAMES = [
    *admeta.OPTIMIZERS,
    "torch.optim:Adamax",
    "pytorch_optimizer:Lion",
    "soap+adamw",
    "muon+lion",
    "torch.optim:Muon+pytorch_optimizer:Lion",
]


def options(optimizer: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key[:5] != "param"} for group in optimizer.param_groups]


@pytest.mark.parametrize("name", NAMES)
def test_the_code_makes_what_a_trial_trains_with(name: str) -> None:
    info = admeta.get(name)
    settings = {**info.fixed, "lr": 0.01, **({"others.lr": 0.02, "others.betas": [0.8, 0.9]} if info.others else {})}
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    there: dict[str, Any] = {"model": model}
    exec(construction(name, settings), there)
    made = create_for_model(name, model, settings)
    expected = made.members if isinstance(made, JointOptimizer) else (made,)
    found = there["optimizers"] if isinstance(made, JointOptimizer) else [there["optimizer"]]
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert type(mine) is type(theirs)
        assert options(mine) == options(theirs)
        for one, other in zip(mine.param_groups, theirs.param_groups, strict=True):
            assert [*map(id, one["params"])] == [*map(id, other["params"])]
    assert all(isinstance(one, torch.optim.Optimizer) for one in found)


@pytest.mark.parametrize("name", ["adamw", "muon+lion", "torch.optim:AdamW"])
def test_the_code_takes_the_decay_off_biases_where_the_task_does(name: str) -> None:
    settings = {"lr": 0.01, "betas": [0.8, 0.9], "weight_decay": 0.5}
    if admeta.get(name).others:
        settings = {"lr": 0.01, "weight_decay": 0.5, "others.weight_decay": 0.5}
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    there: dict[str, Any] = {"model": model}
    exec(construction(name, settings, weight_decay_on="matrices"), there)
    decays = {id(p): group["weight_decay"] for group in there["optimizer"].param_groups for p in group["params"]}
    assert [decays[id(p)] for p in model.parameters()] == [0.5, 0.0] * 3


def test_the_code_has_the_roles_of_a_model_in_mup() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model.width_over_base = 4.0  # type: ignore[assignment]
    there: dict[str, Any] = {"model": model}
    exec(construction("adamw", {"lr": 0.01}, parametrization="mup"), there)
    lrs = {id(p): group["lr"] for group in there["optimizer"].param_groups for p in group["params"]}
    assert [lrs[id(p)] for p in model.parameters()] == [0.0025, 0.01, 0.0025, 0.01, 0.01, 0.01]


def test_an_optimizer_that_is_not_installed_has_no_code() -> None:
    assert construction("of_a_package_that_went", {"lr": 0.1}) == ""
