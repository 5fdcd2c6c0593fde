"""The update over lists of tensors by torch's ``_foreach`` functions.

Same rule and order of operations as admeta.single. With step counts on the host, tensors are bucketed by them and
the factors are numbers; on the device (``capturable``, compiled) the factors are lists of 0-dim tensors.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace

import torch
from torch import Tensor

from admeta.coefficients import Coefficients, Number, coefficients_at, coefficients_on_device
from admeta.rule import UpdateRule
from admeta.tensors import GroupTensors, compute_dtype

__all__ = ["multi_tensor_update"]

CPU_BATCH = 2**17  # elements whose temporaries stay in the cache and in memory the process already has


def multi_tensor_update(tensors: GroupTensors, rule: UpdateRule, *, lr: Number, on_device: bool) -> None:
    """Updates parameters and state in place.

    Args:
        tensors: parameters, gradients and state of one group; any shapes, devices and dtypes.
        rule: the group's update rule.
        lr: learning rate; a tensor only with ``on_device``.
        on_device: decide by the step tensors on their device (no host read).
    """
    if isinstance(lr, Tensor):
        lr = lr.squeeze()
    if on_device:
        for bucket in _buckets(tensors, [0.0] * len(tensors.params)):
            torch._foreach_add_(bucket.steps, 1)
            _update_on_device(bucket, rule, lr)
        return
    if tensors.steps:
        torch._foreach_add_(tensors.steps, torch.tensor(1.0), alpha=1.0)
    counts = [step.item() for step in tensors.steps]
    for bucket in _buckets(tensors, counts):
        _update_at(bucket, rule, coefficients_at(rule, bucket.steps[0].item(), float(lr)))


def _buckets(tensors: GroupTensors, counts: list[float]) -> list[GroupTensors]:
    """Tensors of one device, parameter dtype, gradient dtype and step count together; on the CPU, few at a time."""
    indices: dict[tuple[object, ...], list[int]] = defaultdict(list)
    elements, compiling = 0, torch.compiler.is_compiling()
    for i, (param, grad) in enumerate(zip(tensors.params, tensors.grads, strict=True)):
        batch = 0
        if param.device.type == "cpu" and not compiling:
            elements += param.numel()
            batch = elements // CPU_BATCH
        indices[param.device, param.dtype, grad.dtype, counts[i], batch].append(i)
    if len(indices) == 1:
        return [replace(tensors)]
    return [tensors.subset(members) for members in indices.values()]


def _prepared(tensors: GroupTensors, rule: UpdateRule) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters and gradients in the arithmetic's dtype, sign and L2 decay applied; inputs stay as they are."""
    dtype = compute_dtype(tensors.params[0])
    thetas = tensors.params
    if thetas[0].dtype != dtype:
        thetas = [theta.to(dtype) for theta in thetas]
    grads = tensors.grads
    if grads[0].dtype != dtype:
        grads = [grad.to(dtype) for grad in grads]
    if rule.maximize:
        grads = list(torch._foreach_neg(grads))
    if rule.weight_decay != 0 and not rule.decoupled:
        grads = list(torch._foreach_add(grads, thetas, alpha=rule.weight_decay))
    return thetas, grads


def _write_back(tensors: GroupTensors, thetas: list[Tensor]) -> None:
    if thetas is not tensors.params:
        torch._foreach_copy_(tensors.params, thetas)


def _update_at(tensors: GroupTensors, rule: UpdateRule, f: Coefficients[float]) -> None:
    """All tensors at one step count, known on the host."""
    thetas, grads = _prepared(tensors, rule)
    if rule.weight_decay != 0 and rule.decoupled:
        torch._foreach_mul_(thetas, f.decay)
    h = grads
    if rule.dema is not None:
        h = list(torch._foreach_add(tensors.demas, grads, alpha=f.h_gain))
        if rule.dema.h_bias != 0:
            torch._foreach_add_(h, rule.dema.h_bias)
        torch._foreach_mul_(tensors.demas, rule.dema.lambd)
        torch._foreach_add_(tensors.demas, grads, alpha=f.j_gain)
    torch._foreach_lerp_(tensors.exp_avgs, h, 1.0 - rule.beta1)
    if rule.moments is not None:
        deviations = h
        if rule.moments.belief:
            deviations = list(torch._foreach_sub(h, tensors.exp_avgs))
        if f.v_add != 0:
            torch._foreach_mul_(tensors.exp_avg_sqs, f.v_keep)
            torch._foreach_addcmul_(tensors.exp_avg_sqs, deviations, deviations, value=f.v_add)
        if rule.moments.belief:
            torch._foreach_add_(tensors.exp_avg_sqs, rule.moments.eps)
        if f.size != 0:
            denominators = torch._foreach_sqrt(tensors.exp_avg_sqs)
            torch._foreach_add_(denominators, f.eps)
            torch._foreach_addcdiv_(thetas, tensors.exp_avgs, denominators, value=-f.size)
    if f.plain != 0:
        torch._foreach_add_(thetas, tensors.exp_avgs, alpha=-f.plain)
    if rule.slow is not None and f.eta != 0:
        torch._foreach_lerp_(tensors.slows, thetas, f.eta)
        torch._foreach_copy_(tensors.params, tensors.slows)
        return
    _write_back(tensors, thetas)


def _update_on_device(tensors: GroupTensors, rule: UpdateRule, lr: Number) -> None:
    """All tensors, each at its own step count that only the device knows."""
    dtype = compute_dtype(tensors.params[0])
    factors = coefficients_on_device(rule, torch.stack(tensors.steps), lr)
    lists = {f.name: list(getattr(factors, f.name).to(dtype).unbind()) for f in fields(Coefficients)}
    thetas, grads = _prepared(tensors, rule)
    if rule.weight_decay != 0 and rule.decoupled:
        torch._foreach_mul_(thetas, lists["decay"])
    h = grads
    if rule.dema is not None:
        h = list(torch._foreach_mul(grads, lists["h_gain"]))
        torch._foreach_add_(h, tensors.demas)
        if rule.dema.h_bias != 0:
            torch._foreach_add_(h, rule.dema.h_bias)
        torch._foreach_mul_(tensors.demas, rule.dema.lambd)
        torch._foreach_add_(tensors.demas, torch._foreach_mul(grads, lists["j_gain"]))
    torch._foreach_lerp_(tensors.exp_avgs, h, 1.0 - rule.beta1)
    if rule.moments is None:
        torch._foreach_sub_(thetas, torch._foreach_mul(tensors.exp_avgs, lists["plain"]))
    else:
        _adaptive_step_on_device(tensors, rule, thetas, h, lists)
    if rule.slow is not None:
        for slow, theta, eta in zip(tensors.slows, thetas, lists["eta"], strict=True):
            slow.lerp_(theta, eta)
            theta.copy_(torch.where(eta != 0, slow, theta))
    _write_back(tensors, thetas)


def _adaptive_step_on_device(
    tensors: GroupTensors, rule: UpdateRule, thetas: list[Tensor], h: list[Tensor], lists: dict[str, list[Tensor]]
) -> None:
    moments = rule.moments
    assert moments is not None
    deviations = list(torch._foreach_sub(h, tensors.exp_avgs)) if moments.belief else h
    squares = list(torch._foreach_mul(deviations, deviations))
    torch._foreach_mul_(squares, lists["v_add"])
    torch._foreach_mul_(tensors.exp_avg_sqs, lists["v_keep"])
    torch._foreach_add_(tensors.exp_avg_sqs, squares)
    if moments.belief:
        torch._foreach_add_(tensors.exp_avg_sqs, moments.eps)
    denominators = torch._foreach_sqrt(tensors.exp_avg_sqs)
    torch._foreach_add_(denominators, lists["eps"])
    updates = torch._foreach_div(tensors.exp_avgs, denominators)
    torch._foreach_mul_(updates, lists["size"])
    torch._foreach_sub_(thetas, updates)
    if moments.step_unrectified:
        torch._foreach_sub_(thetas, torch._foreach_mul(tensors.exp_avgs, lists["plain"]))
