"""One optimizer's search within a study: ask, report, prune and tell on its Optuna study, then the runs that follow.

It resumes from SQL alone and knows nothing of Ray: the coordinator says when a run starts, reports, ends or fails.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence, Set
from itertools import count
from typing import Any

from search import samplers
from search.confirmation import choose
from search.definition import StudyDefinition
from search.optimizer_search import OptimizerSearch
from search.records import (
    AttemptStart,
    Lease,
    Point,
    RunOutcome,
    RunRecord,
    SearchRecord,
    changed_points,
    copied_points,
    with_points,
)
from search.sections import WarmStart
from search.sensitivity import sensitivity_runs
from search.space import fit
from search.spending import FIRST_FAILED, fail_from_the_start
from search.states import FailureKind, RunState, Stage
from search.store import Store
from search.trials import SAME_AS, Trials
from search.warm_start import best_alone, portfolio

logger = logging.getLogger(__name__)


class SearchLoop:
    """The search of one optimizer. A run is live from `propose` until `finish` or `requeue`.

    Attributes:
        limit: the limit of the budget that ended the search stage, in words; None while none did.
        is_baseline: whether it is one trial of default settings, in addition to the optimizer's search.
        is_on_hold: whether no trial is asked for until a running one has ended.
        of, size: the optimizer's label in the definition, and in a study with `scale` the size of the model.
        waits_for_prediction: whether its trials follow from searches that have not ended.
    """

    def __init__(
        self,
        *,
        store: Store,
        lease: Lease,
        record: SearchRecord,
        definition: StudyDefinition,
        runs: Sequence[RunRecord],
        data_fingerprint: str | None = None,
        n_extensions: int = 0,
    ) -> None:
        self.record = record
        self.limit: str | None = None
        planned = definition.planned_search(record.label)
        self.spec: OptimizerSearch = planned.optimizer
        self.is_baseline = planned.is_baseline
        self.of, self.size = planned.of, planned.size
        self.waits_for_prediction = planned.is_predicted
        self._is_predicted = planned.is_predicted
        self.is_on_hold = False
        self._training_seed = definition.training_seed + planned.repeat
        self._definition = definition
        self._store = store
        self._lease = lease
        self._n_trials = definition.n_trials_of(self.spec)
        self._runs: dict[int, RunRecord] = {}
        self._first: dict[str, int] = {}
        for run in runs:
            self._add(run)
        self._waiting: deque[int] = deque(run.id for run in runs if not run.state.is_finished)
        self._live: set[int] = set()
        self._duplicates: dict[int, list[int]] = {}
        self._n_asked = len(self._search_runs())
        self._confirm_planned = False
        self._sensitivity_planned = definition.sensitivity is None or self.is_baseline or self._is_predicted
        self._search_over = False
        self._trials = Trials(
            store.optuna_storage(),
            record.optuna_name,
            definition=definition,
            planned=planned,
            points=store.points,
        )
        self._trials.reconcile({run.trial_number: run for run in self._search_runs()})
        # The extension of a study is a further chance: what made its trials fail may have been corrected.
        self._forgiven = {run.id for run in runs if n_extensions and run.state is RunState.FAIL}
        if not self._runs or n_extensions:  # an extended study may have settings left that its search did not come to
            self._queue_first()
        if not self._runs and definition.warm_start is not None and not self.is_baseline:
            self._warm_start(definition.warm_start, data_fingerprint)

    # What the coordinator asks ------------------------------------------------------------------------------------

    @property
    def n_live(self) -> int:
        return len(self._live)

    @property
    def n_to_start(self) -> int:
        """Runs that are still to start, as far as they are known: those that sensitivity asks for are not."""
        n_confirm = 0 if self._confirm_planned else self._definition.confirm.top_k * len(self._definition.confirm.seeds)
        n_to_ask = self._n_to_ask() - self._n_asked if self._can_ask() else 0
        return len(self._waiting) + n_to_ask + n_confirm

    @property
    def n_started(self) -> int:
        """Runs that were ever proposed: the coordinator's measure of whose turn it is."""
        return len(self._runs) - len(self._waiting)

    @property
    def is_done(self) -> bool:
        planned = self._confirm_planned and self._sensitivity_planned
        return not self._waiting and not self._live and not self._can_ask() and planned

    @property
    def has_sensitivity_left(self) -> bool:
        """Whether no other run than those of the sensitivity stage can start."""
        return self._confirm_planned and all(self._runs[one].stage is Stage.SENSITIVITY for one in self._waiting)

    @property
    def is_searching(self) -> bool:
        """Whether trials are still to be asked for, or have not ended."""
        return self._can_ask() or self.is_training_trials

    @property
    def is_training_trials(self) -> bool:
        """Whether trials that were asked for have not ended."""
        return any(not run.state.is_finished for run in self._search_runs())

    @property
    def fails_from_the_start(self) -> bool:
        """See `search.spending.fail_from_the_start`."""
        return fail_from_the_start(self._search_runs(), forgiven=self._forgiven)

    @property
    def has_given_up(self) -> bool:
        """Whether no further trial was started because the first ones failed."""
        return self.is_cut_short and self.limit == FIRST_FAILED

    def runs(self) -> list[RunRecord]:
        return list(self._runs.values())

    def keep(self, name: str, value: Any) -> None:
        """Keep a fact, as JSON, for the drivers that come after this one."""
        self._trials.keep(name, value)

    def kept(self) -> dict[str, Any]:
        """By name, what this driver and those before it kept."""
        return self._trials.kept()

    def end_search(self, limit: str) -> None:
        """Ask for no further trials, because this limit was met. Running trials continue."""
        self._search_over = True
        self.limit = self.limit or limit

    def close_waiting_trials(self, limit: str) -> None:
        """Close the search trials that wait for a worker, with what they reported if they reported anything."""
        while waiting := [run_id for run_id in self._waiting if self._runs[run_id].stage is Stage.SEARCH]:
            run = self._runs[waiting[0]]
            self._waiting.remove(run.id)
            values = [point.value for point in self._store.points(run.id) if point.value is not None]
            outcome = (
                RunOutcome(state=RunState.PRUNED, value=values[-1], error=f"{limit} while the trial waited")
                if values
                else RunOutcome(
                    state=RunState.FAIL, failure=FailureKind.CANCELLED, error=f"{limit} before the trial started"
                )
            )
            self.finish(run, outcome)

    @property
    def is_cut_short(self) -> bool:
        """Whether `limit` kept trials from starting, or from reaching their last epoch."""
        if self.limit is None:
            return False
        ended = any(run.error is not None and run.error.startswith(self.limit) for run in self._search_runs())
        return ended or self._n_asked < self._n_to_ask()

    def propose(self) -> RunRecord | None:
        """The next run to start, which is then live; None where there is nothing to start now."""
        while True:
            if self._waiting:
                run = self._runs[self._waiting.popleft()]
                if run.stage is Stage.SEARCH and self._is_duplicate(run):
                    continue
                self._live.add(run.id)
                return run
            if self.waits_for_prediction and not self._search_over:
                return None
            if self._can_ask() and not self.is_on_hold:
                self._waiting.append(self._ask().id)
            elif not self._plan_confirm() and not self._plan_sensitivity():
                return None

    def report(self, run: RunRecord, points: Sequence[Point], *, start: AttemptStart | None = None) -> None:
        """Store points of the curve, also as Optuna's intermediate values. Points that are stored already are skipped.

        Epochs that an attempt trains again after its last checkpoint replace the stored ones.

        Args:
            start: where the attempt runs; given with its first points.
        """
        points = self._changed_points(run, points)
        if not points and start is None:
            return
        self._store.add_points(self._lease, run.id, points, start=start)
        self._advance(run, points)

    def _changed_points(self, run: RunRecord, points: Sequence[Point]) -> Sequence[Point]:
        if all(point.epoch > self._runs[run.id].epoch for point in points):
            return points
        return changed_points(points, stored=self._store.points(run.id))

    def _advance(self, run: RunRecord, points: Sequence[Point]) -> None:
        if run.stage is Stage.SEARCH:
            self._trials.report(self._runs[run.id], points)
        if points:
            self._runs[run.id] = with_points(self._runs[run.id], points)

    def should_prune(self, run: RunRecord) -> bool:
        """Whether the pruner stops this trial. It compares with trials of the same optimizer only."""
        verifies = run.stage is not Stage.SEARCH or self._is_predicted
        return not verifies and self._trials.should_prune(self._runs[run.id])

    def epoch_of(self, run: RunRecord) -> int:
        """The run's last stored epoch."""
        return self._runs[run.id].epoch

    def update(self, run: RunRecord) -> None:
        """Replace the run's record by what the store returned."""
        self._runs[run.id] = run

    def finish(
        self,
        run: RunRecord,
        outcome: RunOutcome,
        *,
        points: Sequence[Point] = (),
        start: AttemptStart | None = None,
    ) -> None:
        """Record the end of a run in our tables, then in Optuna's. If it is repeated, the first end is kept.

        Args:
            points, start: reported together with the end; see `report`.
        """
        self._live.discard(run.id)
        points = self._changed_points(run, points)
        ended = self._store.finish_run(self._lease, run.id, outcome, points=points, start=start)
        self._advance(run, points)
        self._runs[run.id] = ended
        if run.stage is Stage.SEARCH:
            self._trials.tell(ended)
            for duplicate in self._duplicates.pop(run.id, []):
                if self._runs[duplicate].state.is_finished:
                    continue
                if ended.failure is not None and ended.failure.is_accident:
                    self._waiting.append(duplicate)
                else:
                    self._finish_duplicate(self._runs[duplicate], original=ended)

    def requeue(self, run: RunRecord) -> None:
        """Put the run at the end of the queue, unless it was ended in the store meanwhile."""
        if run.state.is_finished:
            self.finish(run, RunOutcome(state=run.state, failure=run.failure, error=run.error))
            return
        self._live.discard(run.id)
        self._runs[run.id] = run
        self._waiting.append(run.id)

    def drop(self, run_ids: Set[int], outcome: RunOutcome) -> None:
        """Remove runs that were ended in the store from the queue, and tell Optuna that they ended."""
        for run_id in run_ids & self._runs.keys():
            if not self._runs[run_id].state.is_finished:
                if run_id in self._waiting:
                    self._waiting.remove(run_id)
                self.finish(self._runs[run_id], outcome)

    def close(self, outcome: RunOutcome) -> None:
        """End all unfinished runs, and start no others."""
        self._search_over = self._confirm_planned = self._sensitivity_planned = True
        self._waiting.clear()
        self._duplicates.clear()
        self._fail_unstarted()
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
        return not self._search_over and not self._confirm_planned and self._n_asked < self._n_to_ask()

    def _n_to_ask(self) -> int:
        """The budget's trials, and another one for each that was lost with its machine, at most as many again.

        Settings that are lost a second time are not replaced again: they may be what kills the worker. Where the study
        was extended, each trial that had been cancelled is replaced, however often that was.
        """
        if self._is_predicted:
            return self._n_trials
        runs = self._search_runs()
        ended = [run for run in runs if run.state is RunState.FAIL]  # others are tried again
        lost = {_key(run.params) for run in ended if run.failure is not None and run.failure.is_lost}
        n_cancelled = sum(run.failure is FailureKind.REPLACED for run in runs)
        return self._n_trials + min(len(lost), self._n_trials) + n_cancelled

    def _ask(self) -> RunRecord:
        """Create the next trial and its run. A trial that a dead driver created without a run gets its run first."""
        asked = self._trials.ask()
        run = self._store.create_run(
            self._lease,
            self.record.id,
            trial_number=asked.number,
            stage=Stage.SEARCH,
            seed=self._training_seed,
            params=asked.params,
            taken_from=asked.taken_from,
        )
        self._add(run)
        self._n_asked += 1
        return run

    def _queue_first(self) -> None:
        """Queue the configurations that the definition gives first. A grid contains them already."""
        if not isinstance(self._definition.sampler, samplers.GridSampler):
            for values in self.spec.first[: self._n_trials]:
                self._trials.enqueue(fit(values, self.spec.space))

    def verify(self, trials: Sequence[Mapping[str, Any]]) -> None:
        """Queue the trials that verify a prediction, but those that exist. An extended study may predict anew."""
        self.waits_for_prediction = False
        made = {_key(run.params) for run in self._search_runs() if run.failure is not FailureKind.REPLACED}
        self._n_trials = self._n_asked + sum(_key(params) not in made for params in trials)
        for params in trials:
            self._trials.enqueue(params)

    def _warm_start(self, source: WarmStart, data_fingerprint: str | None) -> None:
        """Queue the best configurations of earlier studies, after those that an earlier driver queued."""
        n = source.n_trials_within(self._definition.budget)
        ask: dict[str, Any] = {"like": self._definition, "data_fingerprint": data_fingerprint}
        ask["studies"] = source.studies
        if source.scope == "everything":
            taken = portfolio(self._store.earlier_trials(self.spec.name, **ask), self.spec, like=self._definition, n=n)
        else:
            taken = best_alone(self._store.best_settings(self.spec.name, **ask, limit=n), self.spec)
        for one in taken:
            self._trials.enqueue(one.params, attributes=one.attributes)
        if not taken:
            logger.info(
                "%s: no ended study has a trial of %s that this search can begin with; it starts cold",
                self.record.label,
                self.spec.name,
            )

    def _fail_unstarted(self) -> None:
        self._trials.fail_unstarted({run.trial_number for run in self._search_runs()})

    # Duplicate configurations ---------------------------------------------------------------------------------------

    def _is_duplicate(self, run: RunRecord) -> bool:
        """Whether an earlier trial has this configuration. Training is seeded, so the result of one holds for both."""
        key = _key(run.params)
        original = self._runs[self._first[key]]
        if original.failure is not None and original.failure.is_accident:
            self._first[key] = run.id  # its failure has nothing to do with the configuration
        if self._first[key] == run.id:
            return False
        if original.state.is_finished:
            self._finish_duplicate(run, original=original)
        else:
            self._duplicates.setdefault(original.id, []).append(run.id)
        return True

    def _finish_duplicate(self, duplicate: RunRecord, *, original: RunRecord) -> None:
        self._trials.note(duplicate, SAME_AS, original.trial_number)
        outcome = RunOutcome(state=original.state, value=original.value, failure=original.failure, error=original.error)
        self.finish(duplicate, outcome, points=copied_points(self._store.points(original.id)))

    # Confirmation ---------------------------------------------------------------------------------------------------

    def _plan_confirm(self) -> bool:
        """Queue the confirm runs once the search stage is over. Returns whether there are runs to start."""
        if self._confirm_planned or any(not run.state.is_finished for run in self._search_runs()):
            return False
        self._confirm_planned = True
        self._fail_unstarted()
        self.confirm_with(self._definition.confirm.seeds)
        return bool(self._waiting)

    def confirm_with(self, seeds: Sequence[int]) -> None:
        """Queue the confirm runs of the chosen trials with these seeds; those that exist already stay as they are.

        Of an extended study those exist whose trial was chosen before, too; runs of others stay as records. What had
        been cancelled then runs again.
        """
        for chosen in select(self._search_runs(), self._definition):
            for seed in seeds:
                self._queue(Stage.CONFIRM, chosen.trial_number, seed=seed, params=chosen.params)

    def _queue(self, stage: Stage, number: int, *, seed: int, params: Mapping[str, Any]) -> None:
        """Queue a run that follows the search, unless it exists; one that had been cancelled may be waiting again."""
        run = self._store.create_run(
            self._lease, self.record.id, trial_number=number, stage=stage, seed=seed, params=params
        )
        known = self._runs.get(run.id)
        if known is None or (known.state.is_finished and not run.state.is_finished):
            self._runs[run.id] = run
            self._waiting.append(run.id)

    def _plan_sensitivity(self) -> bool:
        """Queue the sensitivity runs once the trial is chosen. Returns whether there are runs to start."""
        if self._sensitivity_planned or not self._confirm_planned:
            return False
        confirm_runs = [run for run in self._runs.values() if run.stage is Stage.CONFIRM]
        if self._definition.confirm.top_k > 1 and any(not run.state.is_finished for run in confirm_runs):
            return False  # they choose
        self._sensitivity_planned = True
        best = best_of_each(self._search_runs(), self._definition)[: max(1, self._definition.confirm.top_k)]
        chosen = choose(best, confirm_runs, self._definition.objective.direction)
        if chosen is None:
            return False
        made = [run for run in self._runs.values() if run.stage is Stage.SENSITIVITY]
        numbers = {_key(run.params): run.trial_number for run in made}
        free = count(max(numbers.values(), default=-1) + 1)
        for params, seed in sensitivity_runs(self._definition, self.spec, self.runs(), chosen):
            number = numbers.setdefault(_key(params), -1)
            if number < 0:
                number = numbers[_key(params)] = next(free)
            self._queue(Stage.SENSITIVITY, number, seed=seed, params=params)
        return bool(self._waiting)

    def confirmed_values(self) -> dict[int, float | None]:
        """By seed, the value of each finished confirm run; None for one that failed. Cancelled runs are left out."""
        return {
            run.seed: run.value if run.state is RunState.COMPLETE else None
            for run in self._confirm_runs()
            if run.state.is_finished and not (run.failure and run.failure.is_withdrawn)
        }

    def cancelled_seeds(self) -> set[int]:
        """Seeds of the confirm runs that were cancelled."""
        return {run.seed for run in self._confirm_runs() if run.failure is FailureKind.CANCELLED}

    def _confirm_runs(self) -> list[RunRecord]:
        """Those of the trials that are chosen now: an extended study may have others."""
        chosen = {run.trial_number for run in select(self._search_runs(), self._definition)}
        return [run for run in self._runs.values() if run.stage is Stage.CONFIRM and run.trial_number in chosen]


def select(runs: Sequence[RunRecord], definition: StudyDefinition) -> list[RunRecord]:
    """The `top_k` best trials by validation, each configuration once."""
    return best_of_each(runs, definition)[: definition.confirm.top_k]


def best_of_each(runs: Sequence[RunRecord], definition: StudyDefinition) -> list[RunRecord]:
    """The COMPLETE trials by their value, each configuration once. Of equal ones the earlier trial comes first."""
    chosen: dict[str, RunRecord] = {}
    for run in best_first(runs, definition):
        chosen.setdefault(_key(run.params), run)
    return list(chosen.values())


def best_first(runs: Sequence[RunRecord], definition: StudyDefinition) -> list[RunRecord]:
    """The COMPLETE runs by their value. Of equal ones the earlier trial comes first."""
    complete = [(run.value, run) for run in runs if run.state is RunState.COMPLETE and run.value is not None]
    by_number = sorted(complete, key=lambda pair: pair[1].trial_number)
    return [run for _, run in definition.objective.direction.best_first(by_number, lambda pair: pair[0])]


def _key(params: Mapping[str, Any]) -> str:
    return json.dumps(params, sort_keys=True)
