"""State dictionaries that say when a tensor of theirs is replaced, so that nobody has to look at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Changes", "WatchedState"]


class Changes:
    """Whether any watched dictionary changed since it was last reset."""

    def __init__(self) -> None:
        self.seen = False


class WatchedState(dict[str, Any]):
    """A parameter's state. It is copied and pickled as the plain dict it stands for.

    In-place changes of a tensor are none of its business; putting another tensor in its place is.
    """

    def __init__(self, state: dict[str, Any], changes: Changes) -> None:
        super().__init__(state)
        self._changes = changes

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (), None, None, iter(self.items()))


def _noting(name: str) -> Callable[..., Any]:
    plain = getattr(dict, name)

    def method(self: WatchedState, *args: Any, **kwargs: Any) -> Any:
        self._changes.seen = True
        return plain(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"dict.{name}, noted as a change."
    return method


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(WatchedState, _name, _noting(_name))
