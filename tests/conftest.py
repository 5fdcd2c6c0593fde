"""The whole suite: fast tests first, so that what is simply broken shows soon; kernels run without a card too."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its workers; tables would be folded

# Where there is no card `fused=True` runs through Triton's interpreter. Triton's own functions read this as they are
# imported, so it is set before anything can import them.
if find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_LATER = ("slow", "ray", "browser", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by how costly a test's markers are; within that, files keep their order."""
    items.sort(key=lambda item: any(item.get_closest_marker(name) for name in _LATER))
