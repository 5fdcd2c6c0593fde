"""What a run's record says of where it ran: device, versions, commit, memory."""

from __future__ import annotations

import platform
import resource
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("admeta-search", "torch", "torchvision", "transformers", "ray", "optuna", "numpy")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Device name, versions of what decides the numbers, and the source's commit where it is a checkout."""
    on_gpu = device.type == "cuda"
    return {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
        "cuda": torch.version.cuda if on_gpu else None,
        "python": platform.python_version(),
        "versions": _versions(),
        "commit": source_commit(),
        "host": platform.node(),
    }


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory held so far: the allocator's peak on a GPU, the process's resident set on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


@lru_cache(maxsize=1)
def source_commit() -> str | None:
    """The commit of the checkout this package runs from; None for an installed copy."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
