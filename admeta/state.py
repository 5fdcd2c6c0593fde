"""A parameter's state: how it is made, checked when loaded, and watched for replaced tensors.

Because of it, a fused step need not check each tensor of the state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from admeta.rule import UpdateRule
from admeta.tensors import state_dtype

if TYPE_CHECKING:
    from admeta.base import RuleOptimizer

__all__ = [
    "Changes", "WatchedState", "WatchedStates", "as_step", "checked_state", "fill_state", "step_is_ready"
]  # fmt: skip

STEP_DTYPE = torch.float64  # float32 would stop to count at 2^24 steps


def as_step(value: Tensor | float) -> Tensor:
    """A step count as the state holds it, from a tensor of any dtype or from a number."""
    return value.to(STEP_DTYPE) if isinstance(value, Tensor) else torch.tensor(float(value), dtype=STEP_DTYPE)


def step_is_ready(step: object, device: torch.device) -> bool:
    """Whether a step count has the state's dtype and lies on ``device``."""
    return isinstance(step, Tensor) and step.dtype == STEP_DTYPE and step.device == device


def fill_state(state: dict[str, Any], param: Tensor, rule: UpdateRule, dtype_name: str) -> None:
    """Makes the state of a parameter before its first update; ``step`` on the host."""
    dtype = state_dtype(param, dtype_name)
    state["step"] = as_step(0.0)
    for name in rule.state_names:
        if name == "slow":
            state[name] = param.to(dtype, copy=True, memory_format=torch.preserve_format)
        else:
            state[name] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)


def checked_state(state_dict: dict[str, Any], optimizer: RuleOptimizer) -> dict[str, Any]:
    """A state dict with the options that older checkpoints lack, and step counts as tensors; its values are shared.

    Raises:
        ValueError: an option or a tensor that the optimizer needs is missing, or there is one that it never has.
    """
    name, defaults = type(optimizer).__name__, optimizer.defaults
    known = {"step", "exp_avg"}
    known |= {state for option, state in _STATE_BY_OPTION.items() if option in defaults}
    groups, state = [], dict(state_dict["state"])
    for loaded in state_dict["param_groups"]:
        later = {key: value for key, value in optimizer.later_options.items() if key in defaults}
        group = {**later, **loaded}
        lacking = sorted(defaults.keys() - group.keys())
        if lacking:
            raise ValueError(
                f"{name} can't load this state: its groups have no option {lacking[0]!r}, so it is another "
                "optimizer's. Load it into that optimizer, or start without it"
            )
        needed = {"step", *optimizer.rule_of(group).state_names}
        for index in loaded["params"]:
            own = state.get(index)
            if not own:
                continue
            wrong = sorted(needed - own.keys()) or sorted(own.keys() - known)
            if wrong:
                has = "no" if wrong[0] in needed else "an unknown"
                raise ValueError(
                    f"{name} can't load this state: parameter {index} has {has} {wrong[0]!r} among "
                    f"{', '.join(sorted(own))}; {name} with these options keeps {', '.join(sorted(needed))}. It is "
                    "another optimizer's, or of a run without dema or slow_step. Start without it"
                )
            state[index] = {**own, "step": as_step(own["step"])}
        groups.append(group)
    return {**state_dict, "state": state, "param_groups": groups}


_STATE_BY_OPTION = {"dema": "dema", "betas": "exp_avg_sq", "slow_step": "slow"}


class Changes:
    """Whether any watched dictionary changed since it was last reset."""

    def __init__(self) -> None:
        self.seen = False


class WatchedState(dict[str, Any]):
    """A parameter's state. It is copied and pickled as the plain dict it stands for.

    It detects that a tensor was replaced, and ignores in-place changes of a tensor.
    """

    def __init__(self, state: Mapping[str, Any], changes: Changes) -> None:
        super().__init__(state)
        self._changes = changes

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (), None, None, iter(self.items()))


class WatchedStates(defaultdict[Tensor, dict[str, Any]]):
    """An optimizer's state, each parameter's watched too. It is copied and pickled as the plain defaultdict."""

    def __init__(self, states: Mapping[Tensor, dict[str, Any]], changes: Changes) -> None:
        super().__init__(dict, states)
        self._changes = changes
        self.watch_all()

    def watch_all(self) -> None:
        """Watches the parameters' state that isn't yet, without noting that as a change."""
        for param, state in self.items():
            if not isinstance(state, WatchedState):
                defaultdict.__setitem__(self, param, WatchedState(state, self._changes))

    def __reduce__(self) -> tuple[Any, ...]:
        return (defaultdict, (dict,), None, None, iter(self.items()))


def _noting(kind: type[Any], name: str) -> Callable[..., Any]:
    plain = getattr(kind, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._changes.seen = True
        return plain(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"{kind.__name__}.{name}, noted as a change."
    return method


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(WatchedState, _name, _noting(dict, _name))
    setattr(WatchedStates, _name, _noting(defaultdict, _name))
