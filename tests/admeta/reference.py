"""Independent float64 references in numpy: the recursions as their papers and sources print them.

Nothing here is shared with the package: AdmetaR and AdmetaS in the two-term form of h with I and ν, Ranger and
AdaBelief after their authors' sources (with ε on √v̂, as documented).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def slow_eta(slow_step: str | float, t: int) -> float:
    if slow_step == "dynamic_0.8":
        return 0.8 * (1 + 1 / (0.1 * math.sqrt(t) + 3.8))
    if slow_step == "dynamic_0.5":
        return 0.5 * (1 + 1 / (0.01 * math.sqrt(t) + 1))
    return float(slow_step)


def rectified(beta2: float, t: int, rho_min: float) -> float | None:
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
    if rho < rho_min:
        return None
    return math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))


class Dema:
    """h = κg + μI + ν_t with I_t = λI_{t−1} + g_t and ν_t = nu_scale·λ^t·g_1."""

    def __init__(self, form: str, lambd: float, nu_scale: float) -> None:
        self.form, self.lambd, self.nu_scale = form, lambd, nu_scale
        self.integral: Array | float = 0.0
        self.first: Array | None = None

    def __call__(self, g: Array, t: int) -> Array:
        if self.form == "off":
            return g
        lambd = self.lambd
        if self.first is None:
            self.first = g.copy()
        self.integral = lambd * self.integral + g
        kappa, mu = 10 / lambd - 9, 25 - 10 * (lambd + 1 / lambd)
        nu = self.nu_scale * lambd**t * self.first
        return kappa * g + (mu if self.form == "released" else mu * self.integral) + nu


def run(optimizer: str, start: Array, grads: Sequence[Array], options: dict[str, Any]) -> Array:
    """θ after all gradients, by the named optimizer with these options (all of them given)."""
    o = options
    theta, phi = start.copy(), start.copy()
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    dema = Dema(o.get("dema", "off"), o.get("lambd", 0.5), o.get("nu_scale", 0.0))
    for t, raw in enumerate(grads, start=1):
        g = -raw if o["maximize"] else raw.copy()
        if o.get("centralize") and g.ndim > 1:
            g = g - g.mean(axis=tuple(range(1, g.ndim)), keepdims=True)
        if not o["decoupled_weight_decay"]:
            g = g + o["weight_decay"] * theta
        elif not is_skipped(optimizer, t, o):
            theta = theta * (1 - o["lr"] * o["weight_decay"])
        if optimizer == "admetas":
            m = o["beta"] * m + (1 - o["beta"]) * dema(g, t)
            theta = theta - o["lr"] * m
        else:
            theta, m, v = adaptive_step(optimizer, theta, m, v, dema(g, t), t, o)
        if o.get("slow_step") is not None and t % o["k"] == 0:
            phi = phi + slow_eta(o["slow_step"], t) * (theta - phi)
            theta = phi.copy()
    return theta


def is_skipped(optimizer: str, t: int, o: dict[str, Any]) -> bool:
    if o.get("unrectified") != "skip" or not o.get("rectify", True):
        return False
    return rectified(o["betas"][1], t, o["rho_min"]) is None


def adaptive_step(
    optimizer: str, theta: Array, m: Array, v: Array, h: Array, t: int, o: dict[str, Any]
) -> tuple[Array, Array, Array]:
    beta1, beta2 = o["betas"]
    m = beta1 * m + (1 - beta1) * h
    m_hat = m / (1 - beta1**t)
    rectify = optimizer not in ("adam", "adamw") and o.get("rectify", True)
    r = rectified(beta2, t, o.get("rho_min", 5.0)) if rectify else 1.0
    if r is not None or not o.get("gate_exp_avg_sq", False):
        seen = h - m if optimizer == "adabelief" else h
        v = beta2 * v + (1 - beta2) * seen**2
        if optimizer == "adabelief":
            v = v + o["eps"]
    if r is not None:
        raw = optimizer == "radam" or o.get("raw_eps", False)  # torch's and the authors': beside √v, not √v̂
        eps = o["eps"] / np.sqrt(1 - beta2**t) if raw else o["eps"]
        return theta - o["lr"] * r * m_hat / (np.sqrt(v / (1 - beta2**t)) + eps), m, v
    if o.get("unrectified", "sgd") == "sgd":
        return theta - o["lr"] * m_hat, m, v
    return theta, m, v
