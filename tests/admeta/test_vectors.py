"""All trajectories of the reference file, in every implementation that runs here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import admeta

CASES = json.loads((Path(__file__).parent / "data" / "admeta_trajectories.json").read_text())["cases"]
OPTIONS = ("lr", "betas", "beta", "eps", "lambd", "k", "slow_step", "nu_scale", "rectify", "rho_min", "unrectified",
           "gate_exp_avg_sq", "dema")  # fmt: skip


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("case", CASES, ids=[f"{c['optimizer']}-{i}" for i, c in enumerate(CASES)])
def test_trajectory(case: dict[str, Any], foreach: bool) -> None:
    x = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    scale = torch.tensor([1.0, 10.0], dtype=torch.float64)
    optimizer = getattr(admeta, case["optimizer"])([x], **{k: case[k] for k in OPTIONS if k in case}, foreach=foreach)
    errors = []
    for row in case["trajectory"]:
        x.grad = scale * x.detach()
        optimizer.step()
        errors.append((x.detach() - torch.tensor(row, dtype=torch.float64)).abs().max().item())
    assert max(errors) <= case["atol"], errors
