"""A trial's settings as Python that constructs the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_python(optimizer: str, settings: Mapping[str, Any]) -> str:
    """Code that makes the optimizer of these settings for a `model`, by its registered name; lists become tuples."""
    arguments = "".join(f"    {name}={_literal(value)},\n" for name, value in settings.items())
    return (
        f"from admeta import create\n\noptimizer = create(\n    {optimizer!r},\n    model.parameters(),\n{arguments})\n"
    )


def _literal(value: Any) -> str:
    return repr(tuple(value) if isinstance(value, list) else value)
