"""The one update rule behind AdmetaR, AdmetaS, Ranger, AdaBelief, Adam, AdamW and RAdam, as data.

Owns: which terms the update has and its constants. Does not own: what depends on the step
(admeta.coefficients) and the three ways to run it (admeta.single, admeta.multi, admeta.fused).

For each coordinate, at update t (1-based), with g the gradient (after maximize, centralising and L2 decay):

    h = h_gain_t·g + J + h_bias        J ← λJ + j_gain_t·g            DEMA; h = g without it
    m ← β1·m + (1 − β1)·h
    v ← β2·v + (1 − β2)·h²             or (g − m)² and + ε for AdaBelief
    θ ← θ − size_t·m / (√v + ε_t) − plain_t·m
    every k-th update: φ ← φ + η_t(θ − φ); θ ← φ

The start-up term ν of the paper is the value nu_scale·λ·g_1 of J before the first update, folded into
h_gain_1 and j_gain_1. Source: Chen et al., ICML 2023, Algorithms 1 and 2, in the one-state form of DEMA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from admeta.theory import dema_coefficients

__all__ = ["Dema", "Moments", "SlowSchedule", "UpdateRule", "dema_of", "moments_of", "rule_of", "slow_schedule_of"]


@dataclass(frozen=True)
class Dema:
    """Constants of h = h_gain·g + J + h_bias, J ← λJ + j_gain·g, J before the first update = start·g_1."""

    lambd: float
    h_gain: float
    h_bias: float
    j_gain: float
    start: float


@dataclass(frozen=True)
class SlowSchedule:
    """η_t = base·(1 + gain / (rate·√t + shift)), applied every ``k``-th update."""

    base: float
    gain: float
    rate: float
    shift: float
    k: int


@dataclass(frozen=True)
class Moments:
    """The second moment and how steps are scaled by it; AdmetaS has none of it.

    Attributes:
        beta2: decay rate of v.
        eps: added to √v̂; AdaBelief also adds it to v.
        belief: v is of g − m (AdaBelief) instead of h.
        rectify: RAdam's rectification, once ρ_t ≥ rho_min.
        step_unrectified: before that: θ − lr·m̂ (True) or no step (False).
        gate: leave v alone before that.
        raw_eps: eps is added to √v instead, before v's bias is corrected, as in torch.optim.RAdam.
    """

    beta2: float
    eps: float
    belief: bool = False
    rectify: bool = True
    rho_min: float = 5.0
    step_unrectified: bool = False
    gate: bool = False
    raw_eps: bool = False

    @property
    def rho_inf(self) -> float:
        """Longest length of the approximated simple moving average, 2/(1 − β2) − 1."""
        return 2.0 / (1.0 - self.beta2) - 1.0


@dataclass(frozen=True)
class UpdateRule:
    """Everything of the update that is constant over a group and a run, but the learning rate."""

    beta1: float
    weight_decay: float
    decoupled: bool
    maximize: bool
    dema: Dema | None = None
    moments: Moments | None = None
    slow: SlowSchedule | None = None
    centralize: bool = False


def rule_of(
    group: dict[str, Any],
    *,
    beta1: float,
    dema: Dema | None = None,
    moments: Moments | None = None,
    slow: SlowSchedule | None = None,
    centralize: bool = False,
) -> UpdateRule:
    """The rule of these terms, and of the options that every parameter group has."""
    return UpdateRule(
        beta1=beta1,
        weight_decay=group["weight_decay"],
        decoupled=group["decoupled_weight_decay"],
        maximize=group["maximize"],
        dema=dema,
        moments=moments,
        slow=slow,
        centralize=centralize,
    )


def moments_of(group: dict[str, Any]) -> Moments:
    """The second moment of h; rectified and never gated where the group has no such option."""
    return Moments(
        beta2=group["betas"][1],
        eps=group["eps"],
        rectify=group.get("rectify", True),
        rho_min=group["rho_min"],
        step_unrectified=group["unrectified"] == "sgd",
        gate=group.get("gate_exp_avg_sq", False),
    )


def dema_of(form: str, *, lambd: float, nu_scale: float) -> Dema | None:
    """The filter's constants for ``form`` "full", "off" or "released".

    "released" has the scalar μ in place of μ·I, the bug of the released source.
    """
    if form == "off":
        return None
    if form == "full":
        h_gain, j_gain = dema_coefficients(lambd)
        return Dema(lambd=lambd, h_gain=h_gain, h_bias=0.0, j_gain=j_gain, start=nu_scale * lambd)
    kappa = 10.0 / lambd - 9.0
    mu = 25.0 - 10.0 * (lambd + 1.0 / lambd)
    return Dema(lambd=lambd, h_gain=kappa, h_bias=mu, j_gain=0.0, start=nu_scale * lambd)


def slow_schedule_of(slow_step: str | float | None, *, k: int) -> SlowSchedule | None:
    """η_t of "dynamic_0.8", "dynamic_0.5" or a constant; None for no lookahead.

    Source: Chen et al., ICML 2023, section "Forward-looking".
    """
    if slow_step is None:
        return None
    if slow_step == "dynamic_0.8":
        return SlowSchedule(base=0.8, gain=1.0, rate=0.1, shift=3.8, k=k)
    if slow_step == "dynamic_0.5":
        return SlowSchedule(base=0.5, gain=1.0, rate=0.01, shift=1.0, k=k)
    return SlowSchedule(base=float(slow_step), gain=0.0, rate=0.0, shift=1.0, k=k)
