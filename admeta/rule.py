"""The one update rule behind AdmetaR, AdmetaS, Ranger, AdaBelief, Adam, AdamW and RAdam, as data.

Owns: which terms the update has, its constants, and its factors at update t. Does not own: the ways to run it
(admeta.updates, admeta.fused).

For each coordinate, at update t (1-based), with g the gradient (after maximize, centralising and L2 decay):

    h = h_gain_t·g + J + h_bias        J ← λJ + j_gain_t·g            DEMA; h = g without it
    m ← β1·m + (1 − β1)·h
    v ← β2·v + (1 − β2)·h²             or (g − m)² and + ε for AdaBelief
    θ ← decay_t·θ − size_t·m / (√v + ε_t) − plain_t·m
    every k-th update: φ ← φ + η_t(θ − φ); θ ← φ

The start-up term ν of the paper is the value nu_scale·λ·g_1 of J before the first update, folded into
h_gain_1 and j_gain_1. Source: Chen et al., ICML 2023, Algorithms 1 and 2, in the one-state form of DEMA.

Factors are computed in float64, because 1 − β2^t and ρ_t cancel: in float32 their error is 1e-5 at t = 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from admeta.theory import dema_coefficients

__all__ = [
    "Dema", "Factors", "Moments", "Number", "SlowSchedule", "UpdateRule", "dema_of", "factors_at",
    "factors_on_device", "moments_of", "rule_of", "slow_schedule_of",
]  # fmt: skip

Number = float | Tensor
_ABOVE_FOUR = math.nextafter(4.0, math.inf)  # r_t divides by ρ∞ − 4 and is real for ρ_t > 4 alone


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
    """The second moment and how steps are scaled by it; AdmetaS has none.

    Attributes:
        beta2: decay rate of v.
        eps: added to √v̂; AdaBelief also adds it to v.
        belief: v is of g − m (AdaBelief) instead of h.
        rectify: RAdam's rectification, once ρ_t ≥ rho_min.
        rho_min: above 4.
        step_unrectified: before that: θ − lr·m̂ (True), or nothing moves (False).
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
    """Everything of the update that is constant over a group and a run, but the learning rate.

    Attributes:
        stochastic: bfloat16 parameters are rounded stochastically.
    """

    beta1: float
    weight_decay: float
    decoupled: bool
    maximize: bool
    dema: Dema | None = None
    moments: Moments | None = None
    slow: SlowSchedule | None = None
    centralize: bool = False
    stochastic: bool = False

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the parameter-sized tensors of state that the update reads."""
        names = [("dema", self.dema), ("exp_avg", self), ("exp_avg_sq", self.moments), ("slow", self.slow)]
        return tuple(name for name, term in names if term is not None)


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
        stochastic=group.get("rounding") == "stochastic",
    )


def moments_of(group: dict[str, Any]) -> Moments:
    """The second moment of h; rectified and never gated where the group has no such option.

    Raises:
        ValueError: ρ_t stays below ``rho_min`` for ever and ``unrectified`` is "skip": nothing would ever move.
    """
    moments = Moments(
        beta2=group["betas"][1],
        eps=group["eps"],
        rectify=group.get("rectify", True),
        rho_min=max(group["rho_min"], _ABOVE_FOUR),
        step_unrectified=group["unrectified"] == "sgd",
        gate=group.get("gate_exp_avg_sq", False),
        raw_eps=group.get("raw_eps", False),
    )
    if moments.rectify and not moments.step_unrectified and moments.rho_inf <= moments.rho_min:
        raise ValueError(
            f"Invalid betas value: {group['betas']!r} with rho_min = {group['rho_min']}; ρ_t stays below "
            f"2/(1 − betas[1]) − 1 = {moments.rho_inf:.4g}, so that with unrectified='skip' no step is ever taken. "
            f"Raise betas[1] above {1.0 - 2.0 / (moments.rho_min + 1.0):.4g}, or set unrectified='sgd'"
        )
    return moments


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


class Factors(NamedTuple):
    """Factors of the update at one t; numbers, or tensors of float64 where t or the learning rate is on a device.

    Attributes:
        h_gain, j_gain: of the DEMA, with the start-up term at t = 1.
        decay: factor 1 − lr·weight_decay of decoupled decay; 1 where a step is skipped.
        v_keep, v_add: v ← v_keep·v + v_add·h².
        size, eps: of −size·m/(√v + eps); size = 0 where the step is not adaptive.
        plain: of −plain·m.
        eta: η_t where this is a synchronising update, else 0.
    """

    h_gain: Number
    j_gain: Number
    decay: Number
    v_keep: Number
    v_add: Number
    size: Number
    eps: Number
    plain: Number
    eta: Number


def factors_at(rule: UpdateRule, t: float, lr: Number) -> Factors:
    """The factors at update ``t`` (1-based), decided on the host; lr may be a tensor."""
    h_gain, j_gain = 1.0, 0.0
    if rule.dema is not None:
        start = rule.dema.start if t == 1 else 0.0
        h_gain = rule.dema.h_gain + start
        j_gain = rule.dema.j_gain + rule.dema.lambd * start
    eta = 0.0
    if rule.slow is not None and t % rule.slow.k == 0:
        eta = rule.slow.base * (1.0 + rule.slow.gain / (rule.slow.rate * math.sqrt(t) + rule.slow.shift))
    decay: Number = 1.0 - lr * rule.weight_decay if rule.decoupled else 1.0
    if rule.moments is None:
        return Factors(h_gain, j_gain, decay, 1.0, 0.0, 0.0, 1.0, lr, eta)
    moments = rule.moments
    lr_hat = lr / (1.0 - rule.beta1**t)
    root2 = math.sqrt(1.0 - moments.beta2**t)
    v_keep, v_add = moments.beta2, 1.0 - moments.beta2
    size: Number = lr_hat * root2
    plain: Number = 0.0
    eps = moments.eps if moments.raw_eps else moments.eps * root2
    if moments.rectify:
        rho = moments.rho_inf - 2.0 * t * moments.beta2**t / (1.0 - moments.beta2**t)
        if rho >= moments.rho_min:
            size = size * math.sqrt(_rectification(moments, rho))
        else:
            size, eps, plain = 0.0, 1.0, lr_hat if moments.step_unrectified else 0.0
            if not moments.step_unrectified:
                decay = 1.0
            if moments.gate:
                v_keep, v_add = 1.0, 0.0
    return Factors(h_gain, j_gain, decay, v_keep, v_add, size, eps, plain, eta)


def _rectification(moments: Moments, rho: float) -> float:
    """r_t² of RAdam (Liu et al., ICLR 2020, equation 5 of its algorithm)."""
    top = (rho - 4.0) * (rho - 2.0) * moments.rho_inf
    return top / ((moments.rho_inf - 4.0) * (moments.rho_inf - 2.0) * rho)


def factors_on_device(rule: UpdateRule, t: Tensor, lr: Number) -> Factors:
    """The factors at ``t`` (any shape), decided on t's device without a host read; numbers where t doesn't matter.

    Tensors are float64, or float32 on MPS.
    """
    t = t.to(torch.float32 if t.device.type == "mps" else torch.float64)
    zero = torch.zeros_like(t)
    if isinstance(lr, Tensor):
        lr = lr + zero
    h_gain: Number = 1.0
    j_gain: Number = 0.0
    if rule.dema is not None:
        start = torch.where(t == 1, rule.dema.start, zero)
        h_gain = rule.dema.h_gain + start
        j_gain = rule.dema.j_gain + rule.dema.lambd * start
    eta: Number = 0.0
    if rule.slow is not None:
        at_t = rule.slow.base * (1.0 + rule.slow.gain / (rule.slow.rate * t.sqrt() + rule.slow.shift))
        eta = torch.where(t % rule.slow.k == 0, at_t, zero)
    decay: Number = 1.0 - lr * rule.weight_decay if rule.decoupled and rule.weight_decay != 0 else 1.0
    if rule.moments is None:
        return Factors(h_gain, j_gain, decay, 1.0, 0.0, 0.0, 1.0, lr, eta)
    moments = rule.moments
    lr_hat = lr / (1.0 - rule.beta1**t)
    power2 = moments.beta2**t
    root2 = (1.0 - power2).sqrt()
    v_keep: Number = moments.beta2
    v_add: Number = 1.0 - moments.beta2
    size, plain = lr_hat * root2, zero
    eps: Number = moments.eps if moments.raw_eps else moments.eps * root2
    if moments.rectify:
        rho = moments.rho_inf - 2.0 * t * power2 / (1.0 - power2)
        ready = rho >= moments.rho_min
        top = (rho - 4.0) * (rho - 2.0) * moments.rho_inf
        squared = top / ((moments.rho_inf - 4.0) * (moments.rho_inf - 2.0) * rho)
        size = torch.where(ready, size * squared.clamp_min(0.0).sqrt(), zero)
        eps = torch.where(ready, eps, 1.0)
        plain = torch.where(ready, zero, lr_hat) if moments.step_unrectified else zero
        if not moments.step_unrectified and rule.decoupled and rule.weight_decay != 0:
            decay = torch.where(ready, decay, 1.0)
        if moments.gate:
            v_keep, v_add = torch.where(ready, v_keep, 1.0), torch.where(ready, v_add, 0.0)
    return Factors(h_gain, j_gain, decay, v_keep, v_add, size, eps, plain, eta)
