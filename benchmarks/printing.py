"""How benchmarks print what the docs quote: Markdown tables, and shares with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence


def show(title: str, header: str, rows: Sequence[str]) -> None:
    print(f"\n### {title}\n\n| {header} |\n|{'---|' * (header.count('|') + 1)}")
    for row in rows:
        print(f"| {row} |", flush=True)


def wilson(count: float, n: int) -> str:
    """A share in percent ± its standard error."""
    p = count / n
    return f"{100 * p:.1f} ± {100 * math.sqrt(max(p * (1 - p), 1 / n) / n):.1f}"
