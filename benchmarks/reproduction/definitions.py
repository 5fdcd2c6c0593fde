"""The studies of studies/reproduction, and a tiny form of each for trying."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from admeta.client import studyfile

FOLDER = Path(__file__).resolve().parents[2] / "studies" / "reproduction"


def names() -> list[str]:
    """All studies, those that go first first."""
    return [definition["name"] for definition in load()]


def load(wanted: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The definitions, by priority.

    Args:
        wanted: names; None: all.
    """
    found = [studyfile.load(path) for path in sorted(FOLDER.glob("*.yaml"))]
    unknown = set(wanted or ()) - {definition["name"] for definition in found}
    if unknown:
        raise SystemExit(f"no study in {FOLDER.name} is named {', '.join(sorted(unknown))}")
    chosen = [definition for definition in found if not wanted or definition["name"] in wanted]
    return sorted(chosen, key=lambda definition: -int(definition.get("priority", 0)))


def tiny(definition: dict[str, Any], *, epochs: int = 3) -> dict[str, Any]:
    """The same optimizers on scikit-learn's digits, two trials each and two seeds: minutes on a processor."""
    trials = min(2, definition["budget"]["trials_per_optimizer"])
    return {
        **{name: value for name, value in definition.items() if name != "objective"},
        "name": f"{definition['name']}-tiny",
        "task": {"name": "digits", "model": "mlp", "epochs": epochs},
        "pruner": {"name": "none"},
        "budget": {"trials_per_optimizer": trials},
        "confirm": {"top_k": 1, "seeds": [0, 1]},
        "resources": {"cpus": 1, "gpus": 0},
        "checkpoint_every_s": 0,
    }
