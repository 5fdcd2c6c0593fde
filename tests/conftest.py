"""Order of the whole suite: fast tests first, so that what is simply broken shows within a minute."""

from __future__ import annotations

import os

import pytest

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its workers; tables would be folded

_LATER = ("slow", "ray", "browser", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by how costly a test's markers are; within that, files keep their order."""
    items.sort(key=lambda item: any(item.get_closest_marker(name) for name in _LATER))
