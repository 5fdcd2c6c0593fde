"""Sums kept on the device during an epoch, so that no step waits for the host."""

from __future__ import annotations

import torch
from torch import Tensor


class LossMeter:
    """Mean loss of an epoch and the first step whose loss was NaN or infinite; safe inside a captured graph."""

    def __init__(self, device: torch.device) -> None:
        self._sum = torch.zeros((), device=device)
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._first_bad = torch.zeros((), dtype=torch.int64, device=device)
        self._bad_loss = torch.zeros((), device=device)

    def add(self, loss: Tensor) -> None:
        """Count one optimizer step's mean loss, a scalar on the device."""
        self._sum += loss
        self._steps += 1
        first = (self._first_bad == 0) & ~torch.isfinite(loss)
        self._first_bad.copy_(torch.where(first, self._steps, self._first_bad))
        self._bad_loss.copy_(torch.where(first, loss, self._bad_loss))

    def read(self) -> tuple[float, int | None, float]:
        """(mean loss, step of the first bad loss from 1 or None, that loss); waits for the device, and resets."""
        total, steps, first_bad, bad_loss = (
            torch.stack([value.double() for value in (self._sum, self._steps, self._first_bad, self._bad_loss)])
        ).tolist()
        for value in (self._sum, self._steps, self._first_bad, self._bad_loss):
            value.zero_()
        return total / max(1.0, steps), int(first_bad) or None, bad_loss
