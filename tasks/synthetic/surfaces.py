"""The toy surfaces: what is minimised, from where, and how curved it is at its minimum. Imports torch when asked.

quadratic        0.5·(x² + 25 y²)                   a valley with condition number 25
rosenbrock       (1 − x)² + 100·(y − x²)²           Rosenbrock, Computer Journal 3 (1960)
noisy_quadratic  0.5·Σ aᵢ xᵢ², a = 1/i, gradient noise of variance aᵢ    Zhang et al., NeurIPS 2019
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NOISY_DIM = 20


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A function to minimise.

    Attributes:
        value: of points (dim, …), a tensor (…).
        dim: coordinates of a point.
        noise_scale: standard deviation of each coordinate's gradient noise at a point; None where there is none.
        minimum: where its least value 0 lies, first two coordinates.
        start: a place to start from, first two coordinates.
        window: (x low, x high, y low, y high) that shows the way from there.
    """

    name: str
    title: str
    value: Callable[[Tensor], Tensor]
    dim: int = 2
    noise_scale: Callable[[Tensor], Tensor] | None = None
    minimum: tuple[float, float] = (0.0, 0.0)
    start: tuple[float, float]
    window: tuple[float, float, float, float]


def _noisy_curvature(point: Tensor) -> Tensor:
    import torch

    return 1.0 / torch.arange(1, point.shape[0] + 1, dtype=point.dtype).reshape(-1, *[1] * (point.ndim - 1))


SURFACES: dict[str, Surface] = {
    surface.name: surface
    for surface in (
        Surface(
            name="quadratic",
            title="Quadratic valley",
            value=lambda p: 0.5 * (p[0] ** 2 + 25.0 * p[1] ** 2),
            start=(-1.0, 0.6),
            window=(-1.4, 1.4, -1.05, 1.05),
        ),
        Surface(
            name="rosenbrock",
            title="Rosenbrock",
            value=lambda p: (1.0 - p[0]) ** 2 + 100.0 * (p[1] - p[0] ** 2) ** 2,
            minimum=(1.0, 1.0),
            start=(-1.2, 1.0),
            window=(-1.8, 1.8, -0.9, 1.8),
        ),
        Surface(
            name="noisy_quadratic",
            title="Noisy quadratic",
            value=lambda p: 0.5 * (_noisy_curvature(p) * p**2).sum(0),
            dim=NOISY_DIM,
            noise_scale=lambda p: _noisy_curvature(p).sqrt(),
            start=(-3.0, 2.2),
            window=(-4.0, 4.0, -3.0, 3.0),
        ),
    )
}


def heights(surface: Surface, xs: Sequence[float], ys: Sequence[float]) -> list[list[float]]:
    """The surface over a grid of its first two coordinates, the others at the minimum.

    Returns:
        A row for each y, with a value for each x.
    """
    import torch

    y, x = torch.meshgrid(torch.tensor(ys), torch.tensor(xs), indexing="ij")
    points = torch.zeros(surface.dim, *x.shape)
    points[0], points[1] = x, y
    values: list[list[float]] = surface.value(points).tolist()
    return values


@cache
def largest_curvature(name: str) -> float:
    """Largest eigenvalue of a surface's Hessian at its minimum."""
    import torch

    surface = SURFACES[name]
    point = torch.zeros(surface.dim)
    point[:2] = torch.tensor(surface.minimum)
    hessian = torch.autograd.functional.hessian(surface.value, point)  # type: ignore[no-untyped-call]
    return float(torch.linalg.eigvalsh(hessian)[-1])
