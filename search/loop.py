"""One optimizer's search within a study: ask, report, prune and tell on its Optuna study, then the confirm runs.

Starts from SQL alone. Knows nothing of Ray: the coordinator says when a run starts, reports, ends or fails.
"""

from __future__ import annotations

import json
import warnings
from collections import deque
from collections.abc import Mapping, Sequence, Set
from typing import Any

import optuna
from optuna.trial import TrialState

from search import pruners, samplers
from search.curves import advanced, changed, copied
from search.definition import OptimizerSearch, StudyDefinition, WarmStart
from search.evidence import FAILURE_KIND
from search.records import (
    FailureKind,
    Lease,
    Point,
    RunOutcome,
    RunRecord,
    RunState,
    SearchRecord,
    Stage,
)
from search.space import draw, fit
from search.store import Store

_OPTUNA_STATES = {
    RunState.COMPLETE: TrialState.COMPLETE,
    RunState.PRUNED: TrialState.PRUNED,
    RunState.FAIL: TrialState.FAIL,
}

_ACCIDENTS = (FailureKind.ERROR, FailureKind.LOST, FailureKind.PREEMPTED, FailureKind.CANCELLED)


class SearchLoop:
    """The search of one optimizer. A run is live from `propose` until `finish` or `requeue`."""

    def __init__(
        self,
        *,
        store: Store,
        lease: Lease,
        record: SearchRecord,
        definition: StudyDefinition,
        runs: Sequence[RunRecord],
    ) -> None:
        self.record = record
        self.spec: OptimizerSearch = next(o for o in definition.optimizers if o.label == record.label)
        self._definition = definition
        self._store = store
        self._lease = lease
        self._n_trials = planned_trials(definition, self.spec)
        self._runs: dict[int, RunRecord] = {}
        self._first: dict[str, int] = {}
        for run in runs:
            self._add(run)
        self._waiting: deque[int] = deque(run.id for run in runs if not run.state.is_finished)
        self._live: set[int] = set()
        self._twins: dict[int, list[int]] = {}
        self._trials: dict[int, optuna.Trial] = {}
        self._n_asked = len(self._search_runs())
        self._confirm_planned = False
        self._search_over = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study = optuna.create_study(
                study_name=record.optuna_name,
                storage=store.optuna_storage(),
                direction=definition.objective.direction,
                pruner=pruners.build(definition.pruner, max_epochs=definition.task.epochs),
                load_if_exists=True,
            )
        self._adoptable = self._reconcile()
        if definition.warm_start is not None and not self._runs:
            self._warm_start(definition.warm_start)

    # What the coordinator asks ------------------------------------------------------------------------------------

    @property
    def n_live(self) -> int:
        return len(self._live)

    @property
    def n_started(self) -> int:
        """Runs that were ever proposed: the coordinator's measure of whose turn it is."""
        return len(self._runs) - len(self._waiting)

    @property
    def is_done(self) -> bool:
        return not self._waiting and not self._live and not self._can_ask() and self._confirm_planned

    def runs(self) -> list[RunRecord]:
        return list(self._runs.values())

    def end_search(self) -> None:
        """Ask for no further trials (a budget is spent or the target is met); those that run go on."""
        self._search_over = True

    def propose(self) -> RunRecord | None:
        """The run to start next, which is then live; None while there is nothing to start."""
        while True:
            if self._waiting:
                run = self._runs[self._waiting.popleft()]
                if run.stage is Stage.SEARCH and self._is_twin(run):
                    continue
                self._live.add(run.id)
                return run
            if self._can_ask():
                self._waiting.append(self._ask().id)
            elif not self._plan_confirm():
                return None

    def report(self, run: RunRecord, points: Sequence[Point]) -> None:
        """Store points of the curve, also as Optuna's intermediate values; those stored already are skipped.

        What an attempt trains again, since its last checkpoint is older, takes the place of what was stored: the rest
        of the curve goes on from there.
        """
        known = self._runs[run.id]
        if any(point.epoch <= known.epoch for point in points):
            points = changed(points, stored=self._store.points(run.id))
        if not points:
            return
        trial = self._trial(run) if run.stage is Stage.SEARCH else None
        self._store.add_points(self._lease, run.id, points)
        self._runs[run.id] = advanced(known, points)
        for point in points:
            if trial is not None and point.value is not None:
                self._report_to_optuna(trial, step=point.epoch, value=point.value)

    def _report_to_optuna(self, trial: optuna.Trial, *, step: int, value: float) -> None:
        """As `Trial.report`, which would leave out a step that was reported before."""
        self._study._storage.set_trial_intermediate_value(trial._trial_id, step, value)
        trial._cached_frozen_trial.intermediate_values[step] = value

    def should_prune(self, run: RunRecord) -> bool:
        """Whether the pruner would stop this trial, compared with others of this optimizer only."""
        return run.stage is Stage.SEARCH and self._trial(run).should_prune()

    def epoch_of(self, run: RunRecord) -> int:
        """How far the run's curve goes by now."""
        return self._runs[run.id].epoch

    def update(self, run: RunRecord) -> None:
        """Take over what the store says of the run."""
        self._runs[run.id] = run

    def finish(self, run: RunRecord, outcome: RunOutcome) -> None:
        """Record the end of a run: in our tables, then in Optuna's. May be repeated; the first end stands."""
        self._live.discard(run.id)
        self._runs[run.id] = self._store.finish_run(self._lease, run.id, outcome)
        if run.stage is Stage.SEARCH:
            self._tell(self._trial(run), self._runs[run.id])
            self._trials.pop(run.id, None)
            for twin in self._twins.pop(run.id, []):
                if self._runs[twin].state.is_finished:
                    continue
                if self._runs[run.id].failure in _ACCIDENTS:
                    self._waiting.append(twin)
                else:
                    self._finish_twin(self._runs[twin], original=self._runs[run.id])

    def requeue(self, run: RunRecord) -> None:
        """Start the run again, after the others that wait; not one that was ended in the store meanwhile."""
        if run.state.is_finished:
            self.finish(run, RunOutcome(state=run.state, failure=run.failure, error=run.error))
            return
        self._live.discard(run.id)
        self._runs[run.id] = run
        self._waiting.append(run.id)

    def drop(self, run_ids: Set[int], outcome: RunOutcome) -> None:
        """Let go of runs that were ended in the store: they start no more, and Optuna hears of it."""
        for run_id in run_ids & self._runs.keys():
            if not self._runs[run_id].state.is_finished:
                if run_id in self._waiting:
                    self._waiting.remove(run_id)
                self.finish(self._runs[run_id], outcome)

    def close(self, outcome: RunOutcome) -> None:
        """End everything that is not finished, and start nothing more."""
        self._search_over = self._confirm_planned = True
        self._waiting.clear()
        self._twins.clear()
        self._fail_unborn()
        for run in [run for run in self._runs.values() if not run.state.is_finished]:
            self.finish(run, outcome)

    def _add(self, run: RunRecord) -> None:
        self._runs[run.id] = run
        if run.stage is Stage.SEARCH:
            self._first.setdefault(_key(run.params), run.id)

    # Trials ---------------------------------------------------------------------------------------------------------

    def _search_runs(self) -> list[RunRecord]:
        return [run for run in self._runs.values() if run.stage is Stage.SEARCH]

    def _can_ask(self) -> bool:
        return not self._search_over and not self._confirm_planned and self._n_asked < self._n_trials

    def _ask(self) -> RunRecord:
        """A new trial with its parameters and its run; one that a dead driver left half-made is completed first."""
        number = self._adoptable[0] if self._adoptable else self._next_number()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.sampler = samplers.build(
                self._definition.sampler, self.spec.space, label=self.spec.label, trial_number=number
            )
            trial = self._open_trial(self._adoptable.popleft()) if self._adoptable else self._study.ask()
            params = draw(trial, self.spec.space)
        run = self._store.create_run(
            self._lease,
            self.record.id,
            trial_number=trial.number,
            stage=Stage.SEARCH,
            seed=self._definition.training_seed,
            params=params,
        )
        self._add(run)
        self._n_asked += 1
        self._trials[run.id] = trial
        return run

    def _next_number(self) -> int:
        """That of the trial which `ask` will give: the first that a warm start queued, or a new one."""
        trials = self._study.get_trials(deepcopy=False)
        return next((trial.number for trial in trials if trial.state is TrialState.WAITING), len(trials))

    def _warm_start(self, source: WarmStart) -> None:
        """Queue the best configurations of earlier studies; those queued by a driver that died here are kept."""
        known = self._store.best_settings(
            self.spec.name,
            task=source.task or self._definition.task.name,
            objective=self._definition.objective,
            studies=source.studies,
            limit=min(source.n_trials, self._n_trials),
        )
        for settings in known:
            params = fit(settings, self.spec.space)
            if params:
                self._study.enqueue_trial(params, skip_if_exists=True)

    def _trial(self, run: RunRecord) -> optuna.Trial:
        if run.id not in self._trials:
            self._trials[run.id] = self._open_trial(run.trial_number)
            self._catch_up(self._trials[run.id], run)
        return self._trials[run.id]

    def _catch_up(self, trial: optuna.Trial, run: RunRecord) -> None:
        """Report to Optuna the points that a driver stored and died before it could."""
        if run.epoch == 0:
            return
        known = self._study._storage.get_trial(trial._trial_id)
        for point in [] if known.state.is_finished() else self._store.points(run.id):
            if point.value is not None and point.epoch not in known.intermediate_values:
                trial.report(point.value, step=point.epoch)

    def _open_trial(self, number: int) -> optuna.Trial:
        storage = self._study._storage
        trial_id = storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
        return optuna.Trial(self._study, trial_id)

    def _tell(self, trial: optuna.Trial, run: RunRecord) -> None:
        """Tell Optuna how the run ended, and why it failed: samplers learn from a divergence (search.evidence)."""
        if self._study._storage.get_trial(trial._trial_id).state.is_finished():
            return
        if run.failure is not None and run.state is RunState.FAIL:
            trial.set_user_attr(FAILURE_KIND, run.failure.value)
        if run.error is not None:
            trial.set_user_attr("failure", run.error[:2000])
        self._study.tell(
            trial,
            run.value if run.state is RunState.COMPLETE else None,
            state=_OPTUNA_STATES[run.state],
            skip_if_finished=True,
        )

    def _reconcile(self) -> deque[int]:
        """Tell Optuna the ends it missed; the numbers of unfinished trials that have no run yet."""
        by_number = {run.trial_number: run for run in self._search_runs()}
        adoptable: deque[int] = deque()
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            run = by_number.get(trial.number)
            if run is None:
                adoptable.append(trial.number)
            elif run.state.is_finished:
                self._tell(self._trial(run), run)
        return adoptable

    def _fail_unborn(self) -> None:
        """End the trials that will have no run: queued by a warm start, or left half-made by a dead driver."""
        self._adoptable.clear()
        born = {run.trial_number for run in self._search_runs()}
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.WAITING, TrialState.RUNNING)):
            if trial.number not in born:
                self._study._storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)

    # The same configuration twice -----------------------------------------------------------------------------------

    def _is_twin(self, run: RunRecord) -> bool:
        """Whether an earlier trial has this configuration: training is seeded, so its result stands for both."""
        key = _key(run.params)
        original = self._runs[self._first[key]]
        if original.failure in _ACCIDENTS:
            self._first[key] = run.id  # an accident says nothing of the settings
        if self._first[key] == run.id:
            return False
        if original.state.is_finished:
            self._finish_twin(run, original=original)
        else:
            self._twins.setdefault(original.id, []).append(run.id)
        return True

    def _finish_twin(self, twin: RunRecord, *, original: RunRecord) -> None:
        self.report(twin, copied(self._store.points(original.id)))
        self._trial(twin).set_user_attr("same_as_trial", original.trial_number)
        self.finish(
            twin,
            RunOutcome(state=original.state, value=original.value, failure=original.failure, error=original.error),
        )

    # Confirmation ---------------------------------------------------------------------------------------------------

    def _plan_confirm(self) -> bool:
        """Queue the confirm runs once the search stage is over. True where there is something to start."""
        if self._confirm_planned or any(not run.state.is_finished for run in self._search_runs()):
            return False
        self._confirm_planned = True
        self._fail_unborn()
        for chosen in select(self._search_runs(), self._definition):
            for seed in self._definition.confirm.seeds:
                run = self._store.create_run(
                    self._lease,
                    self.record.id,
                    trial_number=chosen.trial_number,
                    stage=Stage.CONFIRM,
                    seed=seed,
                    params=chosen.params,
                )
                if run.id not in self._runs:
                    self._runs[run.id] = run
                    self._waiting.append(run.id)
        return bool(self._waiting)


def planned_trials(definition: StudyDefinition, spec: OptimizerSearch) -> int:
    """Trials that this search will run: the budget, or the whole grid where that is smaller."""
    if isinstance(definition.sampler, samplers.GridSampler):
        return min(definition.budget.trials_per_optimizer, samplers.grid_size(spec.space))
    return definition.budget.trials_per_optimizer


def select(runs: Sequence[RunRecord], definition: StudyDefinition) -> list[RunRecord]:
    """The top_k trials by validation, best first, each configuration once; ties go to the earlier trial."""
    sign = -1.0 if definition.objective.direction == "maximize" else 1.0
    complete = [run for run in runs if run.state is RunState.COMPLETE and run.value is not None]
    chosen: dict[str, RunRecord] = {}
    for run in sorted(complete, key=lambda run: (sign * (run.value or 0.0), run.trial_number)):
        chosen.setdefault(_key(run.params), run)
    return list(chosen.values())[: definition.confirm.top_k]


def _key(params: Mapping[str, Any]) -> str:
    return json.dumps(params, sort_keys=True)
