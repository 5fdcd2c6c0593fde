"""Launches the kernels by Triton's own code onto a driver that remembers launches. Run by test_kernels.py.

A program of its own, because the stub must be the process's libcuda from the start. With ``--time`` it prints the
host's microseconds a launch, less the driver's.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from admeta import kernels
from admeta.launcher import BoundKernel, launches_are_hooked

STREAM = 7


def pretend_a_card() -> None:
    replaced: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: (9, 0),
    }
    for name, function in replaced.items():
        setattr(torch.cuda, name, function)
    torch._C._cuda_getCurrentRawStream = lambda _: STREAM


class Driver:
    def __init__(self) -> None:
        last_launch = ctypes.CDLL("libcuda.so.1").last_launch
        last_launch.restype = ctypes.POINTER(ctypes.c_uint64 * 8)
        self._seen = last_launch().contents

    def count(self) -> int:
        return int(self._seen[0])

    def last(self) -> list[int]:
        """Programs, threads, stream, function, first three arguments."""
        return list(self._seen)[1:]


def bound() -> list[tuple[BoundKernel, tuple[torch.Tensor, ...]]]:
    table, grads = torch.zeros(7, 9, dtype=torch.int64), torch.zeros(7, dtype=torch.int64)
    constants, factors = torch.zeros(20, dtype=torch.float64), torch.zeros(7, 16, dtype=torch.float64)
    chunks, lr = torch.zeros(8, 2, dtype=torch.int32), constants[19:]
    f32, on, off = tl.float32, True, False
    return [
        (
            BoundKernel(
                kernels.factors_kernel, 2, (7, f32, off, off, on, on, on, off, off, off, on, off, 64), num_warps=2
            ),
            (table, constants, lr, lr, lr, factors),
        ),
        (
            BoundKernel(
                kernels.update_kernel,
                8,
                (f32, f32, f32, off, off, off, off, off, off, on, off, on, off, off, on, on, 1024),
                num_warps=4,
            ),
            (table, grads, chunks, factors),
        ),
    ]


def microseconds(function: Callable[[], object]) -> float:
    times = []
    for _ in range(100):
        begin = time.perf_counter()
        for _ in range(100):
            function()
        times.append((time.perf_counter() - begin) * 1e4)
    return min(times)


def check(driver: Driver, kernel: BoundKernel, tensors: tuple[torch.Tensor, ...]) -> None:
    begin = driver.count()
    kernel.launch(STREAM, tensors)
    first = driver.last()
    kernel.launch(STREAM, tensors)
    assert driver.count() == begin + 2
    call, arguments = kernel.fixed(STREAM, tensors)
    assert driver.count() == begin + 2, "telling what to call launches nothing"
    assert call.__name__ == "launch", f"triton {triton.__version__}: its compiled launcher wasn't found"
    call(*arguments)
    assert driver.count() == begin + 3
    assert driver.last() == first
    assert first[2] == STREAM
    assert first[4:] == [t.data_ptr() for t in tensors[:3]]
    if "--time" in sys.argv:
        by_triton = microseconds(lambda: kernel.launch(STREAM, tensors))
        print(f"{by_triton:.2f} µs by Triton's way, {microseconds(lambda: call(*arguments)):.2f} µs fixed")  # noqa: T201


def check_hooks(driver: Driver, kernel: BoundKernel, tensors: tuple[torch.Tensor, ...]) -> None:
    seen: list[object] = []
    assert not launches_are_hooked()
    triton.knobs.runtime.launch_enter_hook.add(seen.append)
    assert launches_are_hooked()
    kernel.launch(STREAM, tensors)
    assert len(seen) == 1


def main() -> None:
    pretend_a_card()
    driver, found = Driver(), bound()
    for kernel, tensors in found:
        check(driver, kernel, tensors)
    check_hooks(driver, *found[0])


if __name__ == "__main__":
    main()
