"""Builds Optuna's sampler for each sampler that a study can name, and the view of earlier trials that it gets.

A new sampler is built for every trial, seeded by (study's seed, label, trial number). A restarted driver therefore
proposes what an uninterrupted one would have proposed. The order of a grid and the Sobol sequence use one seed.

Optuna's samplers ignore FAIL trials, so a region in which training diverges looks unexplored and is proposed again and
again. Here a sampler gets a view of the study in which a diverged trial is the worst result; the trials in the database
keep their states. In a finite space no configuration is proposed twice before all were tried.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import random
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from search import samplers
from search.objectives import corners, on_front
from search.optimizer_search import MAX_UNIFORM, OptimizerSearch
from search.samplers import SEED_BITS, Sampler, configurations
from search.space import CategoricalParameter, Parameter, Space
from search.states import Direction, FailureKind
from tasks.engine.seeds import derive_seed

FAILURE_KIND = "failure_kind"
"""Name of the user attribute that says why a FAIL trial failed: a `FailureKind`."""

RESULTS = frozenset({"diverged", "no_metric", "out_of_memory"})
"""Failures that are caused by the settings, not by the machine: a batch may be too large for a whole card."""

View = Callable[[Sequence[FrozenTrial], Sequence[StudyDirection]], list[FrozenTrial]]
"""The trials as a sampler sees them, given the direction of each objective."""

MAX_REDRAWS = 20  # of the model, before a configuration that was not tried, or that meets `when`, is drawn uniformly

N_OUTSIDE = 10  # settings that do not meet `when`, which TPE and GP see as diverged

MAX_FITS = 5  # of the GP, each of which takes half a second or more

MAX_SHOWN = 2000
"""Number of latest trials that TPE models. 10,000 take a quarter of a second, and older ones have less weight."""

N_BEST = 100
"""Number of best complete trials that TPE sees in addition; it models the best 25 as good."""


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
            n_met += self._within.draw_meeting(random.Random(self._index), params, at_most=MAX_REDRAWS) is not None
        return params


def by_last_value(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> list[FrozenTrial]:
    """For TPE: pruned trials as COMPLETE with their last value, diverged ones as PRUNED before their first report.

    TPE itself ranks every complete trial above every pruned one, and diverged ones last. Where training learns nothing
    in a part of the space, a trial there may run to its end before any other does, and TPE would propose that part for
    ever (`python -m benchmarks.rungs`).

    With several objectives no pruner is at work, and trials that the end of a budget broke off are left out: their
    seconds are not those of a whole training.

    Of more than `MAX_SHOWN` trials, the latest, the best, and all that still run.
    """
    shown = _latest_and_best(trials, directions) if len(trials) > MAX_SHOWN else trials
    if len(directions) > 1:
        shown = [trial for trial in shown if trial.state is not TrialState.PRUNED]
    return [_shown(trial, TrialState.PRUNED) if is_result(trial) else with_last_value(trial) for trial in shown]


def _latest_and_best(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> Sequence[FrozenTrial]:
    old, latest = trials[:-MAX_SHOWN], trials[-MAX_SHOWN:]
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    if len(directions) > 1:
        is_best = on_front([trial.values for trial in complete], _ours(directions))
        best = {trial.number for trial, found in zip(complete, is_best, strict=True) if found}
    elif len(complete) < N_BEST:  # then pruned ones are among the best, and only TPE itself can rank them
        return trials
    else:
        cost = _ours(directions)[0].cost
        best = {trial.number for trial in heapq.nsmallest(N_BEST, complete, key=lambda trial: cost(trial.value or 0.0))}
    return [*(trial for trial in old if trial.number in best or trial.state is TrialState.RUNNING), *latest]


def _ours(directions: Sequence[StudyDirection]) -> list[Direction]:
    return [Direction(direction.name.lower()) for direction in directions]


def as_complete(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> list[FrozenTrial]:
    """Every finished trial as COMPLETE, for the GP, which models values only.

    Pruned ones have their last reported value, diverged ones the worst value of all. With several objectives pruned
    ones, which have no seconds of a whole training, stay what they are, and the GP leaves them out.
    """
    known = trials if len(directions) > 1 else [with_last_value(trial) for trial in trials]
    return worst_where_diverged(known, directions)


def worst_where_diverged(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> list[FrozenTrial]:
    """Diverged trials as COMPLETE with the worst value of all, for CMA-ES, which then leaves pruned trials out.

    It ranks the trials of a generation by value, and a trial stopped early is not comparable with complete ones: on the
    tabulated curves of `python -m benchmarks.search views` leaving those out is better in 76 of 288 searches and worse
    in 52; with 80 trials in 44 and 18 of 144. With several objectives a diverged trial has the worst value of each.
    """
    values = [trial.values for trial in trials if trial.state is TrialState.COMPLETE and trial.values is not None]
    worst = corners(values, _ours(directions))[1] if values else [0.0] * len(directions)
    return [_shown(trial, TrialState.COMPLETE, values=worst) if is_result(trial) else trial for trial in trials]


def is_result(trial: FrozenTrial) -> bool:
    """Whether the trial failed because of its settings."""
    return trial.state is TrialState.FAIL and trial.user_attrs.get(FAILURE_KIND) in RESULTS


def is_lost(trial: FrozenTrial) -> bool:
    """Whether a trial failed with its machine, so that another one takes its place (`search.loop`)."""
    kind = trial.user_attrs.get(FAILURE_KIND)
    return kind is not None and FailureKind(kind).is_lost


def of_first_objective(trial: FrozenTrial) -> FrozenTrial:
    """The trial with the value of the first objective alone."""
    if trial.values is None or len(trial.values) == 1:
        return trial
    first = copy.copy(trial)
    first.values = trial.values[:1]
    return first


def with_last_value(trial: FrozenTrial) -> FrozenTrial:
    """A pruned trial as COMPLETE with its last reported value; any other as it is."""
    if trial.state is not TrialState.PRUNED or not trial.intermediate_values:
        return trial
    return _shown(trial, TrialState.COMPLETE, values=[trial.intermediate_values[max(trial.intermediate_values)]])


def _shown(trial: FrozenTrial, state: TrialState, *, values: list[float] | None = None) -> FrozenTrial:
    """A copy of the trial in another state; the trial in the storage is not changed."""
    shown = copy.copy(trial)
    shown.state = state
    shown.values = values
    shown.intermediate_values = {}
    return shown


class StudyView:
    """An Optuna study in which some trials appear in another state."""

    def __init__(self, study: optuna.Study, view: View) -> None:
        self._viewed = study
        self._view = view
        self.directions: list[StudyDirection] = study.directions
        if len(self.directions) == 1:
            self.direction = self.directions[0]  # TPE asks for each trial

    def __getattr__(self, name: str) -> Any:
        return getattr(self._viewed, name)

    def _get_trials(
        self,
        deepcopy: bool = True,  # noqa: FBT001, FBT002 - Optuna's signature
        states: Container[TrialState] | None = None,
        use_cache: bool = False,  # noqa: FBT001, FBT002
    ) -> list[FrozenTrial]:
        trials = self._viewed._get_trials(deepcopy=deepcopy, states=None, use_cache=use_cache)
        shown = self._view(trials, self.directions)
        return shown if states is None else [trial for trial in shown if trial.state in states]


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
        tried = self._tried(study, trial)
        for _ in range(MAX_REDRAWS):
            if not params or _key(params) not in tried:
                break
            params = self._inner.sample_relative(view, trial, search_space)
        if params and _key(params) not in tried:
            return params
        return self._untried(tried) or params

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._inner.sample_independent(StudyView(study, self._view), trial, param_name, param_distribution)

    def _tried(self, study: optuna.Study, trial: FrozenTrial) -> set[str]:
        others = [t for t in study._get_trials(deepcopy=False, use_cache=True) if t.number != trial.number]
        return {_key(t.params) for t in others if t.state is not TrialState.FAIL or is_result(t)}

    def _untried(self, tried: set[str]) -> dict[str, Any]:
        left = [c for c in self._configurations or () if _key(c) not in tried]
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
        seen = {_key(t.params) for t in others}
        points = self._points()
        for point in points:
            if _key(point) not in seen:
                return point
        tried = {_key(t.params) for t in others if t.state is not TrialState.FAIL or is_result(t)}
        lost = {_key(t.params) for t in others if is_lost(t)}
        left = [point for point in points if _key(point) not in tried]
        return next((point for point in left if _key(point) in lost), left[0] if left else points[0])

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


def _key(params: Mapping[str, Any]) -> str:
    """A text that is equal for equal configurations, even if multiples of a step are rounded differently."""
    parts = [f"{name}={value:.12g}" if type(value) is float else f"{name}={value!r}" for name, value in params.items()]
    return "&".join(sorted(parts))
