"""The update one tensor at a time: the readable ground truth, and the differentiable path.

Every new value is a new tensor that is copied into its place at the end, so autograd can follow any number of
updates. Decisions are the host's for a step count on the host, the device's for ``capturable`` or a compiled step.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from admeta.coefficients import Coefficients, Number, coefficients_at, coefficients_on_device
from admeta.rule import UpdateRule
from admeta.tensors import GroupTensors, compute_dtype

__all__ = ["single_tensor_update"]


def single_tensor_update(tensors: GroupTensors, rule: UpdateRule, *, lr: Number, on_device: bool) -> None:
    """Updates parameters and state in place.

    Args:
        tensors: parameters, gradients and state of one group; any shapes.
        rule: the group's update rule.
        lr: learning rate, a number or a one-element tensor.
        on_device: decide by the step tensors on their device (no host read).
    """
    if isinstance(lr, Tensor):
        lr = lr.squeeze()
    for i, param in enumerate(tensors.params):
        step = tensors.steps[i]
        step += 1
        if on_device:
            factors = _cast(coefficients_on_device(rule, step, lr), compute_dtype(param))
        else:
            factors = coefficients_at(rule, step.item(), lr)
        _update_one(tensors, i, rule, factors)


def _update_one(tensors: GroupTensors, i: int, rule: UpdateRule, f: Coefficients[Number]) -> None:
    param, m = tensors.params[i], tensors.exp_avgs[i]
    dtype = compute_dtype(param)
    theta = param.to(dtype)
    g = tensors.grads[i].to(dtype)
    if rule.maximize:
        g = -g
    if rule.weight_decay != 0 and not rule.decoupled:
        g = g + rule.weight_decay * theta
    if rule.weight_decay != 0 and rule.decoupled:
        theta = theta * f.decay

    h = g
    if rule.dema is not None:
        j = tensors.demas[i]
        h = f.h_gain * g + j + rule.dema.h_bias
        j.copy_(rule.dema.lambd * j + f.j_gain * g)
    new_m = torch.lerp(m, h, 1.0 - rule.beta1)
    m.copy_(new_m)

    if rule.moments is None:
        theta = theta - f.plain * new_m
    else:
        v = tensors.exp_avg_sqs[i]
        deviation = h - new_m if rule.moments.belief else h
        new_v = f.v_keep * v + f.v_add * deviation * deviation
        if rule.moments.belief:
            new_v = new_v + rule.moments.eps
        v.copy_(new_v)
        if _may_be_nonzero(f.size):
            theta = theta - f.size * new_m / (new_v.sqrt() + f.eps)
        if _may_be_nonzero(f.plain):
            theta = theta - f.plain * new_m

    if rule.slow is not None and _may_be_nonzero(f.eta):
        slow = tensors.slows[i]
        synced = slow + f.eta * (theta - slow)
        theta = torch.where(f.eta != 0, synced, theta) if isinstance(f.eta, Tensor) else synced
        slow.copy_(synced)
    param.copy_(theta)


def _may_be_nonzero(factor: Number) -> bool:
    return isinstance(factor, Tensor) or factor != 0.0


def _cast(factors: Coefficients[Number], dtype: torch.dtype) -> Coefficients[Number]:
    values = {f.name: getattr(factors, f.name) for f in fields(Coefficients)}
    return Coefficients(**{k: v.to(dtype) if isinstance(v, Tensor) else v for k, v in values.items()})
