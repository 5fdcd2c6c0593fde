"""Models that several tests name in definitions: some cannot be in a cohort, some disturb the others in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def import_path(of: type) -> str:
    """As a definition names it. Tests of other modules ask for it, so that a class that moves takes them along."""
    return f"{of.__module__}:{of.__qualname__}"


class Reading(nn.Module):
    """A model that branches on a value."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x.flatten(1))
        return out if out.sum() > 0 else -out


class Zeros(torch.autograd.Function):
    """Adds the other slots' values times zero, as some kernels of grouped convolutions do."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is needed."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: torch.Tensor) -> tuple[torch.Tensor, int]:
        x = x.movedim(in_dims[0], 0)
        return x + 0 * x.sum(0, keepdim=True), 0


class ZerosInBackward(Zeros):
    """As `Zeros`, of the gradients alone: they are NaN after one step, and the losses in the next."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: torch.Tensor) -> tuple[torch.Tensor, int]:
        x = x.movedim(in_dims[0], 0).clone()
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient + 0 * gradient.sum(0, keepdim=True))
        return x, 0


class Leaking(nn.Module):
    """A model of which what is infinite in one slot makes all others NaN in the same step."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, n_classes)
        self.root = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Zeros.apply(self.score(x) + self.root.sqrt())  # type: ignore[no-untyped-call]
        return out

    def score(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.relu(self.first(x.flatten(1))))
        return out


class LeakingLater(Leaking):
    """As `Leaking`, but in the next step. Where `root` is 0, its gradient is infinite though the loss is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = ZerosInBackward.apply(self.root)  # type: ignore[no-untyped-call]
        return self.score(x) + mixed.sqrt()
