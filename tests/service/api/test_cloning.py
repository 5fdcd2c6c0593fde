"""Merging changes into a definition, by the examples of RFC 7396, appendix A."""

from __future__ import annotations

from typing import Any

import pytest

from service.api.studies import merged


@pytest.mark.parametrize(
    ("old", "changes", "new"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merged(old: dict[str, Any], changes: dict[str, Any], new: dict[str, Any]) -> None:
    before = repr(old)
    assert merged(old, changes) == new
    assert repr(old) == before
