"""All trajectories of the reference file, in every implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import admeta
from tests.admeta.cases import DEVICE, IMPLEMENTATIONS

CASES = json.loads((Path(__file__).parent / "data" / "admeta_trajectories.json").read_text())["cases"]
NOT_OPTIONS = {"variant", "optimizer", "atol", "trajectory"}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES, ids=[f"{c['optimizer']}-{i}" for i, c in enumerate(CASES)])
def test_trajectory(case: dict[str, Any], implementation: str) -> None:
    x = torch.nn.Parameter(torch.ones(2, dtype=torch.float64, device=DEVICE))
    scale = torch.tensor([1.0, 10.0], dtype=torch.float64, device=DEVICE)
    options = {name: value for name, value in case.items() if name not in NOT_OPTIONS}
    optimizer = getattr(admeta, case["optimizer"])([x], **options, **IMPLEMENTATIONS[implementation])
    errors = []
    for row in case["trajectory"]:
        x.grad = scale * x.detach()
        optimizer.step()
        errors.append((x.detach().cpu() - torch.tensor(row, dtype=torch.float64)).abs().max().item())
    assert max(errors) <= case["atol"], errors
