"""What the update rule's factors are at update t: on the host for a number t, on the device for a tensor t.

Owns: bias correction, rectification, the start-up term, the synchronisation's turn. Everything is computed in
float64, because 1 − β2^t and ρ_t cancel: in float32 their error is 1e-5 at t = 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from admeta.rule import Moments, UpdateRule

__all__ = ["Coefficients", "coefficients_at", "coefficients_on_device"]

Number = float | Tensor
N = TypeVar("N", float, Number)


@dataclass(frozen=True)
class Coefficients(Generic[N]):
    """Factors of admeta.rule's update at one t; numbers from the host, 0-dim or 1-dim tensors from the device.

    Attributes:
        h_gain, j_gain: of the DEMA, with the start-up term at t = 1.
        decay: factor 1 − lr·weight_decay of decoupled decay.
        v_keep, v_add: v ← v_keep·v + v_add·h².
        size, eps: of −size·m/(√v + eps); size = 0 where the step is not adaptive.
        plain: of −plain·m.
        eta: η_t where this is a synchronising update, else 0.
    """

    h_gain: N
    j_gain: N
    decay: N
    v_keep: N
    v_add: N
    size: N
    eps: N
    plain: N
    eta: N


def coefficients_at(rule: UpdateRule, t: float, lr: N) -> Coefficients[N]:
    """The factors at update ``t`` (1-based), decided on the host; lr may be a tensor."""
    h_gain, j_gain = 1.0, 0.0
    if rule.dema is not None:
        start = rule.dema.start if t == 1 else 0.0
        h_gain = rule.dema.h_gain + start
        j_gain = rule.dema.j_gain + rule.dema.lambd * start
    eta = 0.0
    if rule.slow is not None and t % rule.slow.k == 0:
        eta = rule.slow.base * (1.0 + rule.slow.gain / (rule.slow.rate * math.sqrt(t) + rule.slow.shift))
    decay = 1.0 - lr * rule.weight_decay if rule.decoupled else 1.0
    if rule.moments is None:
        return Coefficients(h_gain, j_gain, decay, 1.0, 0.0, 0.0, 1.0, lr, eta)
    moments = rule.moments
    lr_hat = lr / (1.0 - rule.beta1**t)
    root2 = math.sqrt(1.0 - moments.beta2**t)
    v_keep, v_add, size, plain = moments.beta2, 1.0 - moments.beta2, lr_hat * root2, 0.0
    eps = moments.eps if moments.raw_eps else moments.eps * root2
    if moments.rectify:
        rho = moments.rho_inf - 2.0 * t * moments.beta2**t / (1.0 - moments.beta2**t)
        if rho >= moments.rho_min:
            size = size * math.sqrt(_rectification(moments, rho))
        else:
            size, eps, plain = 0.0, 1.0, lr_hat if moments.step_unrectified else 0.0
            if moments.gate:
                v_keep, v_add = 1.0, 0.0
    return Coefficients(h_gain, j_gain, decay, v_keep, v_add, size, eps, plain, eta)


def _rectification(moments: Moments, rho: float) -> float:
    """r_t² of RAdam (Liu et al., ICLR 2020, equation 5 of its algorithm)."""
    top = (rho - 4.0) * (rho - 2.0) * moments.rho_inf
    return top / ((moments.rho_inf - 4.0) * (moments.rho_inf - 2.0) * rho)


def coefficients_on_device(rule: UpdateRule, t: Tensor, lr: Number) -> Coefficients[Number]:
    """The factors at ``t`` (any shape), decided on t's device without a host read; float64, or float32 on MPS."""
    t = t.to(torch.float32 if t.device.type == "mps" else torch.float64)
    one, zero = torch.ones_like(t), torch.zeros_like(t)
    h_gain, j_gain = one, zero
    if rule.dema is not None:
        start = torch.where(t == 1, rule.dema.start, zero)
        h_gain = rule.dema.h_gain + start
        j_gain = rule.dema.j_gain + rule.dema.lambd * start
    eta = zero
    if rule.slow is not None:
        at_t = rule.slow.base * (1.0 + rule.slow.gain / (rule.slow.rate * t.sqrt() + rule.slow.shift))
        eta = torch.where(t % rule.slow.k == 0, at_t, zero)
    decay = one - lr * rule.weight_decay if rule.decoupled else one
    if rule.moments is None:
        return Coefficients(h_gain, j_gain, decay, one, zero, zero, one, one * lr, eta)
    moments = rule.moments
    lr_hat = lr / (1.0 - rule.beta1**t)
    power2 = moments.beta2**t
    root2 = (1.0 - power2).sqrt()
    v_keep, v_add = one * moments.beta2, one * (1.0 - moments.beta2)
    size, plain = lr_hat * root2, zero
    eps = one * moments.eps if moments.raw_eps else moments.eps * root2
    if moments.rectify:
        rho = moments.rho_inf - 2.0 * t * power2 / (1.0 - power2)
        ready = rho >= moments.rho_min
        top = (rho - 4.0) * (rho - 2.0) * moments.rho_inf
        squared = top / ((moments.rho_inf - 4.0) * (moments.rho_inf - 2.0) * rho)
        size = torch.where(ready, size * squared.clamp_min(0.0).sqrt(), zero)
        eps = torch.where(ready, eps, one)
        plain = torch.where(ready, zero, lr_hat) if moments.step_unrectified else zero
        if moments.gate:
            v_keep, v_add = torch.where(ready, v_keep, one), torch.where(ready, v_add, zero)
    return Coefficients(h_gain, j_gain, decay, v_keep, v_add, size, eps, plain, eta)
