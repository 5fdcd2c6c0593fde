"""The tables that the fused kernels read besides tensors' elements: their columns, by name, and how they are filled.

- addresses, int64 [tensors, COLUMNS]: where each tensor lies and its size. Gradients' addresses have a table of their
  own, because they change the most.
- constants, float64 [CONSTANTS]: what is constant over a group but the learning rate (admeta.rule), which is the last.
- factors, float64 [tensors, FACTORS]: what depends on a tensor's update count; written and read by the kernels.

Columns are Triton's compile-time constants: the kernels use them as they are, the host their ``value``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor
from triton.language import constexpr

from admeta.rule import UpdateRule
from admeta.tensors import GroupTensors, compute_dtype

# addresses
AT_THETA: Any = constexpr(0)
AT_DEMA: Any = constexpr(1)
AT_EXP_AVG: Any = constexpr(2)
AT_EXP_AVG_SQ: Any = constexpr(3)
AT_SLOW: Any = constexpr(4)
AT_STEP: Any = constexpr(5)
AT_ELEMENTS: Any = constexpr(6)
AT_MEANS: Any = constexpr(7)  # room for the means of the gradient's rows
AT_ROW_LENGTH: Any = constexpr(8)
COLUMNS: Any = constexpr(9)

# factors
FACTOR_ACTIVE: Any = constexpr(0)  # 0 where found_inf stops the update
FACTOR_H_GAIN: Any = constexpr(1)
FACTOR_J_GAIN: Any = constexpr(2)
FACTOR_DECAY: Any = constexpr(3)
FACTOR_V_KEEP: Any = constexpr(4)
FACTOR_V_ADD: Any = constexpr(5)
FACTOR_SIZE: Any = constexpr(6)
FACTOR_EPS: Any = constexpr(7)
FACTOR_PLAIN: Any = constexpr(8)
FACTOR_ETA: Any = constexpr(9)
FACTOR_M_ADD: Any = constexpr(10)
FACTOR_LAMBD: Any = constexpr(11)
FACTOR_H_BIAS: Any = constexpr(12)
FACTOR_WEIGHT_DECAY: Any = constexpr(13)
FACTOR_BELIEF_EPS: Any = constexpr(14)
FACTOR_UNSCALE: Any = constexpr(15)
FACTOR_SEED: Any = constexpr(16)  # of the random bits
FACTORS: Any = constexpr(17)

# constants
CONST_M_ADD: Any = constexpr(0)
CONST_LOG_BETA1: Any = constexpr(1)
CONST_BETA2: Any = constexpr(2)
CONST_LOG_BETA2: Any = constexpr(3)
CONST_V_ADD: Any = constexpr(4)
CONST_EPS: Any = constexpr(5)
CONST_WEIGHT_DECAY: Any = constexpr(6)
CONST_LAMBD: Any = constexpr(7)
CONST_H_GAIN: Any = constexpr(8)
CONST_J_GAIN: Any = constexpr(9)
CONST_START: Any = constexpr(10)
CONST_RHO_INF: Any = constexpr(11)
CONST_RHO_MIN: Any = constexpr(12)
CONST_K: Any = constexpr(13)
CONST_SLOW_BASE: Any = constexpr(14)
CONST_SLOW_GAIN: Any = constexpr(15)
CONST_SLOW_RATE: Any = constexpr(16)
CONST_SLOW_SHIFT: Any = constexpr(17)
CONST_H_BIAS: Any = constexpr(18)
CONST_LR: Any = constexpr(19)
CONSTANTS: Any = constexpr(20)


def int64_list(values: Sequence[int]) -> Tensor:
    """The values, int64."""
    return torch.frombuffer(array("q", values), dtype=torch.int64)


def address_table(tensors: GroupTensors) -> Tensor:
    """A row of addresses and sizes for each tensor, but for its gradient and rows; int64 [tensors, columns]."""
    table = torch.zeros(len(tensors.params), COLUMNS.value, dtype=torch.int64)
    columns: list[tuple[Any, list[Tensor]]] = [
        (AT_THETA, tensors.params),
        (AT_DEMA, tensors.demas),
        (AT_EXP_AVG, tensors.exp_avgs),
        (AT_EXP_AVG_SQ, tensors.exp_avg_sqs),
        (AT_SLOW, tensors.slows),
        (AT_STEP, tensors.steps),
    ]
    for column, members in columns:
        if members:
            table[:, column.value] = int64_list([t.data_ptr() for t in members])
    table[:, AT_ELEMENTS.value] = int64_list([p.numel() for p in tensors.params])
    return table


def rows_are_aligned(table: Tensor) -> bool:
    """Whether all addresses of elements in an ``address_table`` allow 16-byte accesses."""
    return not bool((table[:, [c.value for c in (AT_THETA, AT_DEMA, AT_EXP_AVG, AT_EXP_AVG_SQ, AT_SLOW)]] % 16).any())


def widely_aligned(addresses: Sequence[int]) -> bool:
    """Whether all allow 16-byte accesses."""
    return reduce(or_, addresses, 0) % 16 == 0


def row_tables(tensors: GroupTensors, table: Tensor, row_lengths: list[int]) -> tuple[Tensor, Tensor]:
    """(tensor, row) pairs, and room on the device for the rows' means; fills their columns of ``table``."""
    device, dtype = tensors.params[0].device, compute_dtype(tensors.params[0])
    counts = [p.numel() // length if length else 0 for p, length in zip(tensors.params, row_lengths, strict=True)]
    means = torch.empty(sum(counts), dtype=dtype, device=device)
    first = 0
    for i, count in enumerate(counts):
        if count:
            table[i, AT_MEANS.value] = means.data_ptr() + first * means.element_size()
            table[i, AT_ROW_LENGTH.value] = row_lengths[i]
        first += count
    return index_pairs(counts), means


def index_pairs(counts: Sequence[int]) -> Tensor:
    """(i, j) for every i and every j below counts[i], int32."""
    lengths = torch.tensor(counts, dtype=torch.int64)
    owners = torch.repeat_interleave(torch.arange(len(counts)), lengths)
    firsts = torch.cumsum(lengths, 0) - lengths
    return torch.stack([owners, torch.arange(len(owners)) - firsts[owners]], dim=1).to(torch.int32)


def constant_table(rule: UpdateRule, lr: float) -> Tensor:
    """The rule's constants and the learning rate, float64 [CONSTANTS]."""
    values: list[tuple[Any, float]] = [
        (CONST_M_ADD, 1.0 - rule.beta1),
        (CONST_LOG_BETA1, _log(rule.beta1)),
        (CONST_WEIGHT_DECAY, rule.weight_decay),
        (CONST_LR, lr),
    ]
    if rule.moments is not None:
        m = rule.moments
        values += [(CONST_BETA2, m.beta2), (CONST_LOG_BETA2, _log(m.beta2)), (CONST_V_ADD, 1.0 - m.beta2)]
        values += [(CONST_EPS, m.eps), (CONST_RHO_INF, m.rho_inf), (CONST_RHO_MIN, m.rho_min)]
    if rule.dema is not None:
        d = rule.dema
        values += [(CONST_LAMBD, d.lambd), (CONST_H_GAIN, d.h_gain), (CONST_J_GAIN, d.j_gain)]
        values += [(CONST_START, d.start), (CONST_H_BIAS, d.h_bias)]
    if rule.slow is not None:
        s = rule.slow
        values += [(CONST_K, float(s.k)), (CONST_SLOW_BASE, s.base), (CONST_SLOW_GAIN, s.gain)]
        values += [(CONST_SLOW_RATE, s.rate), (CONST_SLOW_SHIFT, s.shift)]
    table = torch.zeros(CONSTANTS.value, dtype=torch.float64)
    for column, value in values:
        table[column.value] = value
    return table


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0.0 else -math.inf
