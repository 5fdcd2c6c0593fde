"""How many trials to put on one card: as many as fit and still raise the total (`resources.gpus: auto`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.config import TaskConfig
from tasks.engine import sharing
from tasks.engine.measure import Measurement, measure_together, total_samples_per_s
from tasks.errors import OutOfMemory

CANDIDATES = (1, 2, 4, 8, 16)
MIN_GAIN = 1.05  # a further doubling must raise the total by this, or each trial slows down for nothing
MEMORY_SHARE = 0.9  # of the card; the rest is left for fragmentation and for an evaluation's peak

Measure = Callable[[int], Sequence[Measurement]]


@dataclass(frozen=True)
class Packing:
    """The choice, and what it rests on.

    Attributes:
        trials_per_gpu: trials at once on one card.
        totals: training samples a second of all trials together, by number of trials tried.
        memory_bytes: device memory of one trial.
        reason: why no more, in words, for the study's record.
    """

    trials_per_gpu: int
    totals: Mapping[int, float]
    memory_bytes: int
    reason: str

    @property
    def gpus(self) -> float:
        """A trial's share of a card, as Ray takes it."""
        return 1.0 / self.trials_per_gpu


def choose_packing(measure: Measure, *, card_bytes: int, at_most: int = CANDIDATES[-1]) -> Packing:
    """Try more and more trials at once until memory or speed says stop.

    Args:
        measure: measures that many trials at once.
        card_bytes: the card's memory.
        at_most: trials that could ever run on one card; no more are tried.

    Raises:
        OutOfMemory: not even one trial fits.
    """
    totals: dict[int, float] = {}
    candidates = [n for n in CANDIDATES if n <= max(1, at_most)]
    best, memory_bytes, reason = 1, 0, f"more than {candidates[-1]} were not tried"
    for n_trials in candidates:
        if n_trials * memory_bytes > MEMORY_SHARE * card_bytes:
            reason = f"{n_trials} trials of {_gib(memory_bytes)} do not fit in {_gib(card_bytes)}"
            break
        try:
            seen = measure(n_trials)
        except OutOfMemory:
            if n_trials == 1:
                raise
            reason = f"{n_trials} trials at once ran out of memory"
            break
        totals[n_trials] = total_samples_per_s(seen)
        memory_bytes = max(memory_bytes, *(one.memory_bytes for one in seen))
        if n_trials > 1 and totals[n_trials] < MIN_GAIN * totals[best]:
            gain = totals[n_trials] / totals[best] - 1
            reason = f"{n_trials} trials at once make {gain:+.0%} of the total of {best}"
            break
        best = n_trials
    return Packing(trials_per_gpu=best, totals=totals, memory_bytes=memory_bytes, reason=reason)


def measure_packing(
    config: TaskConfig,
    *,
    optimizer: str,
    params: Mapping[str, Any],
    data_dir: Path | None = None,
    device: str = "cuda",
    seconds: float = 3.0,
    at_most: int = CANDIDATES[-1],
) -> Packing:
    """`choose_packing` on this machine's card, measured with the study's own task; takes one to two minutes.

    Trials at once run as a study's do: side by side where NVIDIA's multi-process service can be joined, or by turns.
    """
    import torch

    refusals: list[str] = []

    def together(n_processes: int) -> Sequence[Measurement]:
        environment = dict(os.environ)
        if n_processes > 1:
            refusals.append(sharing.join(environment, share=1 / n_processes))
        return measure_together(
            config,
            n_processes=n_processes,
            optimizer=optimizer,
            params=params,
            data_dir=data_dir,
            device=device,
            seconds=seconds,
            environment=environment,
        )

    card_bytes = torch.cuda.get_device_properties(device).total_memory
    packing = choose_packing(together, card_bytes=card_bytes, at_most=at_most)
    told = [packing.reason, *dict.fromkeys(filter(None, refusals))]
    return replace(packing, reason="; ".join(told))


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
