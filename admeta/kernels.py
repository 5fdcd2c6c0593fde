"""Triton kernels of the fused update; imported only where fused runs.

Two launches update every tensor of a group. ``factors_kernel`` advances the step counts and computes once for each
tensor, in float64, all that depends on its step and not on its elements (admeta.coefficients, on the device).
``update_kernel`` streams all tensors' elements, one block a program (admeta.rule). ``row_mean_kernel`` comes before
them for gradient centralisation.

Tables, int64: a row of ``COLUMNS`` a tensor, addresses and sizes; gradients' addresses have a table of their own,
because they change the most. Factors, float64: a row of ``FACTORS`` a tensor. Constants, float64: see admeta.fused.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: FBT003, SIM108 - kernels take compile-time switches

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["COLUMNS", "DTYPES", "FACTORS", "factors_kernel", "row_mean_kernel", "update_kernel"]

COLUMNS: Any = tl.constexpr(9)  # theta, J, m, v, slow, step, elements, row means, elements of a row
FACTORS: Any = tl.constexpr(16)
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
        start = tl.where(t == 1.0, tl.load(constants + 10), 0.0)
        h_gain = tl.load(constants + 8) + start
        j_gain = tl.load(constants + 9) + tl.load(constants + 7) * start
    return h_gain, j_gain


@triton.jit
def _slow_factor(constants, t, SLOW: tl.constexpr):
    """η_t at every k-th update, else 0."""
    eta = tl.full(t.shape, 0.0, tl.float64)
    if SLOW:
        fall = tl.load(constants + 16) * tl.sqrt(t) + tl.load(constants + 17)
        at_t = tl.load(constants + 14) * (1.0 + tl.load(constants + 15) / fall)
        k = tl.load(constants + 13).to(tl.int64)
        eta = tl.where(t.to(tl.int64) % k == 0, at_t, eta)
    return eta


@triton.jit
def _moment_factors(
    constants, t, lr, one, zero, RECTIFY: tl.constexpr, PLAIN: tl.constexpr, GATE: tl.constexpr, RAW_EPS: tl.constexpr
):  # fmt: skip
    """v_keep, v_add, size, eps and plain: bias correction and rectification."""
    lr_hat = lr / (1.0 - tl.exp(t * tl.load(constants + 1)))
    power2 = tl.exp(t * tl.load(constants + 3))
    root2 = tl.sqrt(1.0 - power2)
    v_keep, v_add = one * tl.load(constants + 2), one * tl.load(constants + 4)
    size, eps, plain = lr_hat * root2, one * tl.load(constants + 5), zero
    if not RAW_EPS:
        eps = eps * root2
    if RECTIFY:
        rho_inf = tl.load(constants + 11)
        rho = rho_inf - 2.0 * t * power2 / (1.0 - power2)
        ready = rho >= tl.load(constants + 12)
        top = (rho - 4.0) * (rho - 2.0) * rho_inf
        squared = top / ((rho_inf - 4.0) * (rho_inf - 2.0) * rho)
        size = tl.where(ready, size * tl.sqrt(tl.maximum(squared, 0.0)), zero)
        eps = tl.where(ready, eps, one)
        if PLAIN:
            plain = tl.where(ready, zero, lr_hat)
        if GATE:
            v_keep = tl.where(ready, v_keep, one)
            v_add = tl.where(ready, v_add, zero)
    return v_keep, v_add, size, eps, plain


@triton.jit(do_not_specialize_on_alignment=["lr_ptr", "scale_ptr", "found_inf_ptr"])
def factors_kernel(
    table, constants, lr_ptr, scale_ptr, found_inf_ptr, factors, n,
    STEP: tl.constexpr, UNSCALE: tl.constexpr, FOUND_INF: tl.constexpr, DEMA: tl.constexpr,
    MOMENTS: tl.constexpr, RECTIFY: tl.constexpr, PLAIN: tl.constexpr, GATE: tl.constexpr,
    RAW_EPS: tl.constexpr, SLOW: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Step counts and factors of ``n`` tensors; with found_inf set, steps stay and the rows say "not active"."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    steps = tl.load(table + i * COLUMNS + 5, mask=mask, other=0).to(tl.pointer_type(STEP))
    active = 1.0
    if FOUND_INF:
        active = tl.where(tl.load(found_inf_ptr) != 0.0, 0.0, 1.0)
    t = tl.load(steps, mask=mask, other=0.0).to(tl.float64) + active
    tl.store(steps, t.to(STEP), mask=mask)
    t = tl.maximum(t, 1.0)  # a first step that found_inf stops must not divide by 1 − β^0

    lr = tl.load(lr_ptr).to(tl.float64)
    one = tl.full([BLOCK], 1.0, tl.float64)
    zero = tl.full([BLOCK], 0.0, tl.float64)
    h_gain, j_gain = _dema_factors(constants, t, DEMA)
    eta = _slow_factor(constants, t, SLOW)
    decay = one
    if DECOUPLED:
        decay = one - lr * tl.load(constants + 6)
    v_keep, v_add, size, eps, plain = one, zero, zero, one, one * lr
    if MOMENTS:
        v_keep, v_add, size, eps, plain = _moment_factors(constants, t, lr, one, zero, RECTIFY, PLAIN, GATE, RAW_EPS)
    unscale = one
    if UNSCALE:
        unscale = one / tl.load(scale_ptr).to(tl.float64)

    row = factors + i * FACTORS
    tl.store(row, one * active, mask=mask)
    tl.store(row + 1, h_gain, mask=mask)
    tl.store(row + 2, j_gain, mask=mask)
    tl.store(row + 3, decay, mask=mask)
    tl.store(row + 4, v_keep, mask=mask)
    tl.store(row + 5, v_add, mask=mask)
    tl.store(row + 6, size, mask=mask)
    tl.store(row + 7, eps, mask=mask)
    tl.store(row + 8, plain, mask=mask)
    tl.store(row + 9, eta, mask=mask)
    tl.store(row + 10, one * tl.load(constants + 0), mask=mask)  # 1 − β1
    tl.store(row + 11, one * tl.load(constants + 7), mask=mask)  # λ
    tl.store(row + 12, one * tl.load(constants + 18), mask=mask)  # h_bias
    tl.store(row + 13, one * tl.load(constants + 6), mask=mask)  # weight decay
    tl.store(row + 14, one * tl.load(constants + 5), mask=mask)  # ε of AdaBelief's second moment
    tl.store(row + 15, unscale, mask=mask)


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
    g, theta, table, row, i, offsets, mask,
    C: tl.constexpr, UNSCALE: tl.constexpr, MAXIMIZE: tl.constexpr, CENTRALIZE: tl.constexpr, L2: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The gradient unscaled, centralised, with its sign and L2 decay."""
    if CENTRALIZE:
        length = tl.load(table + i * COLUMNS + 8)
        if length > 0:
            means = tl.load(table + i * COLUMNS + 7).to(tl.pointer_type(C))
            g = g - _load(means + offsets // length, mask, MASKED)
    if UNSCALE:
        g = g * tl.load(row + 15).to(C)
    if MAXIMIZE:
        g = -g
    if L2:
        g = g + tl.load(row + 13).to(C) * theta
    return g


@triton.jit
def _filtered(g, j, row, h_gain, j_gain, lambd, C: tl.constexpr, BIAS: tl.constexpr):
    """DEMA: h, and J after this update."""
    h = h_gain * g + j
    if BIAS:
        h = h + tl.load(row + 12).to(C)
    return h, lambd * j + j_gain * g


@triton.jit
def _second_moment(v, h, m, row, v_keep, v_add, C: tl.constexpr, BELIEF: tl.constexpr):
    """v after this update."""
    deviation = h
    if BELIEF:
        deviation = h - m
    v = v_keep * v + v_add * deviation * deviation
    if BELIEF:
        v = v + tl.load(row + 14).to(C)
    return v


@triton.jit
def _synchronised(theta, entry, row, offsets, mask, C: tl.constexpr, ALIGNED: tl.constexpr, MASKED: tl.constexpr):
    """θ, at every k-th update brought together with the slow weights, which are stored."""
    eta = tl.load(row + 9).to(C)
    if eta != 0.0:
        slow_ptr = _address(entry, C, C, ALIGNED) + offsets
        slow = _load(slow_ptr, mask, MASKED)
        theta = slow + eta * (theta - slow)
        _store(slow_ptr, theta, mask, MASKED)
    return theta


@triton.jit
def _update_block(
    table, grads, factors, i, offsets, mask,
    P: tl.constexpr, G: tl.constexpr, C: tl.constexpr, UNSCALE: tl.constexpr, MAXIMIZE: tl.constexpr,
    CENTRALIZE: tl.constexpr, L2: tl.constexpr, DECOUPLED: tl.constexpr, DEMA: tl.constexpr, BIAS: tl.constexpr,
    MOMENTS: tl.constexpr, BELIEF: tl.constexpr, PLAIN: tl.constexpr, SLOW: tl.constexpr,
    ALIGNED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """admeta.rule's update of one block of tensor ``i``.

    All loads come before all stores: the compiler can't move a load over a store that may alias it.
    """
    row, entries = factors + i * FACTORS, table + i * COLUMNS
    theta_ptr = _address(entries, P, C, ALIGNED) + offsets
    m_ptr = _address(entries + 2, C, C, ALIGNED) + offsets
    g = _load(_address(grads + i, G, C, ALIGNED) + offsets, mask, MASKED).to(C)
    theta = _load(theta_ptr, mask, MASKED).to(C)
    m = _load(m_ptr, mask, MASKED)
    if DEMA:
        j_ptr = _address(entries + 1, C, C, ALIGNED) + offsets
        j = _load(j_ptr, mask, MASKED)
        h_gain, j_gain, lambd = tl.load(row + 1).to(C), tl.load(row + 2).to(C), tl.load(row + 11).to(C)
    if MOMENTS:
        v_ptr = _address(entries + 3, C, C, ALIGNED) + offsets
        v = _load(v_ptr, mask, MASKED)
        v_keep, v_add = tl.load(row + 4).to(C), tl.load(row + 5).to(C)
        size, eps = tl.load(row + 6).to(C), tl.load(row + 7).to(C)
    g = _prepared(g, theta, table, row, i, offsets, mask, C, UNSCALE, MAXIMIZE, CENTRALIZE, L2, MASKED)
    if DECOUPLED:
        theta = theta * tl.load(row + 3).to(C)

    h = g
    if DEMA:
        h, j = _filtered(g, j, row, h_gain, j_gain, lambd, C, BIAS)
    m = m + tl.load(row + 10).to(C) * (h - m)
    if MOMENTS:
        v = _second_moment(v, h, m, row, v_keep, v_add, C, BELIEF)
        if size != 0.0:
            theta = theta - size * m / (_sqrt(v, tl.float64 == C) + eps)
    if PLAIN:
        theta = theta - tl.load(row + 8).to(C) * m
    if SLOW:
        theta = _synchronised(theta, entries + 4, row, offsets, mask, C, ALIGNED, MASKED)

    _store(theta_ptr, theta.to(P), mask, MASKED)
    _store(m_ptr, m, mask, MASKED)
    if DEMA:
        _store(j_ptr, j, mask, MASKED)
    if MOMENTS:
        _store(v_ptr, v, mask, MASKED)


@triton.jit
def update_kernel(
    table, grads, chunks, factors,
    P: tl.constexpr, G: tl.constexpr, C: tl.constexpr, UNSCALE: tl.constexpr, FOUND_INF: tl.constexpr,
    MAXIMIZE: tl.constexpr, CENTRALIZE: tl.constexpr, L2: tl.constexpr, DECOUPLED: tl.constexpr,
    DEMA: tl.constexpr, BIAS: tl.constexpr, MOMENTS: tl.constexpr, BELIEF: tl.constexpr, PLAIN: tl.constexpr,
    SLOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a block of ``BLOCK`` elements; ``chunks`` holds (tensor, block) pairs, int32."""
    pair = chunks + tl.program_id(0) * 2
    i = tl.load(pair)
    start = tl.load(pair + 1).to(tl.int64) * BLOCK
    elements = tl.load(table + i * COLUMNS + 6)
    if FOUND_INF:
        elements = tl.where(tl.load(factors + i * FACTORS) != 0.0, elements, 0)
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= elements:
        _update_block(
            table, grads, factors, i, offsets, None, P, G, C, UNSCALE, MAXIMIZE, CENTRALIZE, L2, DECOUPLED, DEMA, BIAS,
            MOMENTS, BELIEF, PLAIN, SLOW, ALIGNED, False,
        )  # fmt: skip
    else:
        _update_block(
            table, grads, factors, i, offsets, offsets < elements, P, G, C, UNSCALE, MAXIMIZE, CENTRALIZE, L2,
            DECOUPLED, DEMA, BIAS, MOMENTS, BELIEF, PLAIN, SLOW, ALIGNED, True,
        )  # fmt: skip


@triton.jit
def row_mean_kernel(table, grads, rows, G: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Mean of one gradient row a program; ``rows`` holds (tensor, row) pairs, int32."""
    pair = rows + tl.program_id(0) * 2
    i = tl.load(pair)
    r = tl.load(pair + 1).to(tl.int64)
    length = tl.load(table + i * COLUMNS + 8)
    gradient = tl.load(grads + i).to(tl.pointer_type(G)) + r * length
    total = tl.zeros([BLOCK], C)
    for begin in range(0, length, BLOCK):
        offsets = begin + tl.arange(0, BLOCK)
        total += tl.load(gradient + offsets, mask=offsets < length, other=0.0).to(C)
    means = tl.load(table + i * COLUMNS + 7).to(tl.pointer_type(C))
    tl.store(means + r, tl.sum(total) / length.to(C))
