"""Every test of the tasks has a cache folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.engine.task import release_data


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    release_data()
