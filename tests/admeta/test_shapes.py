"""Random shapes, strides and memory formats: every implementation walks them alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.admeta.cases import DEFAULTS, DEVICE, IMPLEMENTATIONS, Case, case_id


@st.composite
def layouts(draw: Any) -> tuple[tuple[int, ...], str]:
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=0, max_size=4)))
    forms = ["contiguous", "permuted", "gapped", "offset"] + (["channels_last"] if len(shape) == 4 else [])
    return shape, draw(st.sampled_from(forms))


def laid_out(values: Tensor, form: str) -> Tensor:
    """A tensor of the values whose memory is laid out as ``form`` says."""
    if form == "permuted" and values.ndim > 1:
        return values.permute(*reversed(range(values.ndim))).contiguous().permute(*reversed(range(values.ndim)))
    if form == "gapped" and values.ndim > 0:
        wide = torch.full((*values.shape[:-1], 2 * values.shape[-1]), 7.0, dtype=values.dtype, device=values.device)
        wide[..., ::2] = values
        return wide[..., ::2]
    if form == "offset":
        flat = torch.cat([values.new_full((1,), 7.0), values.reshape(-1)])
        return flat[1:].view(values.shape)
    if form == "channels_last":
        return values.contiguous(memory_format=torch.channels_last)
    return values.contiguous()


@pytest.mark.parametrize("case", DEFAULTS, ids=case_id)
@settings(
    max_examples=40 if DEVICE == "cuda" else 6,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_layouts(case: Case, data: st.DataObject) -> None:
    params = data.draw(st.lists(layouts(), min_size=1, max_size=3))
    grads = [data.draw(st.sampled_from(["contiguous", "permuted", "gapped"])) for _ in params]
    seed = data.draw(st.integers(0, 2**16))
    results = []
    for flags in IMPLEMENTATIONS.values():
        generator = torch.Generator().manual_seed(seed)

        def normal(shape: tuple[int, ...], generator: torch.Generator = generator) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE)

        ours = [torch.nn.Parameter(laid_out(normal(shape), form)) for shape, form in params]
        optimizer = case.create(ours, **flags)
        for _ in range(7):
            for p, form in zip(ours, grads, strict=True):
                p.grad = laid_out(normal(tuple(p.shape)), form)
            optimizer.step()
        results.append([p.detach() for p in ours])
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
