"""Builds Optuna's sampler for each sampler that a study can name.

A new sampler is built for every trial, seeded by (study's seed, label, trial number). A restarted driver therefore
proposes what an uninterrupted one would have proposed. The order of a grid and the Sobol sequence use one seed.

Samplers with a model see earlier trials as `search.trial_views` shows them. In a finite space no configuration is
proposed twice before all were tried.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from search import samplers
from search.optimizer_search import MAX_UNIFORM, OptimizerSearch
from search.point_sets import GridSampler, SobolSampler
from search.samplers import SEED_BITS, Sampler, configurations
from search.space import CategoricalParameter, Parameter, Space
from search.states import FailureKind
from search.trial_views import (
    FAILURE_KIND,
    StudyView,
    View,
    as_complete,
    by_last_value,
    key_of,
    tried_keys,
    worst_where_diverged,
)
from tasks.engine.seeds import derive_seed

MAX_REDRAWS = 20  # of the model, before a configuration that was not tried, or that meets `when`, is drawn uniformly

N_OUTSIDE = 10  # settings that do not meet `when`, which TPE and GP see as diverged

MAX_FITS = 5  # of the GP, each of which takes half a second or more


def build(
    sampler: Sampler,
    space: Space,
    *,
    label: str,
    trial_number: int,
    repeat: int = 0,
    first: Sequence[Mapping[str, Any]] = (),
    within: OptimizerSearch | None = None,
) -> BaseSampler:
    """Optuna's sampler for the trial that comes next in this search.

    Args:
        within: the search whose `when` all proposals meet; None: there are no conditions.
        label: the search's, which no other search of the study has.
        repeat: how many searches of the same optimizer come before it; QMC gives each a sequence of its own.
        first: configurations that a grid begins with, as Optuna stores them; the other samplers are queued theirs.
    """
    fixed = derive_seed(sampler.seed, label, bits=SEED_BITS)
    fresh = derive_seed(sampler.seed, label, trial_number, bits=SEED_BITS)
    refused = [] if within is None else _outside(within, seed=fixed)

    def seen(view: View, *, after: int) -> View:
        """The view, with what was refused once the model begins to propose."""

        def shown(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> list[FrozenTrial]:
            begun = bool(refused) and sum(trial.state.is_finished() for trial in trials) >= after
            return view([*trials, *refused] if begun else trials, directions)

        return shown

    match sampler:
        case samplers.TpeSampler():
            view = seen(by_last_value, after=sampler.n_startup_trials)
            built: BaseSampler = _tpe(sampler, space, view=view, within=within, seed=fresh)
        case samplers.GpSampler():
            built = ViewSampler(
                optuna.samplers.GPSampler(seed=fresh, n_startup_trials=sampler.n_startup_trials),
                view=seen(as_complete, after=sampler.n_startup_trials),
                space=_joint(space),
                configurations=_listed(space, within),
                seed=fresh,
            )
        case samplers.CmaEsSampler():
            numeric = {name: p for name, p in space.items() if not isinstance(p, CategoricalParameter)}
            built = ViewSampler(
                optuna.samplers.CmaEsSampler(seed=fresh, warn_independent_sampling=False),
                view=worst_where_diverged,
                space=_joint(numeric),
                configurations=None,
                seed=fresh,
            )
        case samplers.QmcSampler():
            shared = derive_seed(sampler.seed, "sobol", repeat, bits=SEED_BITS)
            built = SobolSampler(_joint(space), index=trial_number, seed=shared, independent_seed=fresh, within=within)
        case samplers.RandomSampler():
            built = optuna.samplers.RandomSampler(seed=fresh)
        case samplers.GridSampler():
            return GridSampler(space, first=first, seed=fixed, within=within)
    if within is None:
        return built
    n_proposals = MAX_FITS if isinstance(sampler, samplers.GpSampler) else MAX_REDRAWS
    return ConditionSampler(built, within, refused=refused, n_proposals=n_proposals, seed=fresh)


def _outside(within: OptimizerSearch, *, seed: int) -> list[FrozenTrial]:
    """Configurations that do not meet the conditions, as diverged trials: at most `N_OUTSIDE`, uniformly drawn."""
    rng = random.Random(seed)
    draws = (within.complete({}, lambda name: within.space[name].draw(rng)) for _ in range(20 * N_OUTSIDE))
    return [_refusal(drawn, within) for drawn in itertools.islice((d for d in draws if not within.meets(d)), N_OUTSIDE)]


def _refusal(params: Mapping[str, Any], within: OptimizerSearch) -> FrozenTrial:
    return create_trial(
        state=TrialState.FAIL,
        params=dict(params),
        distributions={name: within.space[name].distribution() for name in params},
        user_attrs={FAILURE_KIND: FailureKind.DIVERGED.value},
    )


def _listed(space: Space, within: OptimizerSearch | None) -> Sequence[Mapping[str, Any]] | None:
    return configurations(space) if within is None else within.configurations


def _joint(space: Mapping[str, Parameter]) -> dict[str, BaseDistribution]:
    """The parameters that every trial draws, by name: those without a condition and with more than one value."""
    distributions = {name: space[name].distribution() for name in sorted(space) if space[name].when is None}
    return {name: distribution for name, distribution in distributions.items() if not distribution.single()}


def _tpe(
    sampler: samplers.TpeSampler, space: Space, *, view: View, within: OptimizerSearch | None, seed: int
) -> BaseSampler:
    conditional = any(p.when for p in space.values())
    joint = sampler.multivariate and not conditional
    tpe = optuna.samplers.TPESampler(
        seed=seed,
        n_startup_trials=sampler.n_startup_trials,
        multivariate=sampler.multivariate,
        group=sampler.multivariate and conditional,
        constant_liar=True,  # several trials run at once: don't propose the same place twice
    )
    return ViewSampler(
        tpe,
        view=view,
        space=_joint(space) if joint else None,
        configurations=_listed(space, within) if joint else None,
        seed=seed,
    )


class WrappingSampler(BaseSampler):  # type: ignore[misc]
    """A sampler that changes the proposals of another one, or what the other one sees."""

    def __init__(self, inner: BaseSampler) -> None:
        self._inner = inner

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._inner.infer_relative_search_space(study, trial)  # type: ignore[no-any-return]

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._inner.after_trial(study, trial, state, values)


class ViewSampler(WrappingSampler):
    """An Optuna sampler that gets a view of the study, and the search space of the definition."""

    def __init__(
        self,
        inner: BaseSampler,
        *,
        view: View,
        space: Mapping[str, BaseDistribution] | None,
        configurations: Sequence[Mapping[str, Any]] | None,
        seed: int,
    ) -> None:
        """Wrap `inner`.

        Args:
            space: the parameters to sample together; None: the sampler infers them from past trials.
            configurations: all configurations of a small finite space; None: any other space.
            seed: for the choice among the configurations that were not tried.
        """
        super().__init__(inner)
        self._view = view
        self._space = space
        self._configurations = configurations
        self._seed = seed

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if self._space is not None:
            return dict(self._space)
        return super().infer_relative_search_space(StudyView(study, self._view), trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        view = StudyView(study, self._view)
        params: dict[str, Any] = self._inner.sample_relative(view, trial, search_space)
        if self._configurations is None:
            return params
        others = study._get_trials(deepcopy=False, use_cache=True)
        tried = tried_keys(other for other in others if other.number != trial.number)
        for _ in range(MAX_REDRAWS):
            if not params or key_of(params) not in tried:
                break
            params = self._inner.sample_relative(view, trial, search_space)
        if params and key_of(params) not in tried:
            return params
        return self._untried(tried) or params

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._inner.sample_independent(StudyView(study, self._view), trial, param_name, param_distribution)

    def _untried(self, tried: set[str]) -> dict[str, Any]:
        left = [c for c in self._configurations or () if key_of(c) not in tried]
        if not left:
            return {}
        return dict(left[np.random.default_rng(self._seed).integers(len(left))])


class ConditionSampler(WrappingSampler):
    """A sampler of which only proposals that meet the search's conditions are taken; others are drawn again.

    A uniform draw that is repeated until it meets them is uniform where they are met. What is refused is noted: TPE and
    GP take a part of the space of which they saw nothing for unexplored, and would propose it again and again. After
    `n_proposals` one is drawn uniformly from what meets the conditions.
    """

    def __init__(
        self,
        inner: BaseSampler,
        within: OptimizerSearch,
        *,
        refused: list[FrozenTrial],
        n_proposals: int,
        seed: int,
    ) -> None:
        """Wrap `inner`.

        Args:
            refused: where proposals that were refused are noted, as diverged trials.
            seed: for uniform draws.
        """
        super().__init__(inner)
        self._within = within
        self._refused = refused
        self._n_proposals = n_proposals
        self._seed = seed
        self._drawn: dict[str, Any] = {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        given = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        self._drawn = self._draw(study, trial, search_space, given=given)
        return {name: self._drawn[name] for name in search_space if name in self._drawn}

    def _draw(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
        *,
        given: Mapping[str, Any],
    ) -> dict[str, Any]:
        def independently(name: str) -> Any:
            distribution = self._within.space[name].distribution()
            return self._inner.sample_independent(study, trial, name, distribution)

        for _ in range(self._n_proposals):
            proposed = self._inner.sample_relative(study, trial, search_space)
            drawn = self._within.complete({**proposed, **given}, independently)
            if self._within.meets(drawn):
                return drawn
            if proposed:
                self._refused.append(_refusal(drawn, self._within))
        found = self._within.draw_meeting(random.Random(self._seed), given, at_most=MAX_UNIFORM)
        assert found is not None, f"{self._within.when} cannot be met with {given}"
        return found

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._drawn[param_name]
