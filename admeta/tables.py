"""What the fused kernels read besides tensors' elements, made on the host: addresses, sizes, work lists, constants."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import reduce
from operator import or_

import torch
from torch import Tensor

from admeta.rule import UpdateRule
from admeta.tensors import GroupTensors, compute_dtype

__all__ = [
    "LR",
    "address_table",
    "constant_table",
    "index_pairs",
    "int64_list",
    "row_tables",
    "rows_are_aligned",
    "widely_aligned",
]

_COLUMNS = 9  # as in admeta.kernels
_THETA, _DEMA, _EXP_AVG, _EXP_AVG_SQ, _SLOW, _STEP, _ELEMENTS, _MEANS, _ROW_LENGTH = range(_COLUMNS)
LR = 19  # index of the learning rate among the constants


def int64_list(values: Sequence[int]) -> Tensor:
    """The values, int64."""
    return torch.frombuffer(array("q", values), dtype=torch.int64)


def address_table(tensors: GroupTensors) -> Tensor:
    """A row of addresses and sizes for each tensor, but for its gradient and rows; int64 [tensors, columns]."""
    table = torch.zeros(len(tensors.params), _COLUMNS, dtype=torch.int64)
    columns: list[tuple[int, list[Tensor]]] = [
        (_THETA, tensors.params),
        (_DEMA, tensors.demas),
        (_EXP_AVG, tensors.exp_avgs),
        (_EXP_AVG_SQ, tensors.exp_avg_sqs),
        (_SLOW, tensors.slows),
        (_STEP, tensors.steps),
    ]
    for column, members in columns:
        if members:
            table[:, column] = int64_list([t.data_ptr() for t in members])
    table[:, _ELEMENTS] = int64_list([p.numel() for p in tensors.params])
    return table


def rows_are_aligned(table: Tensor) -> bool:
    """Whether all addresses of elements in an ``address_table`` allow 16-byte accesses."""
    return not bool((table[:, [_THETA, _DEMA, _EXP_AVG, _EXP_AVG_SQ, _SLOW]] % 16).any())


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
            table[i, _MEANS] = means.data_ptr() + first * means.element_size()
            table[i, _ROW_LENGTH] = row_lengths[i]
        first += count
    return index_pairs(counts), means


def index_pairs(counts: Sequence[int]) -> Tensor:
    """(i, j) for every i and every j below counts[i], int32."""
    lengths = torch.tensor(counts, dtype=torch.int64)
    owners = torch.repeat_interleave(torch.arange(len(counts)), lengths)
    firsts = torch.cumsum(lengths, 0) - lengths
    return torch.stack([owners, torch.arange(len(owners)) - firsts[owners]], dim=1).to(torch.int32)


def constant_table(rule: UpdateRule, lr: float) -> Tensor:
    """The rule's constants in the order in which ``factors_kernel`` reads them, float64."""
    values = [0.0] * (LR + 1)
    values[0:2] = 1.0 - rule.beta1, _log(rule.beta1)
    values[6] = rule.weight_decay
    if rule.moments is not None:
        m = rule.moments
        values[2:6] = m.beta2, _log(m.beta2), 1.0 - m.beta2, m.eps
        values[11:13] = m.rho_inf, m.rho_min
    if rule.dema is not None:
        d = rule.dema
        values[7:11] = d.lambd, d.h_gain, d.j_gain, d.start
        values[18] = d.h_bias
    if rule.slow is not None:
        s = rule.slow
        values[13:18] = float(s.k), s.base, s.gain, s.rate, s.shift
    values[LR] = lr
    return torch.tensor(values, dtype=torch.float64)


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0.0 else -math.inf
