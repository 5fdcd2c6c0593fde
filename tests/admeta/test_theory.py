"""Closed forms against the filter and the iteration themselves."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import admeta
from admeta.theory import (
    beta_cliff,
    dema_coefficients,
    dema_gain,
    dema_response,
    ema_response,
    noise_gain,
    stability_limit,
)

LAMBDAS = st.floats(0.02, 0.95)


def impulse_response(lambd: float, length: int) -> list[float]:
    kappa, mu = 10 / lambd - 9, 25 - 10 * (lambd + 1 / lambd)
    return [(kappa if t == 0 else 0.0) + mu * lambd**t for t in range(length)]


@given(LAMBDAS)
def test_gains_are_those_of_the_impulse_response(lambd: float) -> None:
    response = impulse_response(lambd, 2000)
    assert math.isclose(dema_gain(lambd), math.fsum(response), rel_tol=1e-9)
    assert math.isclose(noise_gain(lambd), math.sqrt(math.fsum(r * r for r in response)), rel_tol=1e-9)


@given(LAMBDAS)
def test_one_state_form_is_the_two_term_form(lambd: float) -> None:
    c0, c1 = dema_coefficients(lambd)
    response = impulse_response(lambd, 3)
    for got, wanted in zip((c0, c1, lambd * c1), response, strict=True):
        assert math.isclose(got, wanted, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize(("lambd", "gain"), [(0.02, 6.10), (0.1, 6.56), (0.2, 7.25), (0.5, 11.0), (0.9, 51.0)])
def test_known_gains(lambd: float, gain: float) -> None:
    assert dema_gain(lambd) == pytest.approx(gain, abs=5e-3)


def test_known_stability_limits() -> None:
    assert stability_limit(1.0, 0.2, 0.9) == pytest.approx(0.640, abs=5e-4)
    assert stability_limit(1.0, 0.4, 0.9) == pytest.approx(0.103, abs=5e-4)
    assert beta_cliff(0.9) == pytest.approx(0.302, abs=5e-4)
    assert stability_limit(0.1, 0.2, 0.9) == pytest.approx(6.40, abs=5e-3)


def spectral_radius(s: float, beta: float, lambd: float) -> float:
    """Of the linear map (θ, m, J) → (θ, m, J) on curvature 1 with lr s."""
    c0, c1 = dema_coefficients(lambd)
    w = 1 - beta
    rows = [[1 - s * w * c0, -s * beta, -s * w], [w * c0, beta, w], [c1, 0.0, lambd]]
    return float(torch.linalg.eigvals(torch.tensor(rows, dtype=torch.float64)).abs().max())


@given(LAMBDAS, st.floats(0.0, 0.95))
def test_stability_limit_is_where_the_iteration_turns_unstable(lambd: float, beta: float) -> None:
    limit = stability_limit(1.0, beta, lambd)
    assert spectral_radius(0.99 * limit, beta, lambd) < 1.0 + 1e-9
    assert spectral_radius(1.01 * limit, beta, lambd) > 1.0 - 1e-9


@pytest.mark.parametrize("beta", [0.2, 0.4])
def test_admetas_itself_obeys_the_limit(beta: float) -> None:
    curvature = stability_limit(0.1, beta, 0.9)
    for factor, stable in ((0.95, True), (1.05, False)):
        x = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        optimizer = admeta.AdmetaS([x], lr=0.1, beta=beta, lambd=0.9, slow_step=None)
        for _ in range(3000):
            x.grad = factor * curvature * x.detach()
            optimizer.step()
        assert (x.abs().item() < 1.0) is stable


@pytest.mark.parametrize("lambd", [0.02, 0.05, 0.1])
def test_adam_equivalent_lr(lambd: float) -> None:
    assert 2.5 < admeta.adam_equivalent_lr(1.0, lambd) < 3.1


@pytest.mark.parametrize("lambd", [0.0, 1.0, -0.1, float("nan")])
def test_lambda_outside_its_range(lambd: float) -> None:
    for function in (dema_gain, noise_gain, beta_cliff):
        with pytest.raises(ValueError, match="Invalid lambd value"):
            function(lambd)
    with pytest.raises(ValueError, match="Invalid lambd value"):
        stability_limit(0.1, 0.2, lambd)
    with pytest.raises(ValueError, match="Invalid learning rate: 0"):
        stability_limit(0.0, 0.2, 0.9)
    with pytest.raises(ValueError, match=r"Invalid beta value: 1\.0"):
        stability_limit(0.1, 1.0, 0.9)


@given(LAMBDAS, st.floats(0.0, math.pi))
def test_responses_are_the_fourier_sums_of_the_filters(lambd: float, omega: float) -> None:
    dema = sum(r * cmath.exp(-1j * omega * t) for t, r in enumerate(impulse_response(lambd, 1000)))
    assert cmath.isclose(dema_response(omega, lambd), dema, rel_tol=1e-9, abs_tol=1e-9)
    ema = sum((1 - lambd) * lambd**t * cmath.exp(-1j * omega * t) for t in range(1000))
    assert cmath.isclose(ema_response(omega, lambd), ema, rel_tol=1e-9, abs_tol=1e-9)


def test_responses_refuse_what_is_no_filter() -> None:
    with pytest.raises(ValueError, match=r"it must lie in \(0, 1\)"):
        dema_response(0.1, 1.0)
    with pytest.raises(ValueError, match=r"it must lie in \[0, 1\)"):
        ema_response(0.1, 1.0)
