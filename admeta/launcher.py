"""Launching a Triton kernel again and again at little cost to the host.

Owns: BoundKernel. Does not own: which kernels, and with what (admeta.fused).

Triton's way from a call to the driver takes twice the driver's own time: it specialises on the arguments, looks the
binary up, makes a record for launch hooks and calls them. Each of that is left out only where it can't matter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from torch import Tensor

__all__ = ["BoundKernel", "Call", "launches_are_hooked"]

Call = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and all of its arguments
_data_ptr: Callable[[Tensor], int] = Tensor.data_ptr


@cache
def _triton_runtime() -> Any:
    from triton import knobs

    return knobs.runtime


def launches_are_hooked() -> bool:
    """Whether somebody, a profiler of kernels say, wants to be called around launches."""
    runtime = _triton_runtime()
    before, after = runtime.launch_enter_hook, runtime.launch_exit_hook  # chains, functions or None, by version
    return bool(getattr(before, "calls", before) or getattr(after, "calls", after))


class BoundKernel:
    """A kernel with its grid and last arguments; later launches skip Triton's look-up of the binary.

    That needs tensors whose dtypes stay, and whose addresses stay aligned where the kernel looks at that.
    """

    def __init__(self, function: Any, programs: int, last: tuple[Any, ...], *, num_warps: int) -> None:
        self._function = function
        self._grid = (programs, 1, 1)
        self._last = last
        self._num_warps = num_warps
        self._binary: Any = None
        self._launch: Any = None

    def launch(self, stream: int | None, tensors: Sequence[Tensor]) -> None:
        """Launches on the current stream, whose handle is ``stream``."""
        if self._launch is None:
            self._binary = self._function[self._grid](*tensors, *self._last, num_warps=self._num_warps)
            if self._binary is not None:  # Triton's interpreter has none
                self._launch = self._binary[self._grid]
        else:
            # of an address, unlike of a tensor, Triton doesn't ask the driver where it lies
            self._launch(*map(_data_ptr, tensors), *self._last, stream=stream)

    def fixed(self, stream: int, tensors: Sequence[Tensor]) -> Call:
        """A launch as ``launch`` made before, as the one call that reaches the driver, without hooks.

        It holds as long as the tensors live where they do.
        """
        arguments = (*map(_data_ptr, tensors), *self._last)
        found = _innermost(self._binary.run, self._launch, arguments, stream)
        return found or (partial(self._launch, stream=stream), arguments)


def _innermost(launcher: Any, launch: Callable[..., Any], arguments: tuple[Any, ...], stream: int) -> Call | None:
    """What Triton's launcher would hand to the compiled function inside it; None where there is no such function.

    The function's arguments differ between versions of Triton, so it is replaced for one call that tells them.
    """
    compiled = getattr(launcher, "launch", None)
    if not callable(compiled):
        return None
    thread, seen = threading.get_ident(), []

    def record(*given: Any) -> Any:
        if threading.get_ident() != thread:
            return compiled(*given)
        seen.append(given)
        return None

    try:
        launcher.launch = record
    except AttributeError:
        return None
    try:
        launch(*arguments, stream=stream)
    finally:
        launcher.launch = compiled
    if len(seen) != 1:
        return None
    hooks = (_triton_runtime().launch_enter_hook, _triton_runtime().launch_exit_hook)
    return compiled, tuple(None if any(given is hook for hook in hooks) else given for given in seen[0])
