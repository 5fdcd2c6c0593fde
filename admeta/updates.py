"""The update by torch's own operations: one tensor at a time, and over lists by ``_foreach`` functions.

``single_tensor_update`` is the readable ground truth and the differentiable path: every new value is a new tensor that
is copied into its place at the end, so autograd can follow any number of updates. ``multi_tensor_update`` has the same
order of operations. Decisions are the host's for step counts on the host, the device's for ``capturable`` and for a
compiled step. Arithmetic is at least float32; bfloat16 state and parameters are widened and rounded when stored.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from admeta.rule import Factors, Number, UpdateRule, factors_at, factors_on_device
from admeta.tensors import GroupTensors, compute_dtype

__all__ = ["multi_tensor_update", "random_bits", "round_stochastically", "single_tensor_update"]

CPU_BATCH = 2**17  # elements whose temporaries stay in the cache and in memory the process already has
NARROW_BATCH = 2**24  # elements that are widened at a time on a card: bfloat16 is there to save memory

# Constants of the random bits, shared with admeta.kernels: multipliers of element, step and size (xxHash's primes), and
# those of the mixing function "lowbias32" (C. Wellons, hash-prospector, 2018).
OF_ELEMENT, OF_STEP, OF_SIZE = 0x9E3779B1, 0xC2B2AE3D, 0x85EBCA77
MIX_1, MIX_2 = 0x7FEB352D, 0x846CA68B
_MASK = 0xFFFFFFFF


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


def random_bits(like: Tensor, t: Number) -> Tensor:
    """32 pseudo-random bits for each element, int32, a function of update ``t``, size and place alone.

    So replicas, resumed runs and all implementations round equally, and torch's generators are left alone.
    """
    n = like.numel()
    seed: Number
    if isinstance(t, Tensor):
        seed = ((t.to(torch.int64) & _MASK) * OF_STEP + n * OF_SIZE).to(torch.int32)
    else:
        seed = _signed((int(t) * OF_STEP + n * OF_SIZE) & _MASK)
    index = torch.arange(n, dtype=torch.int32 if n < 2**31 else torch.int64, device=like.device).to(torch.int32)
    x = index.view(like.shape) * _signed(OF_ELEMENT) + seed
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * MIX_1
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _signed(MIX_2)
    return x ^ ((x >> 16) & 0xFFFF)


def round_stochastically(value: Tensor, bits: Tensor) -> Tensor:
    """``value`` as bfloat16, up with the probability of the part that is cut off; the lower 16 of ``bits`` decide."""
    value = value.to(torch.float32)
    raised = value.view(torch.int32) + (bits & 0xFFFF)
    rounded = (raised & -0x10000).view(torch.float32)
    return torch.where(value.isnan(), value, rounded).to(torch.bfloat16)


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
            dtype = compute_dtype(param)
            found = factors_on_device(rule, step, lr)
            factors = Factors(*[f.to(dtype) if isinstance(f, Tensor) else f for f in found])
            _update_one(tensors, i, rule, factors, step)
        else:
            count = step.item()
            _update_one(tensors, i, rule, factors_at(rule, count, lr), count)


def _update_one(tensors: GroupTensors, i: int, rule: UpdateRule, f: Factors, t: Number) -> None:
    param = tensors.params[i]
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
        j = tensors.demas[i].to(dtype)
        h = f.h_gain * g + j + rule.dema.h_bias
        tensors.demas[i].copy_(rule.dema.lambd * j + f.j_gain * g)
    m = torch.lerp(tensors.exp_avgs[i].to(dtype), h, 1.0 - rule.beta1)
    tensors.exp_avgs[i].copy_(m)

    if rule.moments is None:
        theta = theta - f.plain * m
    else:
        deviation = h - m if rule.moments.belief else h
        v = f.v_keep * tensors.exp_avg_sqs[i].to(dtype) + f.v_add * deviation * deviation
        if rule.moments.belief:
            v = v + rule.moments.eps
        _store(tensors.exp_avg_sqs[i], v, t, shift=0)
        if _may_be_nonzero(f.size):
            theta = theta - f.size * m / (v.sqrt() + f.eps)
        if _may_be_nonzero(f.plain):
            theta = theta - f.plain * m

    if rule.slow is not None and _may_be_nonzero(f.eta):
        slow = tensors.slows[i].to(dtype)
        synced = slow + f.eta * (theta - slow)
        if isinstance(f.eta, Tensor):
            theta, synced = torch.where(f.eta != 0, synced, theta), torch.where(f.eta != 0, synced, slow)
        else:
            theta = synced
        _store(tensors.slows[i], synced, t, shift=16)
    if rule.stochastic:
        _store(param, theta, t, shift=16)
    else:
        param.copy_(theta)


def _store(target: Tensor, value: Tensor, t: Number, *, shift: int) -> None:
    """Copies, to bfloat16 by the random bits from ``shift`` on: φ and θ have the same, v others."""
    if target.dtype == torch.bfloat16:
        value = round_stochastically(value, random_bits(target, t) >> shift)
    target.copy_(value)


def _may_be_nonzero(factor: Number) -> bool:
    return isinstance(factor, Tensor) or factor != 0.0


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
        count = bucket.steps[0].item()
        _update_at(bucket, rule, factors_at(rule, count, float(lr)), count)


def _buckets(tensors: GroupTensors, counts: list[float]) -> list[GroupTensors]:
    """Tensors of one device, dtypes and step count together; few at a time on the CPU, or where they are widened."""
    if torch.compiler.is_compiling():
        return _buckets_of_dtypes(tensors)
    indices: dict[tuple[object, ...], list[int]] = defaultdict(list)
    elements = 0
    for i, (param, grad, m) in enumerate(zip(tensors.params, tensors.grads, tensors.exp_avgs, strict=True)):
        batch = 0
        if param.device.type == "cpu" or m.dtype == torch.bfloat16:
            elements += param.numel()
            batch = elements // (CPU_BATCH if param.device.type == "cpu" else NARROW_BATCH)
        indices[param.device, param.dtype, grad.dtype, m.dtype, counts[i], batch].append(i)
    if len(indices) == 1:
        return [tensors]
    return [tensors.subset(members) for members in indices.values()]


def _buckets_of_dtypes(tensors: GroupTensors) -> list[GroupTensors]:
    """As ``_buckets``, in a form that torch.compile can trace."""
    kinds: list[tuple[object, ...]] = []
    members: list[list[int]] = []
    for i in range(len(tensors.params)):
        param = tensors.params[i]
        kind = (param.device, param.dtype, tensors.grads[i].dtype, tensors.exp_avgs[i].dtype)
        if kind in kinds:
            members[kinds.index(kind)].append(i)
        else:
            kinds.append(kind)
            members.append([i])
    return [tensors] if len(kinds) == 1 else [tensors.subset(part) for part in members]


def _widened(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The tensors in the arithmetic's dtype, themselves where they have it."""
    return tensors if not tensors or tensors[0].dtype == dtype else [t.to(dtype) for t in tensors]


def _put_back(targets: list[Tensor], values: list[Tensor]) -> None:
    """Stores state that ``_widened`` had to copy."""
    if targets and targets[0].dtype != values[0].dtype:
        torch._foreach_copy_(targets, values)


def _put_back_rounded(targets: list[Tensor], values: list[Tensor], ts: list[Any], *, shift: int) -> None:
    """As ``_put_back``, to bfloat16 stochastically; ``ts`` are the tensors' update counts."""
    if targets and targets[0].dtype == torch.bfloat16:
        values = [round_stochastically(v, random_bits(v, t) >> shift) for v, t in zip(values, ts, strict=True)]
        torch._foreach_copy_(targets, values)


def _prepared(tensors: GroupTensors, rule: UpdateRule, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters and gradients in the arithmetic's dtype, sign and L2 decay applied; inputs stay as they are."""
    thetas, grads = _widened(tensors.params, dtype), _widened(tensors.grads, dtype)
    if rule.maximize:
        grads = list(torch._foreach_neg(grads))
    if rule.weight_decay != 0 and not rule.decoupled:
        grads = list(torch._foreach_add(grads, thetas, alpha=rule.weight_decay))
    return thetas, grads


def _write_back(params: list[Tensor], thetas: list[Tensor], rule: UpdateRule, ts: list[Any]) -> None:
    if rule.stochastic and params[0].dtype == torch.bfloat16:
        _put_back_rounded(params, thetas, ts, shift=16)
    else:
        torch._foreach_copy_(params, thetas)


def _update_at(tensors: GroupTensors, rule: UpdateRule, f: Any, t: float) -> None:
    """All tensors at one step count, known on the host; factors are numbers."""
    dtype, ts = compute_dtype(tensors.params[0]), [t] * len(tensors.params)
    thetas, grads = _prepared(tensors, rule, dtype)
    if rule.weight_decay != 0 and rule.decoupled:
        torch._foreach_mul_(thetas, f.decay)
    h = grads
    if rule.dema is not None:
        demas = _widened(tensors.demas, dtype)
        h = list(torch._foreach_add(demas, grads, alpha=f.h_gain))
        if rule.dema.h_bias != 0:
            torch._foreach_add_(h, rule.dema.h_bias)
        torch._foreach_mul_(demas, rule.dema.lambd)
        torch._foreach_add_(demas, grads, alpha=f.j_gain)
        _put_back(tensors.demas, demas)
    averages = _widened(tensors.exp_avgs, dtype)
    torch._foreach_lerp_(averages, h, 1.0 - rule.beta1)
    _put_back(tensors.exp_avgs, averages)
    if rule.moments is not None:
        squares = _widened(tensors.exp_avg_sqs, dtype)
        deviations = h
        if rule.moments.belief:
            deviations = list(torch._foreach_sub(h, averages))
        if f.v_add != 0:
            torch._foreach_mul_(squares, f.v_keep)
            torch._foreach_addcmul_(squares, deviations, deviations, value=f.v_add)
        if rule.moments.belief:
            torch._foreach_add_(squares, rule.moments.eps)
        _put_back_rounded(tensors.exp_avg_sqs, squares, ts, shift=0)
        if f.size != 0:
            denominators = torch._foreach_sqrt(squares)
            torch._foreach_add_(denominators, f.eps)
            torch._foreach_addcdiv_(thetas, averages, denominators, value=-f.size)
    if f.plain != 0:
        torch._foreach_add_(thetas, averages, alpha=-f.plain)
    if rule.slow is not None and f.eta != 0:
        slows = _widened(tensors.slows, dtype)
        torch._foreach_lerp_(slows, thetas, f.eta)
        _put_back_rounded(tensors.slows, slows, ts, shift=16)
        _write_back(tensors.params, slows, rule, ts)
    elif tensors.params[0].dtype != dtype:
        _write_back(tensors.params, thetas, rule, ts)


def _update_on_device(tensors: GroupTensors, rule: UpdateRule, lr: Number) -> None:
    """All tensors, each at its own step count that only the device knows; factors are numbers or lists of tensors."""
    dtype, ts = compute_dtype(tensors.params[0]), tensors.steps
    found = factors_on_device(rule, torch.stack(ts), lr)
    lists: list[Any] = [list(x.to(dtype).unbind()) if isinstance(x, Tensor) else x for x in found]
    f: Any = Factors(*lists)
    thetas, grads = _prepared(tensors, rule, dtype)
    if rule.weight_decay != 0 and rule.decoupled:
        torch._foreach_mul_(thetas, f.decay)
    h = grads
    if rule.dema is not None:
        demas = _widened(tensors.demas, dtype)
        h = list(torch._foreach_mul(grads, f.h_gain))
        torch._foreach_add_(h, demas)
        if rule.dema.h_bias != 0:
            torch._foreach_add_(h, rule.dema.h_bias)
        torch._foreach_mul_(demas, rule.dema.lambd)
        torch._foreach_add_(demas, torch._foreach_mul(grads, f.j_gain))
        _put_back(tensors.demas, demas)
    averages = _widened(tensors.exp_avgs, dtype)
    torch._foreach_lerp_(averages, h, 1.0 - rule.beta1)
    _put_back(tensors.exp_avgs, averages)
    if rule.moments is None:
        torch._foreach_sub_(thetas, torch._foreach_mul(averages, f.plain))
    else:
        _adaptive_step_on_device(tensors, rule, thetas, h, averages, f)
    if rule.slow is not None:
        slows = _widened(tensors.slows, dtype)
        moves = list(torch._foreach_sub(thetas, slows))
        torch._foreach_mul_(moves, f.eta)
        torch._foreach_add_(slows, moves)
        taken = (found.eta != 0).to(dtype)  # type: ignore[union-attr]
        synced = list(torch._foreach_mul(slows, list(taken.unbind())))
        torch._foreach_add_(synced, torch._foreach_mul(thetas, list((1 - taken).unbind())))
        _put_back_rounded(tensors.slows, slows, ts, shift=16)
        _write_back(tensors.params, synced, rule, ts)
    elif tensors.params[0].dtype != dtype:
        _write_back(tensors.params, thetas, rule, ts)


def _adaptive_step_on_device(
    tensors: GroupTensors, rule: UpdateRule, thetas: list[Tensor], h: list[Tensor], averages: list[Tensor], f: Any
) -> None:
    moments = rule.moments
    assert moments is not None
    squares = _widened(tensors.exp_avg_sqs, compute_dtype(tensors.params[0]))
    deviations = list(torch._foreach_sub(h, averages)) if moments.belief else h
    added = list(torch._foreach_mul(deviations, deviations))
    torch._foreach_mul_(added, f.v_add)
    torch._foreach_mul_(squares, f.v_keep)
    torch._foreach_add_(squares, added)
    if moments.belief:
        torch._foreach_add_(squares, moments.eps)
    _put_back_rounded(tensors.exp_avg_sqs, squares, tensors.steps, shift=0)
    denominators = torch._foreach_sqrt(squares)
    torch._foreach_add_(denominators, f.eps)
    updates = torch._foreach_div(averages, denominators)
    torch._foreach_mul_(updates, f.size)
    torch._foreach_sub_(thetas, updates)
    if moments.step_unrectified:
        torch._foreach_sub_(thetas, torch._foreach_mul(averages, f.plain))
