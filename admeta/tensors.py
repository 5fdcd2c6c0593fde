"""The tensors of one parameter group that an update works on.

Owns: how parameters are seen by the update (real views of complex ones, local shards of distributed ones, the
dtype of arithmetic and state). Does not own: the update.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "PLAIN_TYPES",
    "GroupTensors",
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


def state_dtype(param: Tensor) -> torch.dtype:
    """Dtype of state of the parameter's shape: at least float32, complex for complex parameters."""
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
