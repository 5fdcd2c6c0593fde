"""An optimizer that walks a toy surface, or answers a series of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from tasks.engine.optimizers import build_optimizer
from tasks.engine.seeds import derive_seed
from tasks.synthetic.surfaces import Surface

Place = tuple[float, float, float]
"""First two coordinates and the loss there."""


class Walk:
    """A point on a surface and the optimizer that moves it.

    Args:
        optimizer, params: as a trial names them.
        seed: of the gradient noise, and of the start where none is given.
        start: coordinates to begin at; by default drawn from [−1, 1).
    """

    def __init__(
        self,
        surface: Surface,
        *,
        optimizer: str,
        params: Mapping[str, Any],
        seed: int,
        start: Sequence[float] | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self._surface = surface
        self._noise = torch.Generator().manual_seed(derive_seed(seed, "noise"))
        if start is None:
            generator = torch.Generator().manual_seed(derive_seed(seed, "start"))
            point = torch.rand(surface.dim, generator=generator) * 2.0 - 1.0
        else:
            point = torch.tensor(start)
        self._point = torch.nn.Parameter(point)
        self._optimizer = build_optimizer([("point", self._point)], name=optimizer, params=params)
        self._lrs = [group["lr"] for group in self._optimizer.param_groups]

    def loss(self) -> float:
        return float(self._surface.value(self._point.detach()))

    def place(self) -> Place:
        x, y = self._point.detach()[:2].tolist()
        return x, y, self.loss()

    def step(self, factor: float = 1.0) -> float:
        """One optimizer step at `factor` times the learning rate; returns that rate."""
        for group, lr in zip(self._optimizer.param_groups, self._lrs, strict=True):
            group["lr"] = lr * factor
        self._optimizer.zero_grad()
        loss = self._surface.value(self._point)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._surface.noise_scale is not None and self._point.grad is not None:
            scale = self._surface.noise_scale(self._point.detach())
            self._point.grad += scale * torch.randn(self._surface.dim, generator=self._noise)
        self._optimizer.step()
        return float(self._lrs[0]) * factor

    def state_dict(self) -> dict[str, Any]:
        return {
            "point": self._point.detach().clone(),
            "optimizer": self._optimizer.state_dict(),
            "noise": self._noise.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._point.data.copy_(state["point"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._noise.set_state(state["noise"])


def places(walk: Walk, *, n_steps: int) -> Iterator[Place]:
    """Where the walk stands at first and after each step; ends early where it left the finite numbers."""
    yield walk.place()
    for _ in range(n_steps):
        walk.step()
        place = walk.place()
        if not all(math.isfinite(number) for number in place):
            return
        yield place


def updates(optimizer: str, params: Mapping[str, Any], gradients: Sequence[float]) -> list[float]:
    """What an optimizer makes of a series of gradients of one parameter: −(change) at each step."""
    torch.set_num_threads(1)
    point = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    made = build_optimizer([("point", point)], name=optimizer, params=params)
    path = [0.0]
    for gradient in gradients:
        point.grad = torch.full_like(point, gradient)
        made.step()
        path.append(point.item())
    return [before - after for before, after in pairwise(path)]
