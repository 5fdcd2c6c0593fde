"""When a group's fused launches can be used again.

Owns: TensorAddresses, FusedPlan and PlanCache. A step whose parameters, gradients, state and options are where they
were finds its plan ready; new gradient addresses or other constants cost a small copy to the device; anything else
makes a new plan. This runs before every eager fused step, once for each tensor: hence ``map`` over C functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from admeta.rule import Number, UpdateRule
from admeta.state import Changes, WatchedStates
from admeta.tensors import PLAIN_TYPES, GroupTensors, StridedViews, local_view

if TYPE_CHECKING:
    from admeta.fused import Launch

__all__ = ["Change", "FusedPlan", "PlanCache", "TensorAddresses"]

_NOT_OPTIONS = frozenset({"params", "param_names", "lr", "initial_lr"})
_data_ptr: Callable[[Tensor], int] = Tensor.data_ptr
_stride: Callable[[Tensor], tuple[int, ...]] = Tensor.stride
_is_neg: Callable[[Tensor], bool] = Tensor.is_neg
_dtype: Callable[[Tensor], torch.dtype] = attrgetter("dtype")


class Change(Enum):
    """What is not as it was at the last step."""

    NONE = auto()
    GRADIENT_ADDRESSES = auto()
    MORE = auto()


def _local_address(tensor: Tensor) -> int:
    return local_view(tensor).data_ptr()


@dataclass(frozen=True)
class TensorAddresses:
    """Where the parameters that have a gradient, in the group's order, and their gradients lay at a step.

    Attributes:
        plain: all are plain real tensors, whose own address is the storage's.
        params, grads: addresses of what this process updates.
        forms: of the gradients, whatever else the kernels' tables depend on.
    """

    plain: bool
    params: list[int]
    grads: list[int]
    forms: tuple[list[object], ...]

    @classmethod
    def of(cls, params: Sequence[Tensor], grads: Sequence[Tensor]) -> TensorAddresses:
        plain = all(type(t) in PLAIN_TYPES and not t.is_complex() for t in (*params, *grads))
        address = _data_ptr if plain else _local_address
        return cls(plain, list(map(address, params)), list(map(address, grads)), _forms(grads, plain=plain))

    def compared(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[Change, list[int]]:
        """What changed, and the addresses of ``grads``."""
        if len(grads) != len(self.grads):
            return Change.MORE, []
        address = _data_ptr if self.plain else _local_address
        try:
            addresses = list(map(address, grads))
            if list(map(address, params)) != self.params or _forms(grads, plain=self.plain) != self.forms:
                return Change.MORE, addresses
        except RuntimeError:  # sparse gradients have no address; making a new plan says so
            return Change.MORE, []
        return (Change.NONE if addresses == self.grads else Change.GRADIENT_ADDRESSES), addresses


def _forms(grads: Sequence[Tensor], *, plain: bool) -> tuple[list[object], ...]:
    """Types, dtypes, strides, lazy signs; of distributed gradients also how they are laid out over processes."""
    types: list[object] = list(map(type, grads))
    placements: list[object] = [] if plain else [getattr(g, "placements", None) for g in grads]
    return types, list(map(_dtype, grads)), list(map(_stride, grads)), list(map(_is_neg, grads)), placements


def _terms(rule: UpdateRule) -> tuple[object, ...]:
    """What of a rule decides the kernels' variant and the state they need; the rest is constants."""
    moments, dema = rule.moments, rule.dema
    return (
        rule.weight_decay != 0, rule.decoupled, rule.maximize, rule.centralize, rule.stochastic, rule.slow is not None,
        dema and dema.h_bias != 0, dema is None,
        moments and (moments.belief, moments.rectify, moments.step_unrectified, moments.gate, moments.raw_eps),
    )  # fmt: skip


@dataclass
class FusedPlan:
    """Launches for one group, and what must be unchanged for them to hold.

    Attributes:
        launches: one for each device and combination of dtypes.
        rule, options: the group's rule, and its options but the learning rate.
        addresses: where its parameters and gradients lie.
        copies_back: (target, source) to copy after the launches.
        copies: whatever had to be copied for one index to walk it; a plan with copies serves one step.
    """

    launches: list[Launch]
    rule: UpdateRule
    options: tuple[object, ...]
    addresses: TensorAddresses
    copies_back: list[tuple[Tensor, Tensor]]
    copies: GroupTensors | None

    @property
    def reusable(self) -> bool:
        """Whether the plan holds as long as addresses do."""
        return self.copies is None

    @classmethod
    def of(cls, raw: GroupTensors, rule: UpdateRule, options: tuple[object, ...]) -> FusedPlan:
        """Makes the plan of a group's parameters with a gradient, their gradients and state."""
        from admeta.fused import Launch

        views = StridedViews.of(raw, rule)
        tensors = views.tensors
        buckets: dict[tuple[object, ...], list[int]] = {}
        for i, (p, g, m, s) in enumerate(
            zip(tensors.params, tensors.grads, tensors.exp_avgs, tensors.steps, strict=True)
        ):
            buckets.setdefault((p.device, p.dtype, g.dtype, m.dtype, s.dtype), []).append(i)
        return cls(
            launches=[
                Launch.of(tensors.subset(members), members, rule, row_lengths=[views.row_lengths[i] for i in members])
                for members in buckets.values()
            ],
            rule=rule,
            options=options,
            addresses=TensorAddresses.of(raw.params, raw.grads),
            copies_back=views.copies_back,
            copies=tensors if views.copied else None,
        )

    def renewed(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> FusedPlan | None:
        """The plan for another step of these parameters; None where more than the gradients' addresses changed."""
        change, addresses = self.addresses.compared(params, grads)
        if change is Change.MORE:
            return None
        if change is Change.NONE:
            return self
        launches = [launch.with_grads(addresses) for launch in self.launches]
        return replace(self, launches=launches, addresses=replace(self.addresses, grads=addresses))

    def with_rule(self, rule: UpdateRule, options: tuple[object, ...]) -> FusedPlan | None:
        """The plan under changed options, as when a schedule moves β1; None where they are more than constants."""
        if _terms(rule) != _terms(self.rule):
            return None
        return replace(self, launches=[launch.with_rule(rule) for launch in self.launches], rule=rule, options=options)

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

    def __init__(self, defaults: Mapping[str, object]) -> None:
        """
        Args:
            defaults: the optimizer's, whose names are a group's options.
        """
        self.options_of: Callable[[dict[str, Any]], tuple[object, ...]] = itemgetter(
            *[name for name in defaults if name not in _NOT_OPTIONS]
        )
        self._plans: dict[int, FusedPlan] = {}
        self._captured: list[FusedPlan] = []
        self._changes = Changes()
        self._states: WatchedStates | None = None
        self._sampled: list[Tensor] = []
        self._sampled_addresses: list[int] = []

    def __contains__(self, index: int) -> bool:
        return index in self._plans

    def clear(self) -> None:
        """Forgets all plans, except those of captured graphs, which continue to read their tables."""
        self._plans.clear()

    def drop_stale(self, state: Mapping[Tensor, dict[str, Any]]) -> None:
        """Forgets all plans if a state tensor was replaced or moved since they were made.

        A replaced tensor is always noticed; one moved under its name (``tensor.data = …``) if it is among those
        of the first or last parameter, as when a whole optimizer is moved.
        """
        if self._plans and not (
            state is self._states
            and not self._changes.seen
            and list(map(_data_ptr, self._sampled)) == self._sampled_addresses
        ):
            self._plans.clear()

    def renewed(
        self,
        index: int,
        group: dict[str, Any],
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        rule_of: Callable[[dict[str, Any]], UpdateRule],
    ) -> FusedPlan | None:
        """The group's plan if it can be used for this step.

        Args:
            index: the group's position.
            group: the group.
            params: its parameters that have a gradient.
            grads: their gradients.
            rule_of: makes the group's rule, where its options changed.
        """
        plan, options = self._plans.get(index), self.options_of(group)
        if plan is not None and plan.options != options:
            plan = plan.with_rule(rule_of(group), options)
        if plan is not None:
            plan = plan.renewed(params, grads)
        if plan is not None:
            self._plans[index] = plan
        return plan

    def add(
        self, index: int, plan: FusedPlan, state: defaultdict[Tensor, dict[str, Any]]
    ) -> defaultdict[Tensor, dict[str, Any]]:
        """Keeps a new plan if it can be used again.

        Returns:
            What the optimizer's state has to become, so that changes of it are noticed from here on.
        """
        if not plan.reusable:
            self._plans.pop(index, None)
            return state
        self._plans[index] = plan
        if self._states is None or state is not self._states:
            self._states = WatchedStates(state, self._changes)
        self._states.watch_all()
        ends = [next(iter(self._states.values())), next(reversed(self._states.values()))]
        self._sampled = [t for values in ends for t in values.values() if type(t) is Tensor]
        self._sampled_addresses = list(map(_data_ptr, self._sampled))
        self._changes.seen = False
        return self._states

    def keep_for_graph(self, plan: FusedPlan) -> FusedPlan:
        """A plan that no later step changes: the graph being captured reads its tables at every replay."""
        self._captured.append(plan.copy())
        return self._captured[-1]
