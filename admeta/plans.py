"""When a group's fused launches can be used again, and what to do about tensors no flat index can walk.

Owns: FusedPlan. A step whose parameters, gradients, state and options are where they were finds its plan ready; new
gradient addresses cost one small copy to the device; anything else makes a new plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from admeta.coefficients import Number
from admeta.fused import Launch
from admeta.rule import UpdateRule
from admeta.tensors import PLAIN_TYPES, GroupTensors, centralized, is_distributed, local_grad, local_view

__all__ = ["FusedPlan", "addresses_of"]

_data_ptr: Callable[[Tensor], int] = torch.Tensor.data_ptr


def addresses_of(tensors: Sequence[Tensor]) -> list[int]:
    """Addresses of the storage that this process updates."""
    if all(type(t) in PLAIN_TYPES for t in tensors):
        return list(map(_data_ptr, tensors))
    return [local_view(t).data_ptr() for t in tensors]


@dataclass
class FusedPlan:
    """Launches for one group, and what must be unchanged for them to hold.

    Attributes:
        launches: one for each device and combination of dtypes.
        options: the group's options but the learning rate.
        param_addresses, grad_addresses: of the parameters that have a gradient, in order.
        grad_forms: (dtype, strides) of their gradients.
        copies_back: (target, source) to copy after the launches.
        reusable: no tensor had to be copied first, so the plan holds as long as addresses do.
    """

    launches: list[Launch]
    options: tuple[object, ...]
    param_addresses: list[int]
    grad_addresses: list[int]
    grad_forms: list[tuple[torch.dtype, tuple[int, ...]]]
    copies_back: list[tuple[Tensor, Tensor]]
    reusable: bool

    @classmethod
    def of(cls, raw: GroupTensors, rule: UpdateRule, options: tuple[object, ...]) -> FusedPlan:
        """Makes the plan of a group's parameters with a gradient, their gradients and state."""
        views = _walkable(raw, rule)
        tensors = views.tensors
        buckets: dict[tuple[object, ...], list[int]] = {}
        for i, (p, g, s) in enumerate(zip(tensors.params, tensors.grads, tensors.steps, strict=True)):
            buckets.setdefault((p.device, p.dtype, g.dtype, s.dtype), []).append(i)
        return cls(
            launches=[
                Launch.of(tensors.subset(members), members, rule, row_lengths=[views.row_lengths[i] for i in members])
                for members in buckets.values()
            ],
            options=options,
            param_addresses=addresses_of(raw.params),
            grad_addresses=addresses_of(raw.grads),
            grad_forms=[(g.dtype, g.stride()) for g in raw.grads],
            copies_back=views.copies_back,
            reusable=not views.copied,
        )

    def holds(self, params: Sequence[Tensor], options: tuple[object, ...]) -> bool:
        """Whether parameters (those with a gradient, in order) and options are what the plan was made for."""
        return self.options == options and addresses_of(params) == self.param_addresses

    def for_grads(self, grads: Sequence[Tensor], addresses: list[int]) -> FusedPlan | None:
        """The plan for gradients of the same parameters at other addresses; None if their form changed too."""
        if [(g.dtype, g.stride()) for g in grads] != self.grad_forms:
            return None
        launches = [launch.with_grads(addresses) for launch in self.launches]
        return replace(self, launches=launches, grad_addresses=addresses)

    def copy(self) -> FusedPlan:
        """A plan of its own on the same tables, for a captured graph to keep."""
        return replace(self, launches=[replace(launch) for launch in self.launches])

    def run(self, lr: Number, *, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        """Updates parameters and state in place; where found_inf is not 0, nothing changes."""
        for launch in self.launches:
            launch.run(lr, grad_scale=grad_scale, found_inf=found_inf)
        for target, source in self.copies_back:
            target.copy_(source)


def _walkable(raw: GroupTensors, rule: UpdateRule) -> _Walkable:
    result = _Walkable()
    for i, param in enumerate(raw.params):
        theta, grad = local_view(param), local_grad(raw.grads[i], param)
        strides = theta.stride() if _is_dense(theta) else torch.empty_like(theta).stride()
        length = 0
        if rule.centralize and param.ndim > 1 and theta.numel() > 0:
            if param.is_complex() or is_distributed(param) or strides[0] * theta.shape[0] != theta.numel():
                grad = centralized(grad, param)
                result.copied = True
            else:
                length = theta.numel() // theta.shape[0]
        result.row_lengths.append(length)
        result.add("params", theta, strides, written=True)
        result.add("grads", grad, strides, written=False)
        for name in ("demas", "exp_avgs", "exp_avg_sqs", "slows"):
            members = getattr(raw, name)
            if members:
                result.add(name, local_view(members[i]), strides, written=True)
        result.tensors.steps.append(raw.steps[i])
    return result


@dataclass
class _Walkable:
    """Views in which one index walks a parameter, its gradient and its state.

    Attributes:
        row_lengths: elements of a row whose mean the kernel subtracts, 0 where it doesn't.
        copies_back: (target, source) to copy after the update.
        copied: whether any tensor is a copy, so that the views serve one step alone.
    """

    tensors: GroupTensors = field(default_factory=GroupTensors)
    row_lengths: list[int] = field(default_factory=list)
    copies_back: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    copied: bool = False

    def add(self, name: str, tensor: Tensor, strides: tuple[int, ...], *, written: bool) -> None:
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
