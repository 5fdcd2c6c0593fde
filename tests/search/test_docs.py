"""docs/search.md names every sampler, pruner and limit there is, and only tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from search import pruners, samplers
from search.sections import Budget

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "search.md").read_text()
TESTS = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)


@pytest.mark.parametrize(("path", "name"), TESTS, ids=[name for _, name in TESTS])
def test_a_test_that_is_named_exists(path: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), flags=re.MULTILINE)


def test_what_a_study_can_name_is_told() -> None:
    assert len(TESTS) > 40
    for name in (*samplers.NAMES, *pruners.NAMES, *Budget.model_fields):
        assert f"`{name}`" in TEXT
