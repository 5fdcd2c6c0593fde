"""One search's trials in Optuna's tables: creates them, reports their values and ends them.

The search loop decides when. Only the study's driver writes a search's trials, so what was just written is not read
again, which would cost a database call each time.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.trial import TrialState

from search import optuna_samplers, pruners, samplers
from search.definition import PlannedSearch, StudyDefinition
from search.objectives import value_of
from search.records import Point, RunRecord
from search.space import draw, fit
from search.states import FailureKind, RunState
from search.trial_views import FAILURE_KIND
from search.warm_start import TAKEN_FROM, near_best

_STATES = {
    RunState.COMPLETE: TrialState.COMPLETE,
    RunState.PRUNED: TrialState.PRUNED,
    RunState.FAIL: TrialState.FAIL,
}

SAME_AS = "same_as_trial"
"""Name of the user attribute that says which trial's curve and result a trial took over."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A trial to start."""

    number: int
    params: Mapping[str, Any]
    taken_from: Sequence[Mapping[str, Any]] = ()


class Trials:
    """The trials of one search.

    Args:
        storage: with Optuna's cache, as `optuna.storages.get_storage` puts it before a database.
        name: of the Optuna study, made where there is none.
        points: calls back the stored curve of a run.
    """

    def __init__(
        self,
        storage: optuna.storages.BaseStorage,
        name: str,
        *,
        definition: StudyDefinition,
        planned: PlannedSearch,
        points: Callable[[int], Sequence[Point]],
    ) -> None:
        self._definition = definition
        self._spec = planned.optimizer
        self._repeat = planned.repeat
        self._draws = bool(self._spec.space) and not planned.is_predicted  # else all trials are queued
        self._points = points
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self._study = optuna.create_study(
                study_name=name,
                storage=storage,
                directions=[one.direction for one in definition.all_objectives],
                pruner=optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
            if definition.objectives and self._study.metric_names is None:
                self._study.set_metric_names([one.metric for one in definition.all_objectives])
        self._storage, self._study_id = storage, storage.get_study_id_from_name(name)
        self._open: dict[int, optuna.Trial] = {}
        self._incomplete: deque[int] = deque()
        self._queued: deque[int] = deque()
        self._n = 0
        self._look()

    def reconcile(self, runs: Mapping[int, RunRecord]) -> None:
        """End the trials whose end a dead driver did not record. `ask` completes those that have no run yet.

        Args:
            runs: by trial number.
        """
        self._incomplete.clear()
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            run = runs.get(trial.number)
            if run is None:
                self._incomplete.append(trial.number)
            elif run.state.is_finished:
                self.tell(run)

    def enqueue(self, params: Mapping[str, Any], *, attributes: Mapping[str, Any] | None = None) -> None:
        """Queue this configuration for `ask`, unless it is queued or was tried.

        One that was dropped when its search ended, or cancelled, is queued again.

        Args:
            attributes: user attributes of the trial.
        """
        for trial in self._study.get_trials(deepcopy=False):
            kind = trial.user_attrs.get(FAILURE_KIND, FailureKind.CANCELLED)
            was_dropped = trial.state is TrialState.FAIL and kind == FailureKind.CANCELLED
            if not was_dropped and trial.system_attrs.get("fixed_params", trial.params) == params:
                return
        self._study.enqueue_trial(dict(params), user_attrs=attributes and dict(attributes))
        self._look()

    def ask(self) -> Asked:
        """The next trial: an incomplete one of a dead driver, a queued one, or a new one."""
        if not self._incomplete and not self._queued:
            self._queue_near_best()
        incomplete, queue = bool(self._incomplete), self._incomplete or self._queued
        number = queue[0] if queue else self._n
        self._study._thread_local.cached_all_trials = None  # as `Study.ask` does, so that samplers see current trials
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            sampler = self._definition.sampler if self._draws else samplers.RandomSampler(name="random")
            self._study.sampler = optuna_samplers.build(
                sampler,
                self._spec.space,
                label=self._spec.label,
                repeat=self._repeat,
                trial_number=number,
                first=[fit(values, self._spec.space) for values in self._spec.first],
                within=self._spec if self._spec.when else None,
            )
            if queue:
                queue.popleft()
                if not incomplete:
                    self._storage.set_trial_state_values(self._id(number), state=TrialState.RUNNING)
                trial = optuna.Trial(self._study, self._id(number))
            else:
                trial = optuna.Trial(self._study, self._storage.create_new_trial(self._study_id))
                self._n += 1
            params = draw(trial, self._spec.space)
        self._open[trial.number] = trial
        return Asked(number=trial.number, params=params, taken_from=trial.user_attrs.get(TAKEN_FROM, ()))

    def _queue_near_best(self) -> None:
        """Queue settings near the best trial, where `warm_start` says so; the queue is in the database."""
        definition, sampler = self._definition, self._definition.sampler
        is_wanted = definition.warm_start is not None and definition.warm_start.scope == "everything"
        if not is_wanted or not isinstance(sampler, samplers.TpeSampler) or definition.objectives:
            return
        trials = self._study.get_trials(deepcopy=False)
        near = near_best(trials, self._spec, sampler, definition.objective.direction)
        if near is not None:
            self.enqueue(near.params, attributes=near.attributes)

    def report(self, run: RunRecord, points: Sequence[Point]) -> None:
        """Store the points' values; a step that was reported before takes the new one."""
        trial = self._trial(run)
        for point in points:
            if point.value is not None:
                self._report(trial, point.epoch, point.value)

    def should_prune(self, run: RunRecord) -> bool:
        """Whether the pruner stops this trial, compared with the others of this search."""
        return pruners.stops(
            self._definition.pruner_of_budget,
            trial_number=run.trial_number,
            curve=self._trial(run)._cached_frozen_trial.intermediate_values,
            others=lambda: self._others(run.trial_number),
            direction=self._definition.objective.direction,
            max_epochs=self._definition.task.epochs,
        )

    def _others(self, number: int) -> Iterator[pruners.OtherTrial]:
        for trial in self._study.get_trials(deepcopy=False):
            if trial.number != number:
                is_complete = trial.state is TrialState.COMPLETE
                yield pruners.OtherTrial(curve=trial.intermediate_values, is_complete=is_complete)

    def note(self, run: RunRecord, key: str, value: int | str) -> None:
        """Add a user attribute to the run's trial."""
        self._trial(run).set_user_attr(key, value)

    def keep(self, name: str, value: Any) -> None:
        """Set a user attribute of the Optuna study, to a JSON value."""
        self._study.set_user_attr(name, value)

    def kept(self) -> dict[str, Any]:
        """The user attributes of the Optuna study."""
        found: dict[str, Any] = self._study.user_attrs
        return found

    def tell(self, run: RunRecord) -> None:
        """Tell how the run ended, and why it failed: samplers learn from a divergence (search.trial_views)."""
        try:
            trial = self._trial(run)
            if run.failure is not None and run.state is RunState.FAIL:
                trial.set_user_attr(FAILURE_KIND, run.failure.value)
            if run.error is not None:
                trial.set_user_attr("failure" if run.state is RunState.FAIL else "ended_by", run.error[:2000])
            self._storage.set_trial_state_values(trial._trial_id, _STATES[run.state], self._values(run, trial))
        except UpdateFinishedTrialError:
            pass  # it has ended already
        self._open.pop(run.trial_number, None)

    def _values(self, run: RunRecord, trial: optuna.Trial) -> list[float] | None:
        """The run's values by objective. With several objectives only a complete trial has them.

        A trial that took over another one's curve has that one's: its own cost nothing.
        """
        if run.state is RunState.FAIL or run.value is None or not math.isfinite(run.value):
            return None
        further = self._definition.objectives
        if not further:
            return [run.value]
        if run.state is not RunState.COMPLETE:
            return None
        if (original := trial.user_attrs.get(SAME_AS)) is not None:
            known: list[float] | None = self._storage.get_trial(self._id(original)).values
            return known
        points = self._points(run.id)
        values = [run.value, *(value_of(one.metric, points) for one in further)]
        found = [value for value in values if value is not None and math.isfinite(value)]
        assert len(found) == len(values), f"{run} is complete without {further}"
        return found

    def fail_unstarted(self, started: Set[int]) -> None:
        """End the trials that have no run: queued by a warm start, or created by a driver that died then."""
        self._incomplete.clear()
        self._queued.clear()
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.WAITING, TrialState.RUNNING)):
            if trial.number not in started:
                self._storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)

    def _look(self) -> None:
        trials = self._study.get_trials(deepcopy=False)
        self._n = len(trials)
        self._queued = deque(trial.number for trial in trials if trial.state is TrialState.WAITING)

    def _trial(self, run: RunRecord) -> optuna.Trial:
        trial = self._open.get(run.trial_number)
        if trial is None:
            trial = self._open[run.trial_number] = optuna.Trial(self._study, self._id(run.trial_number))
            self._catch_up(trial, run)
        return trial

    def _catch_up(self, trial: optuna.Trial, run: RunRecord) -> None:
        """Report the points that a dead driver stored and did not report."""
        known = self._storage.get_trial(trial._trial_id)
        if run.epoch == 0 or known.state.is_finished():
            return
        for point in self._points(run.id):
            if point.value is not None and known.intermediate_values.get(point.epoch) != point.value:
                self._report(trial, point.epoch, point.value)

    def _report(self, trial: optuna.Trial, step: int, value: float) -> None:
        """As `Trial.report`, which ignores a step that was reported before."""
        self._storage.set_trial_intermediate_value(trial._trial_id, step, value)
        trial._cached_frozen_trial.intermediate_values[step] = value

    def _id(self, number: int) -> int:
        trial_id: int = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
        return trial_id
