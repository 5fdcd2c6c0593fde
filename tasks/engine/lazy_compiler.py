"""Keeps torch from importing its compiler before something is compiled: two seconds of processor in each process.

torch imports `torch._dynamo`, and sympy and more with it, as the first optimizer is made and stepped, though these only
ask not to be traced. A stand-in answers that: nothing is traced while the compiler is not there. Whatever else is asked
of it, `torch.compile` or an import of a part, imports the compiler, which takes the stand-in's place.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch

NAME = "torch._dynamo"
_exchange = threading.Lock()


def defer_compiler() -> None:
    """Put the stand-in in the compiler's place, unless it has been imported."""
    if NAME not in sys.modules:
        sys.modules[NAME] = stand_in = _StandIn(NAME, __doc__)
        torch._dynamo = stand_in


class _StandIn(ModuleType):
    """What an optimizer asks of the compiler, without the compiler. Its attributes are those of `torch._dynamo`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # of one that looks at all modules, such as `inspect`
            raise AttributeError(name)
        return getattr(_compiler(), name)

    def graph_break(self, msg: str = "") -> None:
        """Nothing: no graph is being traced."""

    def is_compiling(self) -> bool:
        """Nothing is."""
        return False

    def disable(self, fn: Any = None, *args: Any, **options: Any) -> Any:
        """The function, which is not traced either once the compiler is there."""
        if not isinstance(fn, FunctionType):
            return _compiler().disable(fn, *args, **options)
        untraced: Callable[..., Any] | None = None

        @functools.wraps(fn)
        def call(*call_args: Any, **call_options: Any) -> Any:
            nonlocal untraced
            if sys.modules.get(NAME) is self:
                return fn(*call_args, **call_options)
            if untraced is None:
                untraced = _compiler().disable(fn, *args, **options)
            return untraced(*call_args, **call_options)

        return call


def _compiler() -> Any:
    """The compiler, imported in place of the stand-in where that is still there."""
    with _exchange:
        if isinstance(sys.modules.get(NAME), _StandIn):
            del sys.modules[NAME]
            del torch._dynamo
    return importlib.import_module(NAME)  # not under the lock: Python finds out where imports wait for each other
