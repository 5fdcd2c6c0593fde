"""How often the interval of a predicted learning rate holds the best one, in simulated ladders of sizes.

Each ladder: trials at some sizes with learning rates on a grid, or drawn over a range of 64 ×. Their loss is 0.02 u² in
u = ln(lr / best), and above the best 0.01 u³ more, plus noise. The best learning rate follows a power of the size, or
scatters around it by a tenth. The prediction is for twice the largest size.

    python -m benchmarks.scaling_coverage --ladders 2000
"""

from __future__ import annotations

import argparse
import math
from itertools import product

import numpy as np

from search.prediction import LEAST_SCATTER, fit_line, optima

SPAN = math.log(64.0)


def cost_of(u: np.ndarray) -> np.ndarray:
    """Loss above the least, at ln(lr / best) = u: a parabola on the left, steeper on the right."""
    found = 0.02 * u**2 + np.where(u > 0, 0.01 * u**3, 0.0)
    return np.asarray(found)


def ladder(
    rng: np.random.Generator,
    *,
    n_sizes: int,
    n_trials: int,
    n_parameters: int,
    noise: float,
    scatter: float,
    grid: bool,
) -> tuple[float, bool, float, bool]:
    """Of one ladder: ln(predicted / best), whether the interval holds the best, its half width, whether it is verified.

    Not verified is what `search.prediction.why_not_verified` says nothing is known of.
    """
    x = np.log(64.0 * 2.0 ** np.arange(n_sizes + 1))
    slope = rng.uniform(-1.0, 0.0)
    best = rng.uniform(-0.5, 0.5) + slope * (x - x.mean()) / 2 + scatter * rng.standard_normal(n_sizes + 1)
    sizes = []
    for at in best[:-1]:
        if grid:
            values = np.linspace(-SPAN / 2, SPAN / 2, n_trials)[:, None]
        else:
            values = rng.uniform(-SPAN / 2, SPAN / 2, size=(n_trials, n_parameters))
        costs = cost_of(values[:, 0] - at) + noise * rng.standard_normal(n_trials)
        for other in range(1, values.shape[1]):
            costs = costs + 0.3 * cost_of(values[:, other])
        sizes.append((values, costs))
    found, degrees = optima(sizes, [SPAN] * n_parameters)
    line = fit_line(list(x[:-1]), [of[0] for of in found], to=float(x[-1]), degrees=degrees, least=LEAST_SCATTER)
    assert line is not None
    true = best[-1]
    is_verified = line.high - line.low <= SPAN or not any(of[0].is_best_trial for of in found)
    return line.predicted - true, line.low <= true <= line.high, (line.high - line.low) / 2, is_verified


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladders", type=int, default=1000)
    n = parser.parse_args().ladders
    print("sizes  trials                 noise  scatter  covered       typical error  median half width  not verified")
    designs = [(7, 1, True), (12, 1, False), (20, 2, False), (30, 3, False)]
    for (n_trials, n_parameters, grid), n_sizes, noise, scatter in product(designs, (3, 5), (0.002, 0.01), (0.0, 0.1)):
        rng = np.random.default_rng(0)
        found = [
            ladder(
                rng,
                n_sizes=n_sizes,
                n_trials=n_trials,
                n_parameters=n_parameters,
                noise=noise,
                scatter=scatter,
                grid=grid,
            )
            for _ in range(n)
        ]
        covered = float(np.mean([one[1] for one in found]))
        error = math.sqrt(covered * (1 - covered) / n)
        typical = math.exp(float(np.median([abs(one[0]) for one in found])))
        half = math.exp(float(np.median([one[2] for one in found])))
        unsure = 1.0 - float(np.mean([one[3] for one in found]))
        what = f"{n_trials} on a grid" if grid else f"{n_trials} drawn, {n_parameters} searched"
        print(
            f"{n_sizes:5d}  {what:21s}  {noise:5.3f}  {scatter:7.1f}  {100 * covered:5.1f} ± {100 * error:3.1f} %  "
            f"× {typical:11.2f}  × {half:<16.2f}  {100 * unsure:10.1f} %"
        )


if __name__ == "__main__":
    main()
