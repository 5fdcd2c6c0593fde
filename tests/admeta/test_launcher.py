"""Launches that leave Triton's way out, on stand-ins with the shape of Triton's own objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from admeta.launcher import BoundKernel, launches_are_hooked

Arguments = tuple[Any, ...]


class Launcher:
    """Triton's: adds what the compiled function wants to know; ``nested`` as in newer versions."""

    def __init__(self, reached: list[Arguments], *, nested: bool) -> None:
        self.launch: Callable[..., None] = lambda *arguments: reached.append(arguments)
        self.nested = nested

    def __call__(self, *arguments: Any) -> None:
        grid, stream, hooks, kernel = arguments[0], arguments[1], arguments[2:4], arguments[4:]
        self.launch(*grid, stream, "function", *hooks, *([kernel] if self.nested else kernel))


class Fixed:
    """A launcher in which nothing can be replaced."""

    __slots__ = ("_reached",)

    def __init__(self, reached: list[Arguments]) -> None:
        self._reached = reached

    def __call__(self, *arguments: Any) -> None:
        self._reached.append(arguments)


class Binary:
    def __init__(self, run: Callable[..., None]) -> None:
        self.run = run

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        from triton import knobs

        def runner(*arguments: Any, stream: int) -> None:
            self.run(grid, stream, knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook, *arguments)

        return runner


class Function:
    """A ``triton.jit`` function that is compiled at its first launch."""

    def __init__(self, binary: Binary | None) -> None:
        self.binary = binary
        self.launched: list[Arguments] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Binary | None]:
        def launch(*arguments: Any, num_warps: int) -> Binary | None:
            self.launched.append(arguments)
            return self.binary

        return launch


@pytest.fixture
def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(4), torch.zeros(2)


@pytest.fixture
def hook() -> Iterator[list[Any]]:
    """What a launch hook was called with."""
    from triton import knobs

    seen: list[Any] = []
    knobs.runtime.launch_enter_hook.add(seen.append)
    yield seen
    knobs.runtime.launch_enter_hook.remove(seen.append)


@pytest.mark.parametrize("nested", [False, True])
def test_a_fixed_launch_reaches_the_compiled_function_without_hooks(tensors: Any, nested: bool) -> None:
    reached: list[Arguments] = []
    kernel = BoundKernel(Function(Binary(Launcher(reached, nested=nested))), 3, (True, 64), num_warps=4)
    kernel.launch(7, tensors)
    assert reached == []  # Triton launched it by itself
    kernel.launch(7, tensors)
    call, arguments = kernel.fixed(7, tensors)
    assert len(reached) == 1, "telling what to call launches nothing"
    call(*arguments)
    given = (tensors[0].data_ptr(), tensors[1].data_ptr(), True, 64)
    assert reached[1] == (3, 1, 1, 7, "function", None, None, *([given] if nested else given))
    assert len(reached[0]) == len(reached[1])
    kernel.launch(8, tensors)
    assert reached[2][3] == 8, "the launcher is as it was"


def test_another_threads_launch_is_let_through(tensors: Any) -> None:
    reached: list[Arguments] = []
    launcher = Launcher(reached, nested=False)
    kernel = BoundKernel(Function(Binary(launcher)), 3, (), num_warps=4)
    kernel.launch(7, tensors)

    class Meddling(Launcher):
        def __call__(self, *arguments: Any) -> None:
            other = threading.Thread(target=self.launch, args=("other",))
            other.start()
            other.join()
            super().__call__(*arguments)

    launcher.__class__ = Meddling
    kernel.fixed(7, tensors)
    assert reached == [("other",)]


def test_a_launcher_of_unknown_form_is_called_as_it_is(tensors: Any) -> None:
    reached: list[Arguments] = []
    kernel = BoundKernel(Function(Binary(Fixed(reached))), 3, (True,), num_warps=4)
    kernel.launch(7, tensors)
    call, arguments = kernel.fixed(7, tensors)
    call(*arguments)
    assert [(given[1], given[4:]) for given in reached] == [
        (7, (tensors[0].data_ptr(), tensors[1].data_ptr(), True)),
    ]


def test_the_interpreter_has_no_binary_and_is_called_anew_each_time(tensors: Any) -> None:
    function = Function(None)
    kernel = BoundKernel(function, 3, (True,), num_warps=4)
    kernel.launch(None, tensors)
    kernel.launch(None, tensors)
    assert len(function.launched) == 2


def test_hooks_are_noticed(hook: list[Any]) -> None:
    from triton import knobs

    assert launches_are_hooked()
    knobs.runtime.launch_enter_hook.remove(hook.append)
    assert not launches_are_hooked()
    knobs.runtime.launch_enter_hook.add(hook.append)
