"""The learning rate's factor at each optimizer step, from fractions of the run."""

from __future__ import annotations

import math

from tasks.config import Schedule


def lr_factor(schedule: Schedule, *, step: int, n_steps: int) -> float:
    """The factor on the optimizer's own learning rate for one step.

    Args:
        step: the step about to be made, from 0.
        n_steps: steps in the full budget.

    Returns:
        During warm-up (step + 1) / n_warmup. After it, over the whole run: 1 (constant); `gamma` to the power of the
        milestones passed (multistep); and over what remains after the warm-up, from 1 to `final`: linear or half a
        cosine. Milestones are fractions of the whole run, warm-up included, as the paper's 80 and 120 of 160 are.
    """
    n_warmup = round(schedule.warmup * n_steps)
    if step < n_warmup:
        return (step + 1) / n_warmup
    match schedule.name:
        case "constant":
            return 1.0
        case "multistep":
            return float(schedule.gamma ** sum(step >= round(mark * n_steps) for mark in schedule.milestones))
        case "linear":
            return schedule.final + (1.0 - schedule.final) * (1.0 - _progress(step, n_warmup, n_steps))
        case "cosine":
            wave = 0.5 * (1.0 + math.cos(math.pi * _progress(step, n_warmup, n_steps)))
            return schedule.final + (1.0 - schedule.final) * wave


def _progress(step: int, n_warmup: int, n_steps: int) -> float:
    return (step - n_warmup) / max(1, n_steps - n_warmup)
