"""torch.compile of the step."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from tests.admeta.cases import DEFAULTS, DEVICE, KERNEL_CLASSES, Case, case_id

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


@pytest.mark.parametrize("rate", ["float", "tensor"])
@pytest.mark.parametrize("case", [c for c in DEFAULTS if c.optimizer in ("admetar", "admetas", "ranger")], ids=case_id)
@pytest.mark.parametrize("flags", [{}, {"foreach": False}], ids=["foreach", "single"])
def test_a_step_is_traced_once(case: Case, rate: str, flags: dict[str, Any]) -> None:
    """Over 14 steps with ``zero_grad`` and a schedule: once for a tensor rate, a second time where floats change."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    params = [torch.nn.Parameter(torch.randn(s, device=DEVICE)) for s in ((4, 3), (5,), (2, 2))]
    lr = torch.tensor(1e-2, device=DEVICE) if rate == "tensor" else 1e-2
    optimizer = case.create(params, lr=lr, **flags)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    counter = CompileCounter()
    step = torch.compile(optimizer.step, backend=counter)
    for _ in range(14):
        optimizer.zero_grad()
        sum(p.square().sum() for p in params).backward()  # type: ignore[union-attr]
        step()
        schedule.step()
    assert counter.frame_count <= (1 if rate == "tensor" else 2)
    assert optimizer.state[params[0]]["step"].item() == 14


@pytest.mark.parametrize("flags", [{}, {"foreach": False}], ids=["foreach", "single"])
@pytest.mark.parametrize("case", [c for c in DEFAULTS if c.optimizer not in KERNEL_CLASSES], ids=case_id)
def test_a_traced_step_rounds_as_an_eager_one(case: Case, flags: dict[str, Any]) -> None:
    """Bfloat16 parameters and state: the same random bits from a step count that only the device knows."""
    torch._dynamo.reset()
    results = []
    for traced in (False, True):
        draws = torch.Generator().manual_seed(0)
        params = [
            torch.nn.Parameter(torch.randn(s, generator=draws).to(DEVICE, torch.bfloat16)) for s in ((40, 3), (5,))
        ]
        optimizer = case.create(params, **flags, state_dtype="bfloat16", rounding="stochastic")
        step = torch.compile(optimizer.step, backend="eager") if traced else optimizer.step
        for _ in range(13):
            for p in params:
                p.grad = torch.randn(p.shape, generator=draws).to(DEVICE, torch.bfloat16)
            step()
        results.append([p.detach().float() for p in params])
    for eager, other in zip(*results, strict=True):
        assert (other - eager).norm() <= 2e-3 * eager.norm()
