"""What a look showed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What one look showed; `advice` is empty where all is well."""

    name: str
    found: str
    advice: str = ""
