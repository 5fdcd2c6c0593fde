"""The update of a whole group in two kernel launches (and one more for gradient centralisation).

Owns: what is on the device for the launches, and their order. Does not own: the kernels (admeta.kernels), the tables'
columns (admeta.layout) and when they are still true (admeta.plans). Imported only where fused runs: it needs Triton.

Device tables are never written twice: what changes goes into a new table, since captured graphs may read the old one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from admeta import kernels
from admeta.layout import (
    CONST_LR,
    FACTORS,
    address_table,
    constant_table,
    index_pairs,
    int64_list,
    row_tables,
    rows_are_aligned,
    widely_aligned,
)
from admeta.rule import Number, UpdateRule
from admeta.tensors import GroupTensors, compute_dtype

__all__ = ["Launch"]

BLOCK = 1024  # of 512 to 8192 the fastest on an H100, for 329 small tensors and for 393 large ones
NUM_WARPS = 4
_FACTORS_BLOCK = 64
_ROW_BLOCK = 1024


@dataclass
class Launch:
    """Kernel launches for tensors of one device and of one dtype in each role.

    Attributes:
        members: their positions in the group's lists.
        dtypes: of parameters, gradients, state, arithmetic and step counts.
        table, grads, chunks, rows, constants: as the kernels read them, on the device.
        lr: the learning rate among the constants.
        factors: scratch between the two kernels.
        aligned, others_aligned: whether all addresses, and all but the gradients', allow 16-byte accesses.
        keep: whatever the tables point at and nobody else holds, and page-locked copies a graph may read again.
    """

    members: list[int]
    device: torch.device
    rule: UpdateRule
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype, torch.dtype, torch.dtype]
    table: Tensor
    grads: Tensor
    chunks: Tensor
    rows: Tensor | None
    factors: Tensor
    constants: Tensor
    lr: float
    aligned: bool
    others_aligned: bool
    keep: tuple[Tensor, ...]
    lr_on_device: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.lr_on_device = self.constants[CONST_LR.value :]

    @classmethod
    def of(cls, tensors: GroupTensors, members: list[int], rule: UpdateRule, *, row_lengths: list[int]) -> Launch:
        """Makes the tables.

        Args:
            tensors: the bucket's tensors, each dense and strided like its state.
            members: their positions in the group.
            rule: the group's rule.
            row_lengths: for each tensor, elements of a row whose mean the kernel subtracts; 0 for none.
        """
        first = tensors.params[0]
        device = first.device
        host = address_table(tensors)
        blocks = index_pairs([math.ceil(p.numel() / BLOCK) for p in tensors.params])
        rows, means = row_tables(tensors, host, row_lengths) if any(row_lengths) else (None, None)
        addresses = [g.data_ptr() for g in tensors.grads]
        sources = [host, int64_list(addresses), blocks, constant_table(rule, 0.0)] + ([] if rows is None else [rows])
        pinned = [_page_locked(source, device) for source in sources]
        on_device = [source.to(device, non_blocking=True) for source in pinned]
        state, step = tensors.exp_avgs[0].dtype, tensors.steps[0].dtype
        return cls(
            members=members,
            device=device,
            rule=rule,
            dtypes=(first.dtype, tensors.grads[0].dtype, state, compute_dtype(first), step),
            table=on_device[0],
            grads=on_device[1],
            chunks=on_device[2],
            rows=None if rows is None else on_device[4],
            factors=torch.empty(len(members), FACTORS.value, dtype=torch.float64, device=device),
            constants=on_device[3],
            lr=0.0,
            aligned=rows_are_aligned(host) and widely_aligned(addresses),
            others_aligned=rows_are_aligned(host),
            keep=(*pinned, *([] if means is None else [means])),
        )

    def with_grads(self, addresses: Sequence[int]) -> Launch:
        """The same launches for gradients at other addresses (of the whole group, in its order)."""
        own = addresses if len(addresses) == len(self.members) else [addresses[i] for i in self.members]
        pinned = _page_locked(int64_list(own), self.device)
        grads = pinned.to(self.device, non_blocking=True)
        keep = (self.keep[0], pinned, *self.keep[2:])
        aligned = self.others_aligned and widely_aligned(own)
        return replace(self, grads=grads, aligned=aligned, keep=keep)

    def with_rule(self, rule: UpdateRule) -> Launch:
        """The same launches with other constants; ``rule`` has the same terms."""
        return replace(self, rule=rule, lr=math.nan)

    def run(self, lr: Number, *, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        """Updates parameters and state in place; where found_inf is not 0, nothing changes."""
        on_card = self.device.type == "cuda"
        with torch.cuda.device(self.device) if on_card else nullcontext():
            self._launch(self._lr_source(lr), grad_scale, found_inf)

    def _lr_source(self, lr: Number) -> Tensor:
        """The learning rate on the device: the tensor itself, or its place among the constants."""
        if isinstance(lr, Tensor) and lr.device == self.device:
            if math.isnan(self.lr):
                self._set_constants(0.0)
            return lr
        rate = float(lr)
        if rate != self.lr:
            self._set_constants(rate)
        return self.lr_on_device

    def _set_constants(self, lr: float) -> None:
        pinned = _page_locked(constant_table(self.rule, lr), self.device)
        self.constants = pinned.to(self.device, non_blocking=True)
        self.lr_on_device = self.constants[CONST_LR.value :]
        self.keep = (*self.keep[:3], pinned, *self.keep[4:])
        self.lr = lr

    def _launch(self, lr: Tensor, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        device, unscale, stopped = self.device, grad_scale is not None, found_inf is not None
        scale = lr if grad_scale is None else grad_scale.to(device, non_blocking=True)
        stop = lr if found_inf is None else found_inf.to(device, non_blocking=True)
        rule, moments, dema = self.rule, self.rule.moments, self.rule.dema
        p, g, s, c, step = (kernels.DTYPES[dtype] for dtype in self.dtypes)
        decoupled = rule.decoupled and rule.weight_decay != 0
        l2 = rule.weight_decay != 0 and not rule.decoupled
        rectify = moments is not None and moments.rectify
        plain = moments is None or (rectify and moments.step_unrectified)
        stochastic = rule.stochastic and self.dtypes[0] == torch.bfloat16
        random = stochastic or self.dtypes[2] == torch.bfloat16
        n, rows = self.table.shape[0], 0 if self.rows is None else self.rows.shape[0]
        kernels.factors_kernel[(math.ceil(n / _FACTORS_BLOCK),)](
            self.table, self.constants, lr, scale, stop, self.factors, n,
            step, unscale, stopped, dema is not None, moments is not None, rectify, plain,
            moments is not None and moments.gate, moments is not None and moments.raw_eps, rule.slow is not None,
            decoupled, random, _FACTORS_BLOCK, num_warps=2,
        )  # fmt: skip
        if rows:
            kernels.row_mean_kernel[(rows,)](self.table, self.grads, self.rows, g, c, _ROW_BLOCK, num_warps=4)
        if self.chunks.shape[0]:
            kernels.update_kernel[(self.chunks.shape[0],)](
                self.table, self.grads, self.chunks, self.factors,
                p, g, s, c, unscale, stopped, rule.maximize, rows > 0, l2, decoupled, dema is not None,
                dema is not None and dema.h_bias != 0, moments is not None, moments is not None and moments.belief,
                plain, rule.slow is not None, stochastic, random, self.aligned, BLOCK, num_warps=NUM_WARPS,
            )  # fmt: skip


def _page_locked(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory() if device.type == "cuda" else tensor
