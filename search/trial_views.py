"""Earlier trials as a sampler's model sees them.

Optuna's samplers ignore FAIL trials, so a region in which training diverges looks unexplored and is proposed again and
again. Here a sampler gets a view of the study in which a diverged trial is the worst result; the trials in the database
keep their states.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from search.objectives import corners, on_front
from search.states import Direction, FailureKind

FAILURE_KIND = "failure_kind"
"""Name of the user attribute that says why a FAIL trial failed: a `FailureKind`."""

RESULTS = frozenset({"diverged", "no_metric", "out_of_memory"})
"""Failures that are caused by the settings, not by the machine: a batch may be too large for a whole card."""

View = Callable[[Sequence[FrozenTrial], Sequence[StudyDirection]], list[FrozenTrial]]
"""The trials as a sampler sees them, given the direction of each objective."""

MAX_SHOWN = 2000
"""Number of latest trials that TPE models. 10,000 take a quarter of a second, and older ones have less weight."""

N_BEST = 100
"""Number of best complete trials that TPE sees in addition; it models the best 25 as good."""


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


def key_of(params: Mapping[str, Any]) -> str:
    """A text that is equal for equal configurations, even if multiples of a step are rounded differently."""
    parts = [f"{name}={value:.12g}" if type(value) is float else f"{name}={value!r}" for name, value in params.items()]
    return "&".join(sorted(parts))


def tried_keys(trials: Iterable[FrozenTrial]) -> set[str]:
    """The configurations (`key_of`) of all trials but those that failed for another reason than their settings."""
    return {key_of(trial.params) for trial in trials if trial.state is not TrialState.FAIL or is_result(trial)}


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
