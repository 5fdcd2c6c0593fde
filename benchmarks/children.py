"""Measurements in processes of their own, so that none inherits another's caches, spread over the cards of a host.

A benchmark calls itself with `--child REQUEST` (JSON); the child prints its figures as JSON objects, one a line.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where children run.

    Attributes:
        n_cards: of the host's cards; each child sees one of them.
        at_once: children side by side on each card.
        within_s: seconds from the first child's start after which those still at work are ended.
    """

    n_cards: int = 1
    at_once: int = 1
    within_s: float | None = None


def run_children(module: str, requests: Sequence[Mapping[str, Any]], places: Places) -> list[dict[str, Any]]:
    """All figures, in the order of the requests; printed as they come.

    A child that fails or is ended leaves what it printed before, and an entry {"request", "error"}.
    """
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for _ in range(places.at_once):
        for card in range(places.n_cards):
            free.put(card)
    deadline = None if places.within_s is None else time.monotonic() + places.within_s

    def run(request: Mapping[str, Any]) -> list[dict[str, Any]]:
        card = free.get()
        try:
            return _run_child(module, request, card=card, deadline=deadline)
        finally:
            free.put(card)

    with ThreadPoolExecutor(places.at_once * places.n_cards) as pool:
        return [figures for found in pool.map(run, requests) for figures in found]


def _run_child(module: str, request: Mapping[str, Any], *, card: int, deadline: float | None) -> list[dict[str, Any]]:
    left_s = None if deadline is None else deadline - time.monotonic()
    if left_s is not None and left_s <= 0:
        return [_said({"request": dict(request), "error": "not started: the time was over"})]
    command = [sys.executable, "-m", module, "--data", ".", "--child", json.dumps(request)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": _visible(card)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as child:  # type: ignore[call-overload]
        try:
            output, errors = child.communicate(timeout=left_s)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
            errors = "ended: the time was over"
    found = [_said(json.loads(line)) for line in output.splitlines() if line.startswith('{"')]
    if child.returncode:
        print(f"{request} failed:\n{errors[-2000:]}", file=sys.stderr, flush=True)
        found.append({"request": dict(request), "error": errors.strip()[-300:]})
    return found


def _said(figures: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(figures), flush=True)
    return figures


def _visible(card: int) -> str:
    """The card's name for CUDA, among those that this process sees."""
    seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return seen[card] if card < len(seen) else str(card)
