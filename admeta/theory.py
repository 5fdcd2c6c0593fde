"""Closed forms of the DEMA filter and of AdmetaS on a quadratic. Pure Python, no torch.

Notation: λ = ``lambd``, h_t = c0·g_t + J_{t−1}, J_t = λJ_{t−1} + c1·g_t, m_t = βm_{t−1} + (1−β)h_t.
Source: Chen et al., ICML 2023, section 2.4, in the one-state form.
"""

from __future__ import annotations

import cmath
import math

__all__ = [
    "adam_equivalent_lr",
    "beta_cliff",
    "dema_coefficients",
    "dema_gain",
    "dema_response",
    "ema_response",
    "noise_gain",
    "stability_limit",
]


def _check_lambd(lambd: float) -> None:
    if not 0.0 < lambd < 1.0:
        raise ValueError(f"Invalid lambd value: {lambd}; it must lie in (0, 1), since κ = 10/λ − 9")


def dema_coefficients(lambd: float) -> tuple[float, float]:
    """(c0, c1) of h_t = c0·g_t + J_{t−1}, J_t = λJ_{t−1} + c1·g_t.

    Args:
        lambd: inner decay λ, in (0, 1), per optimizer step.

    Returns:
        (16 − 10λ, 25λ − 10λ² − 10), dimensionless: κ + μ and μλ of the paper without their cancellation.

    Raises:
        ValueError: lambd is outside (0, 1).
    """
    _check_lambd(lambd)
    return 16.0 - 10.0 * lambd, 25.0 * lambd - 10.0 * lambd * lambd - 10.0


def dema_gain(lambd: float) -> float:
    """Steady-state gain of the DEMA filter: what a constant gradient of 1 becomes.

    Args:
        lambd: inner decay λ, in (0, 1), per optimizer step.

    Returns:
        (6 − λ) / (1 − λ), dimensionless; 51 at λ = 0.9.

    Raises:
        ValueError: lambd is outside (0, 1).

    Source: Chen et al., ICML 2023, notations of section 2.4, summed to t → ∞.
    """
    _check_lambd(lambd)
    return (6.0 - lambd) / (1.0 - lambd)


def noise_gain(lambd: float) -> float:
    """Root-mean-square of h for white-noise gradients of variance 1.

    Returns:
        sqrt(c0² + c1²/(1 − λ²)), dimensionless: the ℓ2 norm of the filter's impulse response.

    Raises:
        ValueError: lambd is outside (0, 1).
    """
    c0, c1 = dema_coefficients(lambd)
    return math.sqrt(c0 * c0 + c1 * c1 / (1.0 - lambd * lambd))


def adam_equivalent_lr(lr: float, lambd: float) -> float:
    """AdmetaR's learning rate for the steps that Adam takes at ``lr`` where noise dominates the gradient.

    AdmetaR divides by the root-mean-square of h, not of g. On a constant gradient both steps are lr; where
    the noise is much larger than the signal, AdmetaR's mean step is DC gain / noise gain of Adam's.

    Returns:
        lr · noise_gain(λ) / dema_gain(λ), in lr's unit; about 2.6–3 times lr for λ ≤ 0.1.

    Raises:
        ValueError: lambd is outside (0, 1).
    """
    return lr * noise_gain(lambd) / dema_gain(lambd)


def stability_limit(lr: float, beta: float, lambd: float) -> float:
    """Largest curvature on which AdmetaS without lookahead is stable.

    Args:
        lr: learning rate, > 0.
        beta: outer decay β, in [0, 1).
        lambd: inner decay λ, in (0, 1).

    Returns:
        a* such that gradient descent on ½a·x² converges for 0 < a < a*; s* = lr·a* doesn't depend on lr.

    Raises:
        ValueError: an argument is outside its range.

    Source: Jury's criterion on the characteristic polynomial; with q = 10 − 9λ − βλ(16 − 10λ) the bounds are
    s < 2(1+β)(1+λ)/((1−β)(26−19λ)); s < (1+β)(1+λ)(1−βλ)/((1−β)q) if q > 0; s < (1−λ)(1−βλ)/|q| if q < 0.
    """
    _check_lambd(lambd)
    if not lr > 0.0:
        raise ValueError(f"Invalid learning rate: {lr}; the limit needs lr > 0")
    if not 0.0 <= beta < 1.0:
        raise ValueError(f"Invalid beta value: {beta}; it must lie in [0, 1)")
    q = 10.0 - 9.0 * lambd - beta * lambd * (16.0 - 10.0 * lambd)
    limit = 2.0 * (1.0 + beta) * (1.0 + lambd) / ((1.0 - beta) * (26.0 - 19.0 * lambd))
    if q > 0.0:
        limit = min(limit, (1.0 + beta) * (1.0 + lambd) * (1.0 - beta * lambd) / ((1.0 - beta) * q))
    elif q < 0.0:
        limit = min(limit, (1.0 - lambd) * (1.0 - beta * lambd) / -q)
    return limit / lr


def beta_cliff(lambd: float) -> float:
    """β past which AdmetaS's stable step size falls off: where q of ``stability_limit`` changes its sign.

    Returns:
        (10 − 9λ) / (λ(16 − 10λ)), dimensionless; 0.302 at λ = 0.9.

    Raises:
        ValueError: lambd is outside (0, 1).
    """
    _check_lambd(lambd)
    return (10.0 - 9.0 * lambd) / (lambd * (16.0 - 10.0 * lambd))


def dema_response(omega: float, lambd: float) -> complex:
    """Frequency response of the DEMA filter: what gradients e^{iωt} become, as a factor on them.

    Args:
        omega: ω, radians per optimizer step; 0 gives the steady-state gain, π alternates at every step.
        lambd: inner decay λ, in (0, 1).

    Returns:
        c0 + c1·z/(1 − λz) with z = e^{−iω}; its modulus is the gain, its argument the phase.

    Raises:
        ValueError: lambd is outside (0, 1).
    """
    c0, c1 = dema_coefficients(lambd)
    z = cmath.exp(-1j * omega)
    return c0 + c1 * z / (1.0 - lambd * z)


def ema_response(omega: float, beta: float) -> complex:
    """Frequency response of the exponential moving average m_t = βm_{t−1} + (1−β)g_t; see ``dema_response``.

    Returns:
        (1 − β) / (1 − βz) with z = e^{−iω}; 1 at ω = 0.

    Raises:
        ValueError: beta is outside [0, 1).
    """
    if not 0.0 <= beta < 1.0:
        raise ValueError(f"Invalid beta value: {beta}; it must lie in [0, 1)")
    return (1.0 - beta) / (1.0 - beta * cmath.exp(-1j * omega))
