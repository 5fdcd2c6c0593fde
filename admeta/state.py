"""A parameter's state: what it starts as, and dictionaries that say when a tensor of theirs is replaced.

The latter spare every step a look at each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _get_scalar_dtype

from admeta.rule import UpdateRule
from admeta.tensors import state_dtype

__all__ = ["Changes", "WatchedState", "WatchedStates", "fill_state"]


def fill_state(state: dict[str, Any], param: Tensor, rule: UpdateRule) -> None:
    """Makes the state of a parameter before its first update; ``step`` on the host."""
    dtype = state_dtype(param)

    def zeros() -> Tensor:
        return torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)

    state["step"] = torch.zeros((), dtype=_get_scalar_dtype())
    if rule.dema is not None:
        state["dema"] = zeros()
    state["exp_avg"] = zeros()
    if rule.moments is not None:
        state["exp_avg_sq"] = zeros()
    if rule.slow is not None:
        state["slow"] = param.to(dtype, copy=True, memory_format=torch.preserve_format)


class Changes:
    """Whether any watched dictionary changed since it was last reset."""

    def __init__(self) -> None:
        self.seen = False


class WatchedState(dict[str, Any]):
    """A parameter's state. It is copied and pickled as the plain dict it stands for.

    In-place changes of a tensor are none of its business; putting another tensor in its place is.
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
