"""bfloat16 state and stochastic rounding: unbiased, alike in all implementations, resumed exactly, half the memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import Parameter

import admeta
from admeta.updates import random_bits, round_stochastically
from tests.admeta.cases import DEFAULTS, DEVICE, IMPLEMENTATIONS, KERNEL_CLASSES, Case, case_id

OWN = [case for case in DEFAULTS if case.optimizer not in KERNEL_CLASSES]
own = pytest.mark.parametrize("case", OWN, ids=case_id)
implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def make_params(dtype: torch.dtype = torch.float32) -> list[Parameter]:
    draws = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(s, generator=draws).to(DEVICE, dtype)) for s in ((40, 30), (1030,), ())]


def train(optimizer: torch.optim.Optimizer, params: list[Parameter], steps: range) -> None:
    for step in steps:
        draws = torch.Generator().manual_seed(step)
        for p in params:
            p.grad = (torch.randn(p.shape, generator=draws) + 0.2).to(p.device, p.dtype)
        optimizer.step()


def test_stochastic_rounding_is_unbiased_and_exact_where_it_can_be() -> None:
    value = torch.tensor([1.0 + 2**-9, -3.0 - 2**-10, 1e-20, 0.7]).repeat(1000)
    mean = torch.stack([round_stochastically(value, random_bits(value, float(t))) for t in range(400)]).double().mean(0)
    for i in range(4):  # 400,000 roundings each; one step of bfloat16 is 2^-7 of the value at most
        assert abs(mean[i::4].mean().item() / value[i].item() - 1) < 2**-7 * 0.5 / 400_000**0.5 * 5
    kept = torch.tensor([0.0, -0.0, 1.5, float("inf"), -float("inf"), 2.0**-120])
    assert torch.equal(round_stochastically(kept, random_bits(kept, 3.0)).float(), kept)
    worst = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)  # a NaN whose bits would overflow
    assert round_stochastically(worst, torch.full((1,), -1, dtype=torch.int32)).isnan().all()


def test_bits_are_alike_for_numbers_and_tensors_and_change_with_the_step() -> None:
    like = torch.zeros(5000)
    for t in (1, 2, 2**24 + 1, 2**33 + 5):
        assert torch.equal(random_bits(like, float(t)), random_bits(like, torch.tensor(float(t), dtype=torch.float64)))
    first, second = (random_bits(like, t).float() for t in (1.0, 2.0))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.05
    halves = torch.stack([(random_bits(like, 7.0) & 0xFFFF).float(), ((random_bits(like, 7.0) >> 16) & 0xFFFF).float()])
    assert abs(torch.corrcoef(halves)[0, 1]) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@own
def test_implementations_agree(case: Case, dtype: torch.dtype) -> None:
    results: list[list[Tensor]] = []
    for flags in IMPLEMENTATIONS.values():
        params = make_params(dtype)
        optimizer = case.create(params, **flags, state_dtype=torch.bfloat16, rounding="stochastic")
        train(optimizer, params, range(13))
        state = [t for s in optimizer.state.values() for k, t in s.items() if k != "step"]
        assert {t.dtype for t in state} == {torch.bfloat16}
        results.append([t.detach().float() for t in (*params, *state)])
    # A last bit of float32 can decide a rounding, which moves an element by one step of bfloat16; Triton's interpreter
    # cuts off where a card rounds to the nearest.
    for other, tolerance in zip(results[1:], (2e-3, 2e-3 if DEVICE == "cuda" else 5e-2), strict=True):
        for got, wanted in zip(other, results[0], strict=True):
            assert (got - wanted).norm() <= tolerance * wanted.norm() + 1e-12


@implementations
@own
def test_resuming_is_exact(case: Case, implementation: str) -> None:
    options: dict[str, Any] = {**IMPLEMENTATIONS[implementation], "state_dtype": "bfloat16", "rounding": "stochastic"}
    straight, params = make_params(torch.bfloat16), make_params(torch.bfloat16)
    train(case.create(straight, **options), straight, range(14))
    first = case.create(params, **options)
    train(first, params, range(8))
    second = case.create(params, **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.state[params[0]]["exp_avg"].dtype == torch.bfloat16
    train(second, params, range(8, 14))
    assert all(torch.equal(a, b) for a, b in zip(params, straight, strict=True))


@pytest.mark.parametrize(("name", "tensors"), [("admetar", 4), ("admetas", 3), ("ranger", 3), ("adabelief", 2)])
def test_state_takes_half(name: str, tensors: int) -> None:
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        p = Parameter(torch.zeros(1000, device=DEVICE))
        optimizer = admeta.create(name, [p], state_dtype=dtype, foreach=False)
        train(optimizer, [p], range(1))
        measured = sum(t.numel() * t.element_size() for k, t in optimizer.state[p].items() if k != "step")
        assert measured == 1000 * tensors * size


def test_combinations_that_are_refused() -> None:
    with pytest.raises(RuntimeError, match="`differentiable` needs state_dtype='float32'"):
        admeta.AdmetaR(make_params(), state_dtype="bfloat16", differentiable=True)
    with pytest.raises(ValueError, match="does not support complex parameters"):
        admeta.AdmetaR([Parameter(torch.zeros(2, dtype=torch.complex64))], state_dtype="bfloat16")
    with pytest.raises(ValueError, match="supports bfloat16 parameters, not float16"):
        admeta.AdmetaR(make_params(torch.float16), rounding="stochastic")
    with pytest.raises(ValueError, match=r"Invalid state_dtype value: torch\.float16; it must be one of"):
        admeta.AdmetaR(make_params(), state_dtype=torch.float16)  # type: ignore[arg-type]


def final_loss(*, dtype: torch.dtype, seed: int, **options: Any) -> float:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # such small products only wait for one another
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(dtype)
    optimizer = admeta.AdmetaR(model.parameters(), lr=3e-3, foreach=True, **options)
    draws = torch.Generator().manual_seed(seed)
    losses = []
    for step in range(400):
        rows = torch.randint(0, 1500, (64,), generator=draws)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows].to(dtype)).float(), y[rows]).backward()
        optimizer.step()
        if step >= 300 and step % 20 == 0:
            with torch.no_grad():
                losses.append(nn.functional.cross_entropy(model(x[1500:].to(dtype)).float(), y[1500:]).item())
    return sum(losses) / len(losses)


def test_bfloat16_trains_as_float32_does() -> None:
    seeds = range(3)
    wide = [final_loss(dtype=torch.float32, seed=seed) for seed in seeds]
    state = [final_loss(dtype=torch.float32, seed=seed, state_dtype="bfloat16") for seed in seeds]
    stochastic = [final_loss(dtype=torch.bfloat16, seed=seed, rounding="stochastic") for seed in seeds]
    spread = max(wide) - min(wide)
    for other in (state, stochastic):
        assert abs(sum(other) - sum(wide)) / len(wide) < max(spread, 0.05 * sum(wide) / len(wide)), (wide, other)
