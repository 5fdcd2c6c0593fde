"""The samplers a study can name, and Optuna's object for each.

A sampler is made anew for every trial, seeded by (study's seed, trial number): a restarted driver then proposes what
the uninterrupted one would have, and never repeats draws it made before. The grid keeps its place in Optuna's tables
and QMC's is the trial number; both need one seed throughout.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from search.space import CategoricalParameter, Parameter, Space, Strict
from tasks.config import Count, Flag
from tasks.engine.seeds import derive_seed

if TYPE_CHECKING:
    import optuna

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
    n_startup_trials: Annotated[Count, Field(ge=1)] = 10


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


def build(
    sampler: Sampler, space: Space, *, label: str, trial_number: int, first: Sequence[Mapping[str, Any]] = ()
) -> optuna.samplers.BaseSampler:
    """Optuna's sampler for the trial that comes next in this search.

    Args:
        first: configurations that a grid begins with, as Optuna stores them; the other samplers are queued theirs.
    """
    import optuna

    fixed = derive_seed(sampler.seed, label, bits=SEED_BITS)
    fresh = derive_seed(sampler.seed, label, trial_number, bits=SEED_BITS)
    match sampler:
        case TpeSampler():
            return _build_tpe(sampler, space, seed=fresh)
        case GpSampler():
            from search.evidence import EvidenceSampler, as_complete

            return EvidenceSampler(
                optuna.samplers.GPSampler(seed=fresh, n_startup_trials=sampler.n_startup_trials),
                view=as_complete,
                space=_joint(space),
                configurations=configurations(space),
                seed=fresh,
            )
        case CmaEsSampler():
            from search.evidence import EvidenceSampler, as_complete

            numeric = {name: p for name, p in space.items() if not isinstance(p, CategoricalParameter)}
            return EvidenceSampler(
                optuna.samplers.CmaEsSampler(seed=fresh, warn_independent_sampling=False),
                view=as_complete,
                space=_joint(numeric),
                configurations=None,
                seed=fresh,
            )
        case QmcSampler():
            return _build_sobol(space, seed=fixed, independent_seed=fresh, index=trial_number)
        case RandomSampler():
            return optuna.samplers.RandomSampler(seed=fresh)
        case GridSampler():
            from search.evidence import GridSampler as Grid

            return Grid(space, first=first, seed=fixed)


def _joint(space: Mapping[str, Parameter]) -> dict[str, optuna.distributions.BaseDistribution]:
    """What every trial draws, and so can be modelled together: parameters without a condition, by name."""
    distributions = {name: space[name].distribution() for name in sorted(space) if space[name].when is None}
    return {name: distribution for name, distribution in distributions.items() if not distribution.single()}


def _build_tpe(sampler: TpeSampler, space: Space, *, seed: int) -> optuna.samplers.BaseSampler:
    import optuna

    from search.evidence import EvidenceSampler, as_pruned

    conditional = any(p.when for p in space.values())
    joint = sampler.multivariate and not conditional
    tpe = optuna.samplers.TPESampler(
        seed=seed,
        n_startup_trials=sampler.n_startup_trials,
        multivariate=sampler.multivariate,
        group=sampler.multivariate and conditional,
        constant_liar=True,  # several trials run at once: don't propose the same place twice
    )
    return EvidenceSampler(
        tpe,
        view=as_pruned,
        space=_joint(space) if joint else None,
        configurations=configurations(space) if joint else None,
        seed=seed,
    )


def _build_sobol(space: Space, *, seed: int, independent_seed: int, index: int) -> optuna.samplers.BaseSampler:
    """Point `index` of the search's Sobol sequence; what is conditional is drawn independently."""
    import optuna

    class Sobol(optuna.samplers.QMCSampler):  # type: ignore[misc]
        """Optuna's, from the first trial on and by trial number, where Optuna's starts at random and keeps count."""

        def infer_relative_search_space(self, *_: object) -> dict[str, optuna.distributions.BaseDistribution]:
            return _joint(space)

        def _find_sample_id(self, *_: object) -> int:
            return index

    return Sobol(
        seed=seed,
        scramble=True,
        independent_sampler=optuna.samplers.RandomSampler(seed=independent_seed),
        warn_independent_sampling=False,
    )
