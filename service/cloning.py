"""A new study from an old one's definition with changes: JSON Merge Patch (RFC 7396)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(definition: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The definition with the changes put in; neither argument changes.

    Args:
        definition: JSON object.
        changes: objects are merged key by key, null takes a key away (its default holds again), anything else, lists
            too, replaces what was there.
    """
    result = dict(definition)
    for key, change in changes.items():
        if change is None:
            result.pop(key, None)
        elif isinstance(change, Mapping):
            old = result.get(key)
            result[key] = merged(old if isinstance(old, Mapping) else {}, change)
        else:
            result[key] = change
    return result
