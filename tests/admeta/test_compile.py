"""torch.compile of the step."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from tests.admeta.cases import DEFAULTS, DEVICE, Case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE == "cpu" and shutil.which("g++") is None, reason="inductor needs a C++ compiler on CPU"),
]


# On CPU each takes ten seconds of C++ compilation, so there two stand for all.
COMBINATIONS = [
    pytest.param(case, flags, id=f"{case.optimizer}-{name}")
    for case in DEFAULTS
    for name, flags in (("foreach", {}), ("single", {"foreach": False}))
    if DEVICE == "cuda" or (case.optimizer, name) in (("admetar", "foreach"), ("admetas", "single"))
]


@pytest.mark.parametrize(("case", "flags"), COMBINATIONS)
def test_compiled_step_equals_the_eager_one(case: Case, flags: dict[str, Any]) -> None:
    torch._dynamo.reset()
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(s, device=DEVICE)) for s in ((4, 3), (5,))]
        optimizer = case.create(params, **flags)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        for _ in range(13):
            for p in params:
                p.grad = torch.randn_like(p)
            step()
        results.append([p.detach() for p in params])
    for eager, other in zip(*results, strict=True):
        torch.testing.assert_close(other, eager, rtol=2e-5, atol=1e-6)
