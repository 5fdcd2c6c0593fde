"""The studies of studies/reproduction, and a tiny form of each."""

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


def tiny(definition: dict[str, Any], *, model: str | None = None, epochs: int = 3) -> dict[str, Any]:
    """The same task and optimizers, two trials each and two or three seeds, on a processor: minutes on little data.

    Args:
        model: of text tasks, in place of the study's.
    """
    raw = definition["task"]
    small = {"name": raw["name"], "model": raw["model"], "epochs": epochs, "schedule": raw["schedule"]}
    match raw["name"]:
        case "cifar10":
            small |= {"model": "resnet20", "batch_size": 16}
        case "gpt":
            small |= {"model": "nano", "batch_size": 4, "data_dir": raw["data_dir"], "context": 32}
            small |= {"tokens_per_epoch": 512}
        case _:
            small |= {"model": model or raw["model"], "batch_size": 8, "max_length": 64}
    trials = min(2, definition["budget"]["trials_per_optimizer"])
    return {
        **definition,
        "name": f"{definition['name']}-tiny",
        "task": small,
        "pruner": {"name": "none"},
        "budget": {"trials_per_optimizer": trials},
        "confirm": {**definition["confirm"], "seeds": [0, 1], "max_seeds": 3},
        "resources": {"cpus": 1, "gpus": 0},
        "checkpoint_every_s": 0,
    }
