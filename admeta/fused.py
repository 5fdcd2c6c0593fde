"""The update of a whole group in two kernel launches (and one more for gradient centralisation).

Owns: the device tables of addresses, sizes and constants, and the launches. Does not own: the kernels
(admeta.kernels) and when tables are still true (admeta.plans).

Device tables are never written twice: what changes is made anew, because a captured graph may read the old one.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from importlib.util import find_spec
from operator import or_
from typing import Any

import torch
from torch import Tensor

from admeta.coefficients import Number
from admeta.rule import UpdateRule
from admeta.tensors import GroupTensors, compute_dtype

__all__ = ["Launch", "fused_available", "refuse_unfused"]

_data_ptr: Callable[[Tensor], int] = Tensor.data_ptr

BLOCK = 1024  # of 512 to 8192 the fastest on an H100, for 329 small tensors and for 393 large ones
NUM_WARPS = 4
_FACTORS_BLOCK = 64
_ROW_BLOCK = 1024
_COLUMNS, _FACTORS = 9, 16  # as in admeta.kernels
_THETA, _DEMA, _EXP_AVG, _EXP_AVG_SQ, _SLOW, _STEP, _ELEMENTS, _MEANS, _ROW_LENGTH = range(_COLUMNS)
_LR = 19  # index of the learning rate among the constants


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _interpreting() -> bool:
    """Triton's interpreter runs the kernels on CPU tensors, for ``fused=True`` alone: tests without a GPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def fused_available(params: Sequence[Tensor]) -> bool:
    """Whether the fused update is a good choice for all of these parameters: on CUDA, with Triton installed."""
    return _has_triton() and all(p.device.type == "cuda" and _has_a_kernel(p.dtype) for p in params)


def _has_a_kernel(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def refuse_unfused(params: Sequence[Tensor]) -> None:
    """Raises torch's error (RuntimeError) for a parameter that ``fused=True`` can't take."""
    devices = ("cuda", "cpu") if _interpreting() else ("cuda",)
    for p in params:
        if not (_has_triton() and p.device.type in devices and _has_a_kernel(p.dtype)):
            raise RuntimeError(
                "`fused=True` requires all the params to be floating point Tensors of supported devices: "
                f"['cuda'] (with Triton installed) but {p.dtype} and {p.device.type}"
            )


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

    def __post_init__(self) -> None:
        self.lr_on_device = self.constants[_LR:]

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
        host = _host_table(tensors)
        blocks = _pairs([math.ceil(p.numel() / BLOCK) for p in tensors.params])
        rows, means = _row_tables(tensors, host, row_lengths) if any(row_lengths) else (None, None)
        addresses = [g.data_ptr() for g in tensors.grads]
        sources = [host, _addresses(addresses), blocks, _constants(rule, 0.0)] + ([] if rows is None else [rows])
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
            aligned=_aligned(host) and reduce(or_, addresses) % 16 == 0,
            others_aligned=_aligned(host),
            keep=(*pinned, *([] if means is None else [means])),
        )

    def with_grads(self, addresses: Sequence[int]) -> Launch:
        """The same launches for gradients at other addresses (of the whole group, in its order)."""
        own = addresses if len(addresses) == len(self.members) else [addresses[i] for i in self.members]
        pinned = _page_locked(_addresses(own), self.device)
        grads = pinned.to(self.device, non_blocking=True)
        keep = (self.keep[0], pinned, *self.keep[2:])
        aligned = self.others_aligned and reduce(or_, own) % 16 == 0
        return replace(self, grads=grads, aligned=aligned, keep=keep)

    def run(self, lr: Number, *, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        """Updates parameters and state in place; where found_inf is not 0, nothing changes."""
        device = self.device
        if isinstance(lr, Tensor) and lr.device == device:
            source = lr
        else:
            self._set_lr(float(lr))
            source = self.lr_on_device
        scale = None if grad_scale is None else grad_scale.to(device, non_blocking=True)
        stop = None if found_inf is None else found_inf.to(device, non_blocking=True)
        if device.type == "cuda" and torch.cuda.current_device() != device.index:
            with torch.cuda.device(device):
                self._launch(source, scale, stop)
        else:
            self._launch(source, scale, stop)

    def _set_lr(self, lr: float) -> None:
        if lr == self.lr:
            return
        pinned = _page_locked(_constants(self.rule, lr), self.device)
        self.constants = pinned.to(self.device, non_blocking=True)
        self.lr_on_device = self.constants[_LR:]
        self.keep = (*self.keep[:3], pinned, *self.keep[4:])
        self.lr = lr

    def _launch(self, lr: Tensor, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        scale = lr if grad_scale is None else grad_scale
        stop = lr if found_inf is None else found_inf
        key = (lr.dtype, scale.dtype, stop.dtype, grad_scale is None, found_inf is None, self.aligned)
        kernels = self.kernels.get(key)
        if kernels is None:
            kernels = self._bound(unscale=grad_scale is not None, stopped=found_inf is not None)
            self.kernels[key] = kernels
        factors, row_means, update = kernels
        stream = torch._C._cuda_getCurrentRawStream(self.device.index) if self.device.type == "cuda" else None
        factors.launch(stream, self.table, self.constants, lr, scale, stop, self.factors)
        if self.rows is not None:
            row_means.launch(stream, self.table, self.grads, self.rows)
        if self.chunks.shape[0]:
            update.launch(stream, self.table, self.grads, self.chunks, self.factors)

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
                 moments is not None and moments.gate, rule.slow is not None, decoupled, _FACTORS_BLOCK),
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


class BoundKernel:
    """A kernel with its grid and last arguments; later launches skip Triton's look-up of the binary.

    That needs tensors whose dtypes stay, and whose addresses stay aligned where the kernel looks at that.
    """

    def __init__(self, function: Any, programs: int, last: tuple[Any, ...], *, num_warps: int) -> None:
        self._function = function
        self._grid = (programs, 1, 1)
        self._last = last
        self._num_warps = num_warps
        self._launch: Any = None

    def launch(self, stream: int | None, *tensors: Tensor) -> None:
        """Launches on the current stream, whose handle is ``stream``."""
        if self._launch is None:
            binary = self._function[self._grid](*tensors, *self._last, num_warps=self._num_warps)
            if binary is not None:  # Triton's interpreter has none
                self._launch = binary[self._grid]
        else:
            # of an address, unlike of a tensor, Triton doesn't ask the driver where it lies
            self._launch(*map(_data_ptr, tensors), *self._last, stream=stream)


def _addresses(values: Sequence[int]) -> Tensor:
    """int64, on the host."""
    return torch.frombuffer(array("q", values), dtype=torch.int64)


def _host_table(tensors: GroupTensors) -> Tensor:
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
            table[:, column] = _addresses([t.data_ptr() for t in members])
    table[:, _ELEMENTS] = _addresses([p.numel() for p in tensors.params])
    return table


def _row_tables(tensors: GroupTensors, host: Tensor, row_lengths: list[int]) -> tuple[Tensor, Tensor]:
    """(tensor, row) pairs, and room for the means; fills their columns of the host table."""
    device, dtype = tensors.params[0].device, compute_dtype(tensors.params[0])
    counts = [p.numel() // length if length else 0 for p, length in zip(tensors.params, row_lengths, strict=True)]
    means = torch.empty(sum(counts), dtype=dtype, device=device)
    first = 0
    for i, count in enumerate(counts):
        if count:
            host[i, _MEANS] = means.data_ptr() + first * means.element_size()
            host[i, _ROW_LENGTH] = row_lengths[i]
        first += count
    return _pairs(counts), means


def _pairs(counts: Sequence[int]) -> Tensor:
    """(i, j) for every i and every j below counts[i], int32."""
    lengths = torch.tensor(counts, dtype=torch.int64)
    owners = torch.repeat_interleave(torch.arange(len(counts)), lengths)
    firsts = torch.cumsum(lengths, 0) - lengths
    return torch.stack([owners, torch.arange(len(owners)) - firsts[owners]], dim=1).to(torch.int32)


def _constants(rule: UpdateRule, lr: float) -> Tensor:
    """The rule's constants in the order in which ``factors_kernel`` reads them, float64."""
    values = [0.0] * (_LR + 1)
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
    values[_LR] = lr
    return torch.tensor(values, dtype=torch.float64)


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0.0 else -math.inf


def _aligned(host_table: Tensor) -> bool:
    """Whether all elements' addresses allow 16-byte accesses."""
    return not bool((host_table[:, [_THETA, _DEMA, _EXP_AVG, _EXP_AVG_SQ, _SLOW]] % 16).any())


def _page_locked(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory() if device.type == "cuda" else tensor
