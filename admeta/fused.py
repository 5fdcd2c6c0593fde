"""The update of a whole group in two kernel launches (and one more for gradient centralisation).

Owns: what is on the device for the launches, and their order. Does not own: the kernels (admeta.kernels), how the
tables are made (admeta.tables) and when they are still true (admeta.plans).

Device tables are never written twice: what changes is made anew, because a captured graph may read the old one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from admeta.coefficients import Number
from admeta.launcher import BoundKernel, Call, launches_are_hooked
from admeta.rule import UpdateRule
from admeta.tables import (
    LR,
    address_table,
    constant_table,
    index_pairs,
    int64_list,
    row_tables,
    rows_are_aligned,
    widely_aligned,
)
from admeta.tensors import GroupTensors, compute_dtype

__all__ = ["Launch"]

BLOCK = 1024  # of 512 to 8192 the fastest on an H100, for 329 small tensors and for 393 large ones
NUM_WARPS = 4
_FACTORS_BLOCK = 64
_ROW_BLOCK = 1024
_FACTORS = 16  # as in admeta.kernels


_Launched = tuple[BoundKernel, tuple[Tensor, ...]]


@dataclass
class _Ready:
    """Launches of a step like the last one, made when that has come once again."""

    lr: float = math.nan
    stream: int = 0
    calls: list[Call] = field(default_factory=list)

    def serves(self, lr: float, stream: int) -> bool:
        """Whether the calls do what this step needs."""
        return lr == self.lr and stream == self.stream and len(self.calls) > 0

    def look(self, lr: float, stream: int, launched: list[_Launched]) -> None:
        """Takes note of a step that was launched the long way."""
        if lr == self.lr and stream == self.stream:
            self.calls = [kernel.fixed(stream, tensors) for kernel, tensors in launched]
        else:
            self.lr, self.stream, self.calls = lr, stream, []


@dataclass
class Launch:
    """Kernel launches for tensors of one device and of one dtype in each role.

    Attributes:
        members: their positions in the group's lists.
        table, grads, chunks, rows, constants: as the kernels read them, on the device.
        lr, lr_on_device: the learning rate among the constants.
        factors: scratch between the two kernels.
        aligned, others_aligned: whether all addresses, and all but the gradients', allow 16-byte accesses.
        kernels: bound to the learning rate's dtype, use of GradScaler and alignment.
        ready: the launches of a step like the last one.
        keep: whatever the tables point at and nobody else holds, and page-locked copies a graph may read again.
    """

    members: list[int]
    device: torch.device
    rule: UpdateRule
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype, torch.dtype]  # parameter, gradient, arithmetic, step
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
    kernels: dict[tuple[object, ...], tuple[BoundKernel, BoundKernel, BoundKernel]] = field(default_factory=dict)
    lr_on_device: Tensor = field(init=False)
    ready: _Ready = field(init=False)

    def __post_init__(self) -> None:
        self.lr_on_device = self.constants[LR:]
        self.ready = _Ready()

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
        return cls(
            members=members,
            device=device,
            rule=rule,
            dtypes=(first.dtype, tensors.grads[0].dtype, compute_dtype(first), tensors.steps[0].dtype),
            table=on_device[0],
            grads=on_device[1],
            chunks=on_device[2],
            rows=None if rows is None else on_device[4],
            factors=torch.empty(len(members), _FACTORS, dtype=torch.float64, device=device),
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

    def run(self, lr: Number, *, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        """Updates parameters and state in place; where found_inf is not 0, nothing changes."""
        device = self.device
        if device.type != "cuda":
            self._launch(None, self._lr_source(lr), grad_scale, found_inf)
            return
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        if torch._C._cuda_getDevice() != device.index:
            with torch.cuda.device(device):
                self._launch(stream, self._lr_source(lr), grad_scale, found_inf)
            return
        if grad_scale is not None or found_inf is not None or not isinstance(lr, float):
            self._launch(stream, self._lr_source(lr), grad_scale, found_inf)
        elif self.ready.serves(lr, stream) and not launches_are_hooked():
            for call, arguments in self.ready.calls:
                call(*arguments)
        else:
            self.ready.look(lr, stream, self._launch(stream, self._lr_source(lr), None, None))

    def _lr_source(self, lr: Number) -> Tensor:
        """The learning rate on the device: the tensor itself, or its place among the constants."""
        if isinstance(lr, Tensor) and lr.device == self.device:
            return lr
        rate = float(lr)
        if rate != self.lr:
            self._set_lr(rate)
        return self.lr_on_device

    def _set_lr(self, lr: float) -> None:
        pinned = _page_locked(constant_table(self.rule, lr), self.device)
        self.constants = pinned.to(self.device, non_blocking=True)
        self.lr_on_device = self.constants[LR:]
        self.keep = (*self.keep[:3], pinned, *self.keep[4:])
        self.ready = _Ready()
        self.lr = lr

    def _launch(
        self, stream: int | None, lr: Tensor, grad_scale: Tensor | None, found_inf: Tensor | None
    ) -> list[_Launched]:
        device = self.device
        scale = lr if grad_scale is None else grad_scale.to(device, non_blocking=True)
        stop = lr if found_inf is None else found_inf.to(device, non_blocking=True)
        key = (lr.dtype, scale.dtype, stop.dtype, grad_scale is None, found_inf is None, self.aligned)
        kernels = self.kernels.get(key)
        if kernels is None:
            kernels = self._bound(unscale=grad_scale is not None, stopped=found_inf is not None)
            self.kernels[key] = kernels
        launched: list[_Launched] = [(kernels[0], (self.table, self.constants, lr, scale, stop, self.factors))]
        if self.rows is not None:
            launched.append((kernels[1], (self.table, self.grads, self.rows)))
        if self.chunks.shape[0]:
            launched.append((kernels[2], (self.table, self.grads, self.chunks, self.factors)))
        for kernel, tensors in launched:
            kernel.launch(stream, tensors)
        return launched

    def _bound(self, *, unscale: bool, stopped: bool) -> tuple[BoundKernel, BoundKernel, BoundKernel]:
        from admeta import kernels

        rule, moments, dema = self.rule, self.rule.moments, self.rule.dema
        p, g, c, step = (kernels.DTYPES[dtype] for dtype in self.dtypes)
        decoupled = rule.decoupled and rule.weight_decay != 0
        l2 = rule.weight_decay != 0 and not rule.decoupled
        rectify = moments is not None and moments.rectify
        plain = moments is None or (rectify and moments.step_unrectified)
        n, rows = self.table.shape[0], 0 if self.rows is None else self.rows.shape[0]
        return (
            BoundKernel(
                kernels.factors_kernel,
                math.ceil(n / _FACTORS_BLOCK),
                (n, step, unscale, stopped, dema is not None, moments is not None, rectify, plain,
                 moments is not None and moments.gate, moments is not None and moments.raw_eps, rule.slow is not None,
                 decoupled, _FACTORS_BLOCK),
                num_warps=2,
            ),
            BoundKernel(kernels.row_mean_kernel, rows, (g, c, _ROW_BLOCK), num_warps=4),
            BoundKernel(
                kernels.update_kernel,
                self.chunks.shape[0],
                (p, g, c, unscale, stopped, rule.maximize, rows > 0, l2, decoupled, dema is not None,
                 dema is not None and dema.h_bias != 0, moments is not None, moments is not None and moments.belief,
                 plain, rule.slow is not None, self.aligned, BLOCK),
                num_warps=NUM_WARPS,
            ),
        )  # fmt: skip


def _page_locked(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory() if device.type == "cuda" else tensor
