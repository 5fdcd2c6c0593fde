"""Triton kernels of the fused update; imported only where fused runs.

Two launches update every tensor of a group. ``factors_kernel`` advances the step counts and computes once for each
tensor, in float64, all that depends on its step and not on its elements (admeta.rule, on the device).
``update_kernel`` streams all tensors' elements, one block a program. ``row_mean_kernel`` comes before them for
gradient centralisation. The tables and their columns are admeta.layout's.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: C901, FBT003, I001, SIM108, SIM300 - kernels take compile-time switches, and many columns

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from admeta import updates
from admeta.layout import (
    AT_DEMA, AT_ELEMENTS, AT_EXP_AVG, AT_EXP_AVG_SQ, AT_MEANS, AT_ROW_LENGTH, AT_SLOW, AT_STEP, AT_THETA, COLUMNS,
    CONST_BETA2, CONST_EPS, CONST_H_BIAS, CONST_H_GAIN, CONST_J_GAIN, CONST_K, CONST_LAMBD, CONST_LOG_BETA1,
    CONST_LOG_BETA2, CONST_M_ADD, CONST_RHO_INF, CONST_RHO_MIN, CONST_SLOW_BASE, CONST_SLOW_GAIN, CONST_SLOW_RATE,
    CONST_SLOW_SHIFT, CONST_START, CONST_V_ADD, CONST_WEIGHT_DECAY, FACTORS, FACTOR_ACTIVE, FACTOR_BELIEF_EPS,
    FACTOR_DECAY, FACTOR_EPS, FACTOR_ETA, FACTOR_H_BIAS, FACTOR_H_GAIN, FACTOR_J_GAIN, FACTOR_LAMBD, FACTOR_M_ADD,
    FACTOR_PLAIN, FACTOR_SEED, FACTOR_SIZE, FACTOR_UNSCALE, FACTOR_V_ADD, FACTOR_V_KEEP, FACTOR_WEIGHT_DECAY,
)  # fmt: skip

__all__ = ["DTYPES", "factors_kernel", "row_mean_kernel", "update_kernel"]

OF_ELEMENT: Any = tl.constexpr(updates.OF_ELEMENT)
OF_STEP: Any = tl.constexpr(updates.OF_STEP)
OF_SIZE: Any = tl.constexpr(updates.OF_SIZE)
MIX_1: Any = tl.constexpr(updates.MIX_1)
MIX_2: Any = tl.constexpr(updates.MIX_2)
DTYPES: dict[torch.dtype, Any] = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


@triton.jit
def _dema_factors(constants, t, DEMA: tl.constexpr):
    """h_gain and j_gain, with the start-up term at t = 1."""
    h_gain = tl.full(t.shape, 1.0, tl.float64)
    j_gain = tl.full(t.shape, 0.0, tl.float64)
    if DEMA:
        start = tl.where(t == 1.0, tl.load(constants + CONST_START), 0.0)
        h_gain = tl.load(constants + CONST_H_GAIN) + start
        j_gain = tl.load(constants + CONST_J_GAIN) + tl.load(constants + CONST_LAMBD) * start
    return h_gain, j_gain


@triton.jit
def _slow_factor(constants, t, SLOW: tl.constexpr):
    """η_t at every k-th update, else 0."""
    eta = tl.full(t.shape, 0.0, tl.float64)
    if SLOW:
        fall = tl.load(constants + CONST_SLOW_RATE) * tl.sqrt(t) + tl.load(constants + CONST_SLOW_SHIFT)
        at_t = tl.load(constants + CONST_SLOW_BASE) * (1.0 + tl.load(constants + CONST_SLOW_GAIN) / fall)
        k = tl.load(constants + CONST_K).to(tl.int64)
        eta = tl.where(t.to(tl.int64) % k == 0, at_t, eta)
    return eta


@triton.jit
def _moment_factors(
    constants, t, lr, decay, one, zero,
    RECTIFY: tl.constexpr, PLAIN: tl.constexpr, GATE: tl.constexpr, RAW_EPS: tl.constexpr,
):  # fmt: skip
    """decay, v_keep, v_add, size, eps and plain: bias correction and rectification."""
    lr_hat = lr / (1.0 - tl.exp(t * tl.load(constants + CONST_LOG_BETA1)))
    power2 = tl.exp(t * tl.load(constants + CONST_LOG_BETA2))
    root2 = tl.sqrt(1.0 - power2)
    v_keep, v_add = one * tl.load(constants + CONST_BETA2), one * tl.load(constants + CONST_V_ADD)
    size, eps, plain = lr_hat * root2, one * tl.load(constants + CONST_EPS), zero
    if not RAW_EPS:
        eps = eps * root2
    if RECTIFY:
        rho_inf = tl.load(constants + CONST_RHO_INF)
        rho = rho_inf - 2.0 * t * power2 / (1.0 - power2)
        ready = rho >= tl.load(constants + CONST_RHO_MIN)
        top = (rho - 4.0) * (rho - 2.0) * rho_inf
        squared = top / ((rho_inf - 4.0) * (rho_inf - 2.0) * rho)
        size = tl.where(ready, size * tl.sqrt(tl.maximum(squared, 0.0)), zero)
        eps = tl.where(ready, eps, one)
        if PLAIN:
            plain = tl.where(ready, zero, lr_hat)
        else:
            decay = tl.where(ready, decay, one)
        if GATE:
            v_keep = tl.where(ready, v_keep, one)
            v_add = tl.where(ready, v_add, zero)
    return decay, v_keep, v_add, size, eps, plain


@triton.jit(do_not_specialize_on_alignment=["lr_ptr", "scale_ptr", "found_inf_ptr"])
def factors_kernel(
    table, constants, lr_ptr, scale_ptr, found_inf_ptr, factors, n,
    T: tl.constexpr, UNSCALE: tl.constexpr, FOUND_INF: tl.constexpr, DEMA: tl.constexpr,
    MOMENTS: tl.constexpr, RECTIFY: tl.constexpr, PLAIN: tl.constexpr, GATE: tl.constexpr,
    RAW_EPS: tl.constexpr, SLOW: tl.constexpr, DECOUPLED: tl.constexpr, RANDOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Step counts and factors of ``n`` tensors; with found_inf set, steps stay and the rows say "not active"."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    entries = table + i * COLUMNS
    steps = tl.load(entries + AT_STEP, mask=mask, other=0).to(tl.pointer_type(T))
    active = 1.0
    if FOUND_INF:
        active = tl.where(tl.load(found_inf_ptr) != 0.0, 0.0, 1.0)
    t = tl.load(steps, mask=mask, other=0.0).to(tl.float64) + active
    tl.store(steps, t.to(T), mask=mask)
    t = tl.maximum(t, 1.0)  # a first step that found_inf stops must not divide by 1 − β^0

    lr = tl.load(lr_ptr).to(tl.float64)
    one = tl.full([BLOCK], 1.0, tl.float64)
    zero = tl.full([BLOCK], 0.0, tl.float64)
    h_gain, j_gain = _dema_factors(constants, t, DEMA)
    eta = _slow_factor(constants, t, SLOW)
    decay = one
    if DECOUPLED:
        decay = one - lr * tl.load(constants + CONST_WEIGHT_DECAY)
    v_keep, v_add, size, eps, plain = one, zero, zero, one, one * lr
    if MOMENTS:
        decay, v_keep, v_add, size, eps, plain = _moment_factors(
            constants, t, lr, decay, one, zero, RECTIFY, PLAIN, GATE, RAW_EPS
        )
    unscale = one
    if UNSCALE:
        unscale = one / tl.load(scale_ptr).to(tl.float64)

    row = factors + i * FACTORS
    tl.store(row + FACTOR_ACTIVE, one * active, mask=mask)
    tl.store(row + FACTOR_H_GAIN, h_gain, mask=mask)
    tl.store(row + FACTOR_J_GAIN, j_gain, mask=mask)
    tl.store(row + FACTOR_DECAY, decay, mask=mask)
    tl.store(row + FACTOR_V_KEEP, v_keep, mask=mask)
    tl.store(row + FACTOR_V_ADD, v_add, mask=mask)
    tl.store(row + FACTOR_SIZE, size, mask=mask)
    tl.store(row + FACTOR_EPS, eps, mask=mask)
    tl.store(row + FACTOR_PLAIN, plain, mask=mask)
    tl.store(row + FACTOR_ETA, eta, mask=mask)
    tl.store(row + FACTOR_M_ADD, one * tl.load(constants + CONST_M_ADD), mask=mask)
    tl.store(row + FACTOR_LAMBD, one * tl.load(constants + CONST_LAMBD), mask=mask)
    tl.store(row + FACTOR_H_BIAS, one * tl.load(constants + CONST_H_BIAS), mask=mask)
    tl.store(row + FACTOR_WEIGHT_DECAY, one * tl.load(constants + CONST_WEIGHT_DECAY), mask=mask)
    tl.store(row + FACTOR_BELIEF_EPS, one * tl.load(constants + CONST_EPS), mask=mask)
    tl.store(row + FACTOR_UNSCALE, unscale, mask=mask)
    if RANDOM:
        size_seed = tl.load(entries + AT_ELEMENTS, mask=mask, other=0).to(tl.uint32) * OF_SIZE
        seed = t.to(tl.int64).to(tl.uint32) * OF_STEP + size_seed
        tl.store(row + FACTOR_SEED, seed.to(tl.float64), mask=mask)


@triton.jit
def _load(pointers, mask, MASKED: tl.constexpr):
    if MASKED:
        values = tl.load(pointers, mask=mask, other=0.0)
    else:
        values = tl.load(pointers)
    return values


@triton.jit
def _store(pointers, values, mask, MASKED: tl.constexpr):
    if MASKED:
        tl.store(pointers, values, mask=mask)
    else:
        tl.store(pointers, values)


@triton.jit
def _sqrt(x, FLOAT64: tl.constexpr):
    if FLOAT64:
        root = tl.sqrt(x)  # sqrt_rn takes float32 alone
    else:
        root = tl.sqrt_rn(x)
    return root


@triton.jit
def _random_bits(offsets, row):
    """admeta.updates.random_bits of these elements, uint32."""
    x = offsets.to(tl.uint32) * OF_ELEMENT + tl.load(row + FACTOR_SEED).to(tl.int64).to(tl.uint32)
    x = x ^ (x >> 16)
    x = x * MIX_1
    x = x ^ (x >> 15)
    x = x * MIX_2
    return x ^ (x >> 16)


@triton.jit
def _rounded(x, bits, DTYPE: tl.constexpr):
    """``x`` as DTYPE: to bfloat16 stochastically by the lower 16 of ``bits``, to others to the nearest."""
    if DTYPE == tl.bfloat16:
        wide = x.to(tl.float32)
        raised = wide.to(tl.uint32, bitcast=True) + (bits & 0xFFFF)
        cut = (raised & 0xFFFF0000).to(tl.float32, bitcast=True)
        result = tl.where(wide == wide, cut, wide).to(DTYPE)  # adding to the bits of a NaN could make it a number
    else:
        result = x.to(DTYPE)
    return result


@triton.jit
def _address(entry, DTYPE: tl.constexpr, C: tl.constexpr, ALIGNED: tl.constexpr):
    """The address in a table's entry; with ALIGNED the compiler may use 16-byte accesses of elements of C.

    Of a narrower dtype a thread takes as many elements, not as many bytes: had it more of one tensor than of another,
    results would go from thread to thread through shared memory before they are stored.
    """
    pointer = tl.load(entry).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16 * DTYPE.primitive_bitwidth // C.primitive_bitwidth)
    return pointer


@triton.jit
def _prepared(
    g, theta, entries, row, offsets, mask,
    C: tl.constexpr, UNSCALE: tl.constexpr, MAXIMIZE: tl.constexpr, CENTRALIZE: tl.constexpr, L2: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The gradient unscaled, centralised, with its sign and L2 decay."""
    if CENTRALIZE:
        length = tl.load(entries + AT_ROW_LENGTH)
        if length > 0:
            means = tl.load(entries + AT_MEANS).to(tl.pointer_type(C))
            g = g - _load(means + offsets // length, mask, MASKED)
    if UNSCALE:
        g = g * tl.load(row + FACTOR_UNSCALE).to(C)
    if MAXIMIZE:
        g = -g
    if L2:
        g = g + tl.load(row + FACTOR_WEIGHT_DECAY).to(C) * theta
    return g


@triton.jit
def _filtered(g, j, row, h_gain, j_gain, lambd, C: tl.constexpr, BIAS: tl.constexpr):
    """DEMA: h, and J after this update."""
    h = h_gain * g + j
    if BIAS:
        h = h + tl.load(row + FACTOR_H_BIAS).to(C)
    return h, lambd * j + j_gain * g


@triton.jit
def _second_moment(v, h, m, row, v_keep, v_add, C: tl.constexpr, BELIEF: tl.constexpr):
    """v after this update."""
    deviation = h
    if BELIEF:
        deviation = h - m
    v = v_keep * v + v_add * deviation * deviation
    if BELIEF:
        v = v + tl.load(row + FACTOR_BELIEF_EPS).to(C)
    return v


@triton.jit
def _synchronised(
    theta, entry, row, offsets, mask, bits,
    S: tl.constexpr, C: tl.constexpr, ALIGNED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """θ, at every k-th update brought together with the slow weights, which are stored."""
    eta = tl.load(row + FACTOR_ETA).to(C)
    if eta != 0.0:
        slow_ptr = _address(entry, S, C, ALIGNED) + offsets
        slow = _load(slow_ptr, mask, MASKED).to(C)
        theta = slow + eta * (theta - slow)
        _store(slow_ptr, _rounded(theta, bits, S), mask, MASKED)
    return theta


@triton.jit
def _update_block(
    table, grads, factors, i, offsets, mask,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, C: tl.constexpr, UNSCALE: tl.constexpr, MAXIMIZE: tl.constexpr,
    CENTRALIZE: tl.constexpr, L2: tl.constexpr, DECOUPLED: tl.constexpr, DEMA: tl.constexpr, BIAS: tl.constexpr,
    MOMENTS: tl.constexpr, BELIEF: tl.constexpr, PLAIN: tl.constexpr, SLOW: tl.constexpr, STOCHASTIC: tl.constexpr,
    RANDOM: tl.constexpr, ALIGNED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """admeta.rule's update of one block of tensor ``i``.

    All loads come before all stores: the compiler can't move a load over a store that may alias it.
    """
    row, entries = factors + i * FACTORS, table + i * COLUMNS
    theta_ptr = _address(entries + AT_THETA, P, C, ALIGNED) + offsets
    m_ptr = _address(entries + AT_EXP_AVG, S, C, ALIGNED) + offsets
    g = _load(_address(grads + i, G, C, ALIGNED) + offsets, mask, MASKED).to(C)
    theta = _load(theta_ptr, mask, MASKED).to(C)
    m = _load(m_ptr, mask, MASKED).to(C)
    if DEMA:
        j_ptr = _address(entries + AT_DEMA, S, C, ALIGNED) + offsets
        j = _load(j_ptr, mask, MASKED).to(C)
        h_gain, j_gain = tl.load(row + FACTOR_H_GAIN).to(C), tl.load(row + FACTOR_J_GAIN).to(C)
        lambd = tl.load(row + FACTOR_LAMBD).to(C)
    if MOMENTS:
        v_ptr = _address(entries + AT_EXP_AVG_SQ, S, C, ALIGNED) + offsets
        v = _load(v_ptr, mask, MASKED).to(C)
        v_keep, v_add = tl.load(row + FACTOR_V_KEEP).to(C), tl.load(row + FACTOR_V_ADD).to(C)
        size, eps = tl.load(row + FACTOR_SIZE).to(C), tl.load(row + FACTOR_EPS).to(C)
    bits = offsets
    if RANDOM:
        bits = _random_bits(offsets, row)
    g = _prepared(g, theta, entries, row, offsets, mask, C, UNSCALE, MAXIMIZE, CENTRALIZE, L2, MASKED)
    if DECOUPLED:
        theta = theta * tl.load(row + FACTOR_DECAY).to(C)

    h = g
    if DEMA:
        h, j = _filtered(g, j, row, h_gain, j_gain, lambd, C, BIAS)
    m = m + tl.load(row + FACTOR_M_ADD).to(C) * (h - m)
    if MOMENTS:
        v = _second_moment(v, h, m, row, v_keep, v_add, C, BELIEF)
        if size != 0.0:
            theta = theta - size * m / (_sqrt(v, tl.float64 == C) + eps)
    if PLAIN:
        theta = theta - tl.load(row + FACTOR_PLAIN).to(C) * m
    if SLOW:
        theta = _synchronised(theta, entries + AT_SLOW, row, offsets, mask, bits >> 16, S, C, ALIGNED, MASKED)

    if STOCHASTIC:
        _store(theta_ptr, _rounded(theta, bits >> 16, P), mask, MASKED)
    else:
        _store(theta_ptr, theta.to(P), mask, MASKED)
    _store(m_ptr, m.to(S), mask, MASKED)
    if DEMA:
        _store(j_ptr, j.to(S), mask, MASKED)
    if MOMENTS:
        _store(v_ptr, _rounded(v, bits, S), mask, MASKED)


@triton.jit
def update_kernel(
    table, grads, chunks, factors,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, C: tl.constexpr, UNSCALE: tl.constexpr,
    FOUND_INF: tl.constexpr, MAXIMIZE: tl.constexpr, CENTRALIZE: tl.constexpr, L2: tl.constexpr,
    DECOUPLED: tl.constexpr, DEMA: tl.constexpr, BIAS: tl.constexpr, MOMENTS: tl.constexpr, BELIEF: tl.constexpr,
    PLAIN: tl.constexpr, SLOW: tl.constexpr, STOCHASTIC: tl.constexpr, RANDOM: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a block of ``BLOCK`` elements; ``chunks`` holds (tensor, block) pairs, int32.

    P, G, S and C are the dtypes of parameters, gradients, state and arithmetic.
    """
    pair = chunks + tl.program_id(0) * 2
    i = tl.load(pair)
    start = tl.load(pair + 1).to(tl.int64) * BLOCK
    elements = tl.load(table + i * COLUMNS + AT_ELEMENTS)
    if FOUND_INF:
        elements = tl.where(tl.load(factors + i * FACTORS + FACTOR_ACTIVE) != 0.0, elements, 0)
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= elements:
        _update_block(
            table, grads, factors, i, offsets, None, P, G, S, C, UNSCALE, MAXIMIZE, CENTRALIZE, L2, DECOUPLED, DEMA,
            BIAS, MOMENTS, BELIEF, PLAIN, SLOW, STOCHASTIC, RANDOM, ALIGNED, False,
        )  # fmt: skip
    else:
        _update_block(
            table, grads, factors, i, offsets, offsets < elements, P, G, S, C, UNSCALE, MAXIMIZE, CENTRALIZE, L2,
            DECOUPLED, DEMA, BIAS, MOMENTS, BELIEF, PLAIN, SLOW, STOCHASTIC, RANDOM, ALIGNED, True,
        )  # fmt: skip


@triton.jit
def row_mean_kernel(table, grads, rows, G: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Mean of one gradient row a program; ``rows`` holds (tensor, row) pairs, int32."""
    pair = rows + tl.program_id(0) * 2
    i = tl.load(pair)
    r = tl.load(pair + 1).to(tl.int64)
    length = tl.load(table + i * COLUMNS + AT_ROW_LENGTH)
    gradient = tl.load(grads + i).to(tl.pointer_type(G)) + r * length
    total = tl.zeros([BLOCK], C)
    for begin in range(0, length, BLOCK):
        offsets = begin + tl.arange(0, BLOCK)
        total += tl.load(gradient + offsets, mask=offsets < length, other=0.0).to(C)
    means = tl.load(table + i * COLUMNS + AT_MEANS).to(tl.pointer_type(C))
    tl.store(means + r, tl.sum(total) / length.to(C))
