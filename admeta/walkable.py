"""Tensors in which one flat index walks a parameter, its gradient and its state.

Owns: which tensors the kernels can take as they are, and copies of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from admeta.rule import UpdateRule
from admeta.tensors import GroupTensors, centralized, is_distributed, local_grad, local_view

__all__ = ["Walkable"]


@dataclass
class Walkable:
    """Views of a group's tensors whose elements lie in the same order.

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
    def of(cls, raw: GroupTensors, rule: UpdateRule) -> Walkable:
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
