"""Every optimizer, setting and implementation against the numpy references, over three synchronisations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.admeta import reference
from tests.admeta.cases import CASES, DEVICE, IMPLEMENTATIONS, Case, all_options, case_id

SHAPES = [(3, 4), (2, 3, 2, 2), (5,), (), (7, 1)]
STEPS = 20


def trajectory(case: Case, flags: dict[str, Any], dtype: torch.dtype, steps: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    params = [torch.nn.Parameter(torch.tensor(rng.normal(size=s), dtype=dtype, device=DEVICE)) for s in SHAPES]
    optimizer = case.create(params, **flags)
    for _ in range(steps):
        for p in params:
            p.grad = torch.tensor(rng.normal(size=tuple(p.shape)) + 0.2, dtype=dtype, device=DEVICE)
        optimizer.step()
    return [p.detach().double().cpu() for p in params]


def expected(case: Case, steps: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    starts = [rng.normal(size=s) for s in SHAPES]
    grads = [[rng.normal(size=s) + 0.2 for s in SHAPES] for _ in range(steps)]
    options = all_options(case)
    return [
        reference.run(case.optimizer, np.asarray(start), [np.asarray(step[i]) for step in grads], options)
        for i, start in enumerate(starts)
    ]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_float64(case: Case, implementation: str) -> None:
    for got, wanted in zip(
        trajectory(case, IMPLEMENTATIONS[implementation], torch.float64, STEPS), expected(case, STEPS), strict=True
    ):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("implementation", ["foreach", "fused"])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_agrees_with_single_in_float32(case: Case, implementation: str) -> None:
    steps = 50
    if implementation == "fused" and DEVICE == "cpu":
        if case.label != "defaults":
            pytest.skip("Triton's interpreter is slow; test_float64 runs the kernels at every setting")
        steps = 20
    single = trajectory(case, IMPLEMENTATIONS["single"], torch.float32, steps)
    other = trajectory(case, IMPLEMENTATIONS[implementation], torch.float32, steps)
    for got, wanted in zip(other, single, strict=True):
        assert (got - wanted).norm() <= 2e-6 * wanted.norm()
