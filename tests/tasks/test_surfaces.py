"""Surfaces as they are described, and descents on them."""

from __future__ import annotations

import math

import pytest

from tasks.synthetic import SURFACES, Descent, heights, largest_curvature, trajectory, updates


def test_curvatures_by_hand() -> None:
    assert largest_curvature("quadratic") == pytest.approx(25.0)
    assert largest_curvature("noisy_quadratic") == pytest.approx(1.0)
    assert largest_curvature("rosenbrock") == pytest.approx(
        501 + math.sqrt(501**2 - 400), rel=1e-5
    )  # trace 1002, det 400


@pytest.mark.parametrize("surface", SURFACES.values(), ids=list(SURFACES))
def test_heights_are_the_surface(surface) -> None:  # type: ignore[no-untyped-def]
    x, y = surface.minimum
    grid = heights(surface, [x, x + 0.5], [y, y - 1.0, y + 1.0])
    assert [len(row) for row in grid] == [2, 2, 2]
    assert grid[0][0] == pytest.approx(0.0, abs=1e-6)
    assert min(value for row in grid for value in row) == grid[0][0]


def test_a_descent_by_hand() -> None:
    descent = Descent(SURFACES["quadratic"], optimizer="sgd", params={"lr": 0.02}, seed=0, start=(-1.0, 0.5))
    first, second = trajectory(descent, n_steps=1)
    assert first == pytest.approx((-1.0, 0.5, 3.625))
    assert second[:2] == pytest.approx((-1.0 + 0.02, 0.5 - 0.02 * 12.5))


def test_a_descent_ends_at_the_last_finite_loss() -> None:
    descent = Descent(SURFACES["rosenbrock"], optimizer="sgd", params={"lr": 1.0}, seed=0, start=(-1.2, 1.0))
    path = list(trajectory(descent, n_steps=100))
    assert 1 < len(path) < 20
    assert all(math.isfinite(number) for position in path for number in position)


def test_updates_of_momentum_by_hand() -> None:
    found = updates("sgdm", {"lr": 1.0, "momentum": 0.5, "nesterov": False}, [1.0, 0.0, 1.0])
    assert found == pytest.approx([1.0, 0.5, 1.25])
