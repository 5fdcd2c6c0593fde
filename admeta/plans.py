"""When a group's fused launches can be used again, and what to do about tensors no flat index can walk.

Owns: FusedPlan and PlanCache. A step whose parameters, gradients, state and options are where they were finds its
plan ready; new gradient addresses cost one small copy to the device; anything else makes a new plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor

from admeta.coefficients import Number
from admeta.fused import Launch
from admeta.rule import UpdateRule
from admeta.state import Changes, WatchedState
from admeta.tensors import PLAIN_TYPES, GroupTensors, centralized, is_distributed, local_grad, local_view

__all__ = ["FusedPlan", "PlanCache"]

_data_ptr: Callable[[Tensor], int] = Tensor.data_ptr


def _local_address(tensor: Tensor) -> int:
    return local_view(tensor).data_ptr()


@dataclass
class FusedPlan:
    """Launches for one group, and what must be unchanged for them to hold.

    Attributes:
        launches: one for each device and combination of dtypes.
        options: the group's options but the learning rate.
        plain: all are plain real tensors, whose own address is the storage's.
        param_addresses, grad_addresses: of the parameters that have a gradient, in order.
        grad_forms: (dtype, strides) of their gradients.
        copies_back: (target, source) to copy after the launches.
        copies: whatever had to be copied for one index to walk it; a plan with copies serves one step.
    """

    launches: list[Launch]
    options: tuple[object, ...]
    plain: bool
    param_addresses: list[int]
    grad_addresses: list[int]
    grad_forms: list[tuple[torch.dtype, tuple[int, ...]]]
    copies_back: list[tuple[Tensor, Tensor]]
    copies: GroupTensors | None

    @property
    def reusable(self) -> bool:
        """Whether the plan holds as long as addresses do."""
        return self.copies is None

    @classmethod
    def of(cls, raw: GroupTensors, rule: UpdateRule, options: tuple[object, ...]) -> FusedPlan:
        """Makes the plan of a group's parameters with a gradient, their gradients and state."""
        views = _walkable(raw, rule)
        tensors = views.tensors
        buckets: dict[tuple[object, ...], list[int]] = {}
        for i, (p, g, s) in enumerate(zip(tensors.params, tensors.grads, tensors.steps, strict=True)):
            buckets.setdefault((p.device, p.dtype, g.dtype, s.dtype), []).append(i)
        plain = all(type(t) in PLAIN_TYPES and not t.is_complex() for t in chain(raw.params, raw.grads))
        address = _data_ptr if plain else _local_address
        return cls(
            launches=[
                Launch.of(tensors.subset(members), members, rule, row_lengths=[views.row_lengths[i] for i in members])
                for members in buckets.values()
            ],
            options=options,
            plain=plain,
            param_addresses=list(map(address, raw.params)),
            grad_addresses=list(map(address, raw.grads)),
            grad_forms=[(g.dtype, g.stride()) for g in raw.grads],
            copies_back=views.copies_back,
            copies=tensors if views.copied else None,
        )

    def renewed(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], options: tuple[object, ...]
    ) -> FusedPlan | None:
        """The plan for another step; None where more than the gradients' addresses changed.

        Args:
            params: the group's parameters that have a gradient, in order.
            grads: their gradients.
            options: the group's options but the learning rate.
        """
        if self.options != options or len(grads) != len(self.grad_addresses):
            return None
        address = _data_ptr if self.plain else _local_address
        try:
            addresses = list(map(address, grads))
        except RuntimeError:  # sparse gradients have no address; making a new plan says so
            return None
        if list(map(address, params)) != self.param_addresses:
            return None
        if addresses == self.grad_addresses:
            return self
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


class PlanCache:
    """The plans of an optimizer's groups, by their position."""

    def __init__(self) -> None:
        self._plans: dict[int, FusedPlan] = {}
        self._captured: list[FusedPlan] = []
        self._changes = Changes()
        self._watched: list[WatchedState] = []
        self._sampled: list[Tensor] = []
        self._sampled_addresses: list[int] = []

    def __contains__(self, index: int) -> bool:
        return index in self._plans

    def clear(self) -> None:
        """Forgets all plans, but those of captured graphs, which go on reading their tables."""
        self._plans.clear()

    def drop_stale(self, state: Mapping[Tensor, dict[str, Any]]) -> None:
        """Forgets all plans if a state tensor was replaced or moved since they were made.

        A replaced tensor is always noticed; one moved under its name (``tensor.data = …``) if it is among those
        of the first or last parameter, as when a whole optimizer is moved.
        """
        if not self._plans:
            return
        current = (
            not self._changes.seen
            and len(state) == len(self._watched)
            and all(map(is_, state.values(), self._watched))
            and list(map(_data_ptr, self._sampled)) == self._sampled_addresses
        )
        if not current:
            self._plans.clear()

    def renewed(
        self, index: int, params: Sequence[Tensor], grads: Sequence[Tensor], options: tuple[object, ...]
    ) -> FusedPlan | None:
        """The group's plan if it can be used for this step."""
        plan = self._plans.get(index)
        if plan is None:
            return None
        plan = plan.renewed(params, grads, options)
        if plan is not None:
            self._plans[index] = plan
        return plan

    def add(self, index: int, plan: FusedPlan, state: dict[Tensor, dict[str, Any]]) -> None:
        """Keeps a new plan, and watches the optimizer's state from here on."""
        if not plan.reusable:
            self._plans.pop(index, None)
            return
        self._plans[index] = plan
        for param, values in list(state.items()):
            if not isinstance(values, WatchedState):
                state[param] = WatchedState(values, self._changes)
        self._watched = [values for values in state.values() if isinstance(values, WatchedState)]
        ends = (self._watched[0], self._watched[-1])
        self._sampled = [t for values in ends for t in values.values() if type(t) is Tensor]
        self._sampled_addresses = list(map(_data_ptr, self._sampled))
        self._changes.seen = False

    def keep_for_graph(self, plan: FusedPlan) -> FusedPlan:
        """A plan that no later step changes: the graph being captured reads its tables at every replay."""
        self._captured.append(plan.copy())
        return self._captured[-1]


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
