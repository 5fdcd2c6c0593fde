"""The samplers a study can name, and how many configurations a finite space has. Loads no Optuna."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Literal

from pydantic import Field

from search.space import FloatParameter, Space, Strict
from tasks.config import Count, Flag

SEED_BITS = 32
"""Size of the seeds that NumPy's RandomState takes, which Optuna's samplers draw from."""

Seed = Annotated[int, Field(strict=True, ge=0, lt=2**SEED_BITS)]


class _Sampler(Strict):
    seed: Seed = Field(default=0, description="Same definition and seed, same configurations (one trial at a time).")


class TpeSampler(_Sampler):
    """Tree-structured Parzen estimator (Bergstra et al., 2011): the default."""

    name: Literal["tpe"] = "tpe"
    n_startup_trials: Annotated[Count, Field(ge=1)] = Field(default=4, description="Random trials before it models.")
    multivariate: Flag = Field(default=True, description="Model the parameters together.")


class GpSampler(_Sampler):
    """Gaussian process with expected improvement. About 6 s a suggestion at 1,000 trials: for up to a few hundred."""

    name: Literal["gp"]
    n_startup_trials: Annotated[Count, Field(ge=1)] = Field(default=10, description="Random trials before it models.")


class CmaEsSampler(_Sampler):
    """CMA-ES on the numeric parameters; categorical ones are drawn at random."""

    name: Literal["cmaes"]


class QmcSampler(_Sampler):
    """Scrambled Sobol sequence."""

    name: Literal["qmc"]


class RandomSampler(_Sampler):
    """Independent uniform draws."""

    name: Literal["random"]


class GridSampler(_Sampler):
    """Every combination once; needs choices or a step for every parameter."""

    name: Literal["grid"]


Sampler = TpeSampler | GpSampler | CmaEsSampler | QmcSampler | RandomSampler | GridSampler

MAX_GRID = 100_000
"""Combinations of a grid; as many as a search may have trials."""

MAX_LISTED = 10_000
"""Configurations of a finite space up to which it is known which ones are left to try."""

NAMES = ("tpe", "gp", "cmaes", "qmc", "random", "grid")


def grid_size(space: Space) -> int:
    """Number of combinations of a grid over the space.

    Raises:
        ValueError: a parameter is conditional or has no finite grid, or there are more than MAX_GRID combinations.
    """
    size = 1
    for name, parameter in space.items():
        if parameter.when is not None:
            raise ValueError(
                f"parameter '{name}' is conditional; the grid sampler has no conditions, use tpe or random"
            )
        try:
            size *= parameter.grid_size()
        except ValueError as error:
            raise ValueError(f"parameter '{name}': {error} with the grid sampler") from None
    if size > MAX_GRID:
        raise ValueError(
            f"the grid has {size:,} combinations; at most {MAX_GRID:,} can be searched. "
            "Use larger steps or fewer choices."
        )
    return size


def n_configurations(space: Space) -> float:
    """Number of configurations; infinite where a parameter is a range of real numbers or conditional."""
    size = 1
    for parameter in space.values():
        if parameter.when or (isinstance(parameter, FloatParameter) and parameter.step is None):
            return math.inf
        size *= parameter.grid_size()
    return size


def configurations(space: Space) -> list[dict[str, bool | int | float | str | None]] | None:
    """All there are, as Optuna stores them; None where they are endless, conditional or more than 10,000."""
    try:
        if grid_size(space) > MAX_LISTED:
            return None
    except ValueError:
        return None
    names = sorted(space)
    grids = [space[name].grid_values() for name in names]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*grids)]
