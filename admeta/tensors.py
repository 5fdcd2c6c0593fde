"""The tensors of one parameter group that an update works on.

Owns: how parameters are seen by the update (real views of complex ones, local shards of distributed ones, views that
one flat index walks, the dtype of arithmetic and state). Does not own: the update.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from admeta.rule import UpdateRule

__all__ = [
    "PLAIN_TYPES",
    "GroupTensors",
    "StridedViews",
    "centralized",
    "compute_dtype",
    "is_distributed",
    "local_grad",
    "local_view",
    "state_dtype",
    "viewed",
]

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
_ALL_BUT_FIRST = tuple(range(1, 64))  # torch's tensors have at most 64 dimensions
_WIDE = (torch.float64, torch.complex128)


@dataclass
class GroupTensors:
    """Parallel lists over the parameters with a gradient; a state list is empty where the rule has no such state."""

    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    demas: list[Tensor] = field(default_factory=list)
    exp_avgs: list[Tensor] = field(default_factory=list)
    exp_avg_sqs: list[Tensor] = field(default_factory=list)
    slows: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)

    def subset(self, indices: list[int]) -> GroupTensors:
        """The same lists for some of the parameters."""

        def pick(tensors: list[Tensor]) -> list[Tensor]:
            return [tensors[i] for i in indices] if tensors else []

        return GroupTensors(
            pick(self.params),
            pick(self.grads),
            pick(self.demas),
            pick(self.exp_avgs),
            pick(self.exp_avg_sqs),
            pick(self.slows),
            pick(self.steps),
        )


def compute_dtype(param: Tensor) -> torch.dtype:
    """Dtype of the arithmetic: float64 for float64 parameters, float32 for all others (real or complex)."""
    return torch.float64 if param.dtype in _WIDE else torch.float32


def state_dtype(param: Tensor, wanted: str = "float32") -> torch.dtype:
    """Dtype of state of the parameter's shape: bfloat16 if wanted, else at least float32, complex for complex ones."""
    if wanted == "bfloat16":
        return torch.bfloat16
    if param.is_complex():
        return torch.complex128 if param.dtype in _WIDE else torch.complex64
    return compute_dtype(param)


def is_distributed(tensor: Tensor) -> bool:
    """Whether it is a DTensor, without importing torch.distributed.tensor (two seconds) where nobody else did."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_view(tensor: Tensor) -> Tensor:
    """The storage this process updates: the local shard of a DTensor, the real view of a complex tensor."""
    if is_distributed(tensor):
        tensor = tensor.to_local()  # type: ignore[attr-defined]
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def local_grad(grad: Tensor, param: Tensor) -> Tensor:
    """The gradient of ``local_view(param)``; a distributed gradient is brought to its parameter's placements."""
    if is_distributed(grad) and is_distributed(param):
        placements = param.placements  # type: ignore[attr-defined]
        if grad.placements != placements:  # type: ignore[attr-defined]
            grad = grad.redistribute(placements=placements)  # type: ignore[attr-defined]
    return local_view(grad)


def centralized(grad: Tensor, param: Tensor) -> Tensor:
    """``grad``, local view of the gradient of ``param``, less its mean by row, in the arithmetic's dtype.

    Vectors and scalars are returned as they are. Real and imaginary parts are centralised apart.

    Raises:
        RuntimeError: a distributed parameter is sharded over another dimension than the first.

    Source: Yong et al., Gradient Centralization, ECCV 2020.
    """
    if param.ndim < 2:
        return grad
    if is_distributed(param) and any(p.is_shard() and p.dim != 0 for p in param.placements):  # type: ignore[attr-defined]
        raise RuntimeError(
            f"gradient centralisation needs whole rows, but a parameter has placements {param.placements}; "  # type: ignore[attr-defined]
            "shard it over dimension 0, or set centralize=False"
        )
    grad = grad.to(compute_dtype(param))
    return grad - grad.mean(dim=_ALL_BUT_FIRST[: param.ndim - 1], keepdim=True)


def viewed(raw: GroupTensors, *, centralize: bool) -> GroupTensors:
    """What the update works on: local shards, real views; gradients centralised if wanted."""
    if all(type(p) in PLAIN_TYPES and not p.is_complex() for p in raw.params):
        if centralize:
            pairs = zip(raw.grads, raw.params, strict=True)
            raw.grads = [centralized(g, p) if p.ndim > 1 else g for g, p in pairs]
        return raw
    grads = [local_grad(grad, param) for grad, param in zip(raw.grads, raw.params, strict=True)]
    if centralize:
        grads = [centralized(g, p) for g, p in zip(grads, raw.params, strict=True)]
    return GroupTensors(
        [local_view(p) for p in raw.params],
        grads,
        [local_view(j) for j in raw.demas],
        [local_view(m) for m in raw.exp_avgs],
        [local_view(v) for v in raw.exp_avg_sqs],
        [local_view(s) for s in raw.slows],
        raw.steps,
    )


@dataclass
class StridedViews:
    """Views of a group's tensors in which one flat index walks a parameter, its gradient and its state.

    Attributes:
        row_lengths: elements of a row whose mean the kernel subtracts, 0 where it doesn't.
        copies_back: (target, source) to copy after the update.
        copied: whether any tensor is a copy, so that the views serve one step alone.
    """

    tensors: GroupTensors = field(default_factory=GroupTensors)
    row_lengths: list[int] = field(default_factory=list)
    copies_back: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    copied: bool = False

    @classmethod
    def of(cls, raw: GroupTensors, rule: UpdateRule) -> StridedViews:
        """Views or copies of the parameters with a gradient, their gradients and state."""
        result = cls()
        for i, param in enumerate(raw.params):
            theta = local_view(param)
            strides = theta.stride() if _is_dense(theta) else torch.empty_like(theta).stride()
            result._add_grad(raw.grads[i], param, theta, strides, rule)
            result._add("params", theta, strides, written=True)
            for name in ("demas", "exp_avgs", "exp_avg_sqs", "slows"):
                members = getattr(raw, name)
                if members:
                    result._add(name, local_view(members[i]), strides, written=True)
            result.tensors.steps.append(raw.steps[i])
        return result

    def _add_grad(self, raw: Tensor, param: Tensor, theta: Tensor, strides: tuple[int, ...], rule: UpdateRule) -> None:
        grad = local_grad(raw, param).resolve_neg()
        if raw.is_neg() or (is_distributed(raw) and raw.placements != param.placements):  # type: ignore[attr-defined]
            self.copied = True
        length = 0
        if rule.centralize and param.ndim > 1 and theta.numel() > 0:
            if param.is_complex() or is_distributed(param) or strides[0] * theta.shape[0] != theta.numel():
                grad = centralized(grad, param)
                self.copied = True
            else:
                length = theta.numel() // theta.shape[0]
        self.row_lengths.append(length)
        self._add("grads", grad, strides, written=False)

    def _add(self, name: str, tensor: Tensor, strides: tuple[int, ...], *, written: bool) -> None:
        """Appends the tensor, or a copy whose elements lie as ``strides`` say."""
        pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
        if any(size > 1 and stride != wanted for size, stride, wanted in pairs):
            source = tensor
            tensor = torch.empty_strided(source.shape, strides, dtype=source.dtype, device=source.device)
            tensor.copy_(source)
            self.copied = True
            if written:
                self.copies_back.append((source, tensor))
        getattr(self.tensors, name).append(tensor)


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, each in a place of its own."""
    expected = 1
    for stride, size in sorted((st, si) for st, si in zip(tensor.stride(), tensor.shape, strict=True) if si > 1):
        if stride != expected:
            return False
        expected *= size
    return True
