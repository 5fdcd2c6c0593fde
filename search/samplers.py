"""The samplers a study can name, and Optuna's object for each.

A sampler is made anew for every trial, seeded by (study's seed, trial number): a restarted driver then proposes what
the uninterrupted one would have, and never repeats draws it made before. Grid and QMC keep their place in Optuna's
tables and need one seed throughout.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from search.space import Space, Strict

if TYPE_CHECKING:
    import optuna

Seed = Annotated[int, Field(ge=0, lt=2**32)]


class _Sampler(Strict):
    seed: Seed = Field(default=0, description="Same definition and seed, same configurations (one trial at a time).")


class TpeSampler(_Sampler):
    """Tree-structured Parzen estimator (Bergstra et al., 2011): the default."""

    name: Literal["tpe"] = "tpe"
    n_startup_trials: Annotated[int, Field(ge=1)] = Field(default=4, description="Random trials before it models.")
    multivariate: bool = Field(default=True, description="Model the parameters together.")


class GpSampler(_Sampler):
    """Gaussian process with expected improvement. About 6 s a suggestion at 1,000 trials: for up to a few hundred."""

    name: Literal["gp"]
    n_startup_trials: Annotated[int, Field(ge=1)] = 10


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

NAMES = ("tpe", "gp", "cmaes", "qmc", "random", "grid")


def derive_seed(*parts: int | str) -> int:
    """A 32-bit seed from a tuple of names and numbers, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def grid_size(space: Space) -> int:
    """Number of combinations of a grid over the space. Raises ValueError where a parameter has no finite grid."""
    size = 1
    for name, parameter in space.items():
        if parameter.when is not None:
            raise ValueError(
                f"parameter '{name}' is conditional; the grid sampler has no conditions, use tpe or random"
            )
        try:
            size *= len(parameter.grid_values())
        except ValueError as error:
            raise ValueError(f"parameter '{name}': {error} with the grid sampler") from None
    return size


def build(sampler: Sampler, space: Space, *, label: str, trial_number: int) -> optuna.samplers.BaseSampler:
    """Optuna's sampler for the trial that comes next in this search."""
    import optuna

    fixed = derive_seed(sampler.seed, label)
    fresh = derive_seed(sampler.seed, label, trial_number)
    match sampler:
        case TpeSampler():
            return optuna.samplers.TPESampler(
                seed=fresh,
                n_startup_trials=sampler.n_startup_trials,
                multivariate=sampler.multivariate,
                group=sampler.multivariate and any(p.when for p in space.values()),
                constant_liar=True,  # several trials run at once: don't propose the same place twice
            )
        case GpSampler():
            return optuna.samplers.GPSampler(seed=fresh, n_startup_trials=sampler.n_startup_trials)
        case CmaEsSampler():
            return optuna.samplers.CmaEsSampler(seed=fresh)
        case QmcSampler():
            return optuna.samplers.QMCSampler(seed=fixed, scramble=True)
        case RandomSampler():
            return optuna.samplers.RandomSampler(seed=fresh)
        case GridSampler():
            values = {name: parameter.grid_values() for name, parameter in space.items()}
            return _ask_tell_grid(values, seed=fixed)


def _ask_tell_grid(
    values: dict[str, list[bool | int | float | str | None]], *, seed: int
) -> optuna.samplers.BaseSampler:
    import optuna

    class AskTellGrid(optuna.samplers.GridSampler):  # type: ignore[misc]
        """Optuna's grid, without its attempt to stop an `optimize` loop that ask and tell don't have."""

        def after_trial(self, *_: object) -> None:
            pass

    return AskTellGrid(values, seed=seed)
