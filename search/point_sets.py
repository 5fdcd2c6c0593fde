"""Samplers of points that are known in advance, whatever earlier trials found: a Sobol sequence's and a grid's."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from search.optimizer_search import OptimizerSearch
from search.space import Parameter
from search.trial_views import is_lost, key_of, tried_keys

MAX_DRAWS = 20  # of the parameters that a point does not set, before one that does not meet `when` is passed over


class SobolSampler(optuna.samplers.QMCSampler):  # type: ignore[misc]
    """One point of a scrambled Sobol sequence: `index`, where Optuna's starts at random and keeps count.

    Every search of a study has the same sequence: optimizers whose spaces have as many parameters are compared at the
    same points of the unit cube, so none has luckier draws. Conditional parameters are drawn at random. Points that
    do not meet the search's conditions are passed over.
    """

    def __init__(
        self,
        space: dict[str, BaseDistribution],
        *,
        index: int,
        seed: int,
        independent_seed: int,
        within: OptimizerSearch | None = None,
    ) -> None:
        super().__init__(
            seed=seed,
            scramble=True,
            independent_sampler=optuna.samplers.RandomSampler(seed=independent_seed),
            warn_independent_sampling=False,
        )
        self._space = space
        self._index = index
        self._within = within

    def infer_relative_search_space(self, *_: object) -> dict[str, BaseDistribution]:
        return dict(self._space)

    def _find_sample_id(self, *_: object) -> int:
        return self._index

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        params: dict[str, Any] = super().sample_relative(study, trial, search_space)
        if self._within is None or not search_space:
            return params
        wanted, self._index, n_met = self._index, -1, -1
        while n_met < wanted:
            self._index += 1
            params = super().sample_relative(study, trial, search_space)
            n_met += self._within.draw_meeting(random.Random(self._index), params, at_most=MAX_DRAWS) is not None
        return params


class GridSampler(BaseSampler):  # type: ignore[misc]
    """Every point of a finite grid once, in an order drawn by the seed.

    Optuna's own remembers places in its order, so that a point listed first, or a seed drawn otherwise, makes it repeat
    some points and leave out others. Here a point is known by its values. One that failed by accident comes again last.
    """

    def __init__(
        self,
        space: Mapping[str, Parameter],
        *,
        first: Sequence[Mapping[str, Any]],
        seed: int,
        within: OptimizerSearch | None = None,
    ) -> None:
        """Make the sampler of a grid.

        Args:
            space: parameters with choices or steps, none conditional.
            first: values that the first points have, one point each, as Optuna stores them.
            seed: of the order.
            within: the search whose `when` all points meet; others are left out.
        """
        self._space = space
        self._names = sorted(space)
        self._values = [space[name].grid_values() for name in self._names]
        self._first = first
        self._seed = seed
        self._within = within

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {name: self._space[name].distribution() for name in self._names}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        others = [t for t in study._get_trials(deepcopy=False, use_cache=True) if t.number != trial.number and t.params]
        seen = {key_of(t.params) for t in others}
        points = self._points()
        for point in points:
            if key_of(point) not in seen:
                return point
        tried = tried_keys(others)
        lost = {key_of(t.params) for t in others if is_lost(t)}
        left = [point for point in points if key_of(point) not in tried]
        return next((point for point in left if key_of(point) in lost), left[0] if left else points[0])

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise AssertionError(f"the grid has no parameter '{param_name}'")

    def _points(self) -> list[dict[str, Any]]:
        points = [dict(zip(self._names, values, strict=True)) for values in itertools.product(*self._values)]
        points = [point for point in points if self._within is None or self._within.meets(point)]
        order = [points[i] for i in np.random.default_rng(self._seed).permutation(len(points))]
        chosen: dict[int, dict[str, Any]] = {}
        for config in self._first:
            matching = ((i, p) for i, p in enumerate(order) if i not in chosen and config.items() <= p.items())
            chosen.update(itertools.islice(matching, 1))
        return [*chosen.values(), *(point for i, point in enumerate(order) if i not in chosen)]
