"""The whole suite: the order of its tests, and kernels that run without a card too."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its workers; tables would be folded
os.environ.setdefault("RAY_worker_niceness", "0")  # Rays of tests: Ray's 15 would wait for the tests of other processes

# Where there is no card `fused=True` runs through Triton's interpreter. Triton's own functions read this as they are
# imported, so it is set before anything can import them.
if find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_SLOW = ("slow", "ray", "browser")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the others have the other processors: threads would wait for one another


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Without garbage collection, a quarter of its time: what is imported stays. Later collections leave it out."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process: fast tests first, so that what is simply broken shows soon.

    Several: files with slow tests first, so that others run beside them while they wait, and what is left for the end
    is short.
    """
    slow = [item for item in items if any(item.get_closest_marker(name) for name in _SLOW)]
    if "PYTEST_XDIST_WORKER" in os.environ:
        files = {item.path for item in slow}
        items.sort(key=lambda item: item.path not in files)
    else:
        last = {*slow, *(item for item in items if item.get_closest_marker("gpu"))}
        items.sort(key=lambda item: item in last)


@pytest.fixture(scope="module", autouse=True)
def _own_process() -> Iterator[None]:
    """A module's variables and signal handlers, and those that the product and Ray set in its process, end with it.

    Services that later modules start would inherit the variables.
    """
    before = _environment()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for name in _environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    for number, handler in handlers.items():
        if handler is not None:  # what was there before Python
            signal.signal(number, handler)


def _environment() -> dict[str, str]:
    """Without what pytest, Ray and torch's compiler set once a process."""
    kept = ("PYTEST_", "RAY_AUTH_", "_TORCHINDUCTOR_")
    return {name: value for name, value in os.environ.items() if not name.startswith(kept)}
