"""When a group's fused launches can be used again.

Owns: FusedPlan and PlanCache. A step whose parameters, gradients, state and options are where they were finds its
plan ready; new gradient addresses cost one small copy to the device; anything else makes a new plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from torch import Tensor

from admeta.coefficients import Number
from admeta.footprint import Change, Footprint, Held, addresses_of, addresses_unchanged
from admeta.fused import Launch
from admeta.rule import UpdateRule
from admeta.state import Changes, WatchedStates
from admeta.tensors import GroupTensors
from admeta.walkable import Walkable

__all__ = ["FusedPlan", "PlanCache"]

_NOT_OPTIONS = frozenset({"params", "param_names", "lr", "initial_lr"})


@dataclass
class _Holding:
    """When to hold on to gradients: where the training loop keeps them anyway, so that no memory is kept for it.

    A loop that drops its gradients before each step would otherwise have two sets of them at its peak. Whether it
    does is told by two of them, seen again ``patience`` times; a wrong guess doubles the patience.
    """

    ends: tuple[int, int] = (0, 0)
    seen: int = 0
    patience: int = 1
    held: Held | None = None

    def look(self, params: Sequence[Tensor], grads: Sequence[Tensor], footprint: Footprint) -> None:
        """Takes note of a step's gradients, which may be new objects."""
        if self.held is not None:
            self.held, self.patience = None, 2 * self.patience
        ends = id(grads[0]), id(grads[-1])
        self.seen = self.seen + 1 if ends == self.ends else 0
        self.ends = ends
        if self.seen >= self.patience and footprint.plain:
            self.held = Held(params, footprint)


@dataclass
class FusedPlan:
    """Launches for one group, and what must be unchanged for them to hold.

    Attributes:
        launches: one for each device and combination of dtypes.
        options: the group's options but the learning rate.
        footprint: where its parameters and gradients lie.
        copies_back: (target, source) to copy after the launches.
        copies: whatever had to be copied for one index to walk it; a plan with copies serves one step.
    """

    launches: list[Launch]
    options: tuple[object, ...]
    footprint: Footprint
    copies_back: list[tuple[Tensor, Tensor]]
    copies: GroupTensors | None
    holding: _Holding = field(default_factory=_Holding)

    @property
    def reusable(self) -> bool:
        """Whether the plan holds as long as addresses do."""
        return self.copies is None

    @classmethod
    def of(cls, raw: GroupTensors, rule: UpdateRule, options: tuple[object, ...]) -> FusedPlan:
        """Makes the plan of a group's parameters with a gradient, their gradients and state."""
        views = Walkable.of(raw, rule)
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
            footprint=Footprint.of(raw.params, raw.grads),
            copies_back=views.copies_back,
            copies=tensors if views.copied else None,
        )

    def untouched(self, params: Sequence[Tensor], options: tuple[object, ...]) -> bool:
        """Whether the plan serves this step as it is, told quickly; False may mean that it takes a closer look.

        Args:
            params: all of the group's, in order.
            options: the group's options but the learning rate.
        """
        held = self.holding.held
        return held is not None and self.options == options and held.unchanged(params)

    def renewed(
        self,
        params: Sequence[Tensor],
        with_grad: Sequence[Tensor],
        grads: Sequence[Tensor],
        options: tuple[object, ...],
    ) -> FusedPlan | None:
        """The plan for another step; None where more than the gradients' addresses changed.

        Args:
            params: all of the group's, in order.
            with_grad: those that have a gradient.
            grads: their gradients.
            options: the group's options but the learning rate.
        """
        if self.options != options:
            return None
        change, addresses = self.footprint.compared(with_grad, grads)
        if change is Change.MORE:
            return None
        plan = self
        if change is Change.GRADIENT_ADDRESSES:
            launches = [launch.with_grads(addresses) for launch in self.launches]
            plan = replace(self, launches=launches, footprint=replace(self.footprint, grads=addresses))
        plan.holding.look(params, grads, plan.footprint)
        return plan

    def copy(self) -> FusedPlan:
        """A plan of its own on the same tables, for a captured graph to keep."""
        return replace(self, launches=[replace(launch) for launch in self.launches], holding=_Holding())

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
        self._sampled_indices: list[int] = []

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
        if self._plans and not self._state_holds(state):
            self._plans.clear()

    def _state_holds(self, state: Mapping[Tensor, dict[str, Any]]) -> bool:
        return (
            state is self._states
            and not self._changes.seen
            and addresses_unchanged(self._sampled, self._sampled_addresses, self._sampled_indices)
        )

    def untouched(
        self, groups: Sequence[dict[str, Any]], state: Mapping[Tensor, dict[str, Any]]
    ) -> Iterable[FusedPlan] | None:
        """Plans of all groups, in order; None where something changed since the last step, or may have."""
        plans = self._plans
        if len(plans) != len(groups) or not self._state_holds(state):
            return None
        for plan, group in zip(plans.values(), groups, strict=True):
            if not plan.untouched(group["params"], self.options_of(group)):
                return None
        return plans.values()

    def renewed(
        self,
        index: int,
        params: Sequence[Tensor],
        with_grad: Sequence[Tensor],
        grads: Sequence[Tensor],
        options: tuple[object, ...],
    ) -> FusedPlan | None:
        """The group's plan if it can be used for this step; arguments as of ``FusedPlan.renewed``."""
        plan = self._plans.get(index)
        if plan is None:
            return None
        plan = plan.renewed(params, with_grad, grads, options)
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
        self._plans = dict(sorted({**self._plans, index: plan}.items()))  # in the groups' order
        if self._states is None or state is not self._states:
            self._states = WatchedStates(state, self._changes)
        self._states.watch_all()
        ends = [next(iter(self._states.values())), next(reversed(self._states.values()))]
        self._sampled = [t for values in ends for t in values.values() if type(t) is Tensor]
        self._sampled_addresses = addresses_of(self._sampled)
        self._sampled_indices = list(range(len(self._sampled)))
        self._changes.seen = False
        return self._states

    def keep_for_graph(self, plan: FusedPlan) -> FusedPlan:
        """A plan that no later step changes: the graph being captured reads its tables at every replay."""
        self._captured.append(plan.copy())
        return self._captured[-1]
