"""Decides for a running study which run is next, what a report means, and when the study is over.

Owns what spans the study's optimizers: fair turns, the end of searches, retries. It knows neither Ray nor SQL: Tune
reaches it through `search.tuning`, and the store is a protocol. Where runs train is in `search.places`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from admeta.spaces import split_recipe
from search.analysis import Decision
from search.assignment import Assignment, Report
from search.confirmation import describe, next_seeds
from search.definition import StudyDefinition
from search.loop import SearchLoop
from search.objectives import COSTS
from search.places import Place, Places, Workplace
from search.prediction import results_of, verifying_trials, why_not_verified
from search.records import Lease, RunOutcome, RunRecord, StudyRecord, run_folder
from search.spending import FIRST_FAILED, may_be_spent, spent_by_search, spent_by_study
from search.states import FailureKind, RunState, Stage, StudyState
from search.store import Store
from tasks.config import with_recipe
from tasks.engine.folders import inside

logger = logging.getLogger(__name__)

FREE_FALSE_STARTS = 3
WORKER_TIMEOUT_S = 60.0
MAX_ERROR = 500
"""Characters of an error in a study's reason."""

PROCESS_EACH = "the runs that start from now have a process each; this does not count as a failure of the run"
TOO_MANY = "too many runs shared the card, so that fewer start now; this does not count as a failure of the run"


class Idle(Enum):
    """Why there is no run to start."""

    WAIT = "wait"
    DONE = "done"


@dataclass
class _LiveRun:
    """A run that was proposed and has not ended; `start_epoch` is None until its worker starts."""

    loop: SearchLoop
    run: RunRecord
    proposed_at_s: float
    start_epoch: int | None = None


class Coordinator:
    """Decides for one study. Every decision is stored before it is carried out."""

    def __init__(
        self,
        *,
        store: Store,
        lease: Lease,
        study: StudyRecord,
        workplace: Workplace,
        elapsed_s: Callable[[], float],
    ) -> None:
        """Resume the study from the state that is stored.

        Args:
            elapsed_s: seconds since the study first ran, for `max_hours`.
        """
        self._store = store
        self._lease = lease
        self._study = study
        self._definition: StudyDefinition = study.definition
        self._elapsed_s = elapsed_s
        runs = store.runs(study.id)
        self._loops = [
            SearchLoop(
                store=store,
                lease=lease,
                record=record,
                definition=study.definition,
                runs=[run for run in runs if run.search_id == record.id],
                data_fingerprint=study.data_fingerprint,
                n_extensions=study.n_extensions,
            )
            for record in store.searches(study.id)
        ]
        self._places = Places(workplace, self._loops, study=study, store=store, lease=lease)
        self._live: dict[str, _LiveRun] = {}
        self._confirming: str | None = None
        self._told: str | None = None
        self._has_reported = False
        self._last_failure: str | None = None
        self._raised: dict[int, str] = {}
        self._false_starts: Counter[int] = Counter()
        self._closed = False
        self._apply_budgets()
        if not any(loop.is_searching for loop in self._loops):
            decision, _ = self._next_seeds()
            self._confirming = None if decision is None else describe(decision)

    def next(self, ticket: str) -> Assignment | Idle:
        """The next run, to start under this ticket (Tune's trial id)."""
        self._apply_budgets()
        self.tell_why_waiting()
        if not self._places.has_room():
            return Idle.WAIT
        # Fair turns: the optimizer with the fewest live runs comes first, then the one with the fewest started runs.
        # Sensitivity runs come last: what they spend must not end the search of another optimizer.
        for loop in sorted(self._loops, key=lambda loop: (loop.has_sensitivity_left, loop.n_live, loop.n_started)):
            run = loop.propose()
            if run is not None:
                place = self._places.take(ticket, run)
                self._live[ticket] = _LiveRun(loop, run, proposed_at_s=self._elapsed_s())
                return self._assign(loop, run, place)
        if not all(loop.is_done for loop in self._loops):
            return Idle.WAIT
        return self.next(ticket) if self._confirm_further() else Idle.DONE

    def _confirm_further(self) -> bool:
        """Queue the seeds of the next look, where the study confirms until it is decided. True where there are any."""
        if self._closed or self._spent_limit() is not None:
            return False
        decision, missing = self._next_seeds()
        if not missing:
            return False
        for loop in self._loops:
            loop.confirm_with(missing.get(loop.record.label, ()))
        self._confirming = None if decision is None else describe(decision)
        logger.info("study %s: %s", self._study.id, self._confirming or "further seeds in place of cancelled runs")
        self.tell_why_waiting()
        return not all(loop.is_done for loop in self._loops)

    def _next_seeds(self) -> tuple[Decision | None, dict[str, list[int]]]:
        searches = [loop for loop in self._loops if not loop.is_baseline]
        results = {loop.record.label: values for loop in searches if (values := loop.confirmed_values())}
        cancelled = {loop.record.label: loop.cancelled_seeds() for loop in searches}
        return next_seeds(self._definition, results, cancelled=cancelled, n_seen=self._study.n_seen)

    def tell_why_waiting(self) -> None:
        """Store in the study's reason what it waits for, if that has changed."""
        reason = (
            self._places.workplace.why_none_fits()
            or self._why_no_worker_starts()
            or "; ".join(filter(None, (self._first_epoch() or self._confirming, self._places.packing_in_words())))
            or None
        )
        if reason != self._told:
            self._told = reason
            self._store.set_study_state(self._lease, StudyState.RUNNING, reason=reason)

    def _why_no_worker_starts(self) -> str | None:
        if any(live.start_epoch is not None for live in self._live.values()):
            return None
        waited_s = max((self._elapsed_s() - live.proposed_at_s for live in self._live.values()), default=0.0)
        if waited_s < WORKER_TIMEOUT_S:
            return None
        waited = f"has waited {waited_s // 60:.0f} min for Ray to start a worker"
        look = "look at the service's log and at `ray status`, and restart Ray if this continues"
        if self._places.workplace.is_shared():
            return f"{waited}; runs of other studies may hold its CPUs or cards. Where none trains, {look}"
        return f"{waited}, though the cluster has room for a run; {look}"

    def _first_epoch(self) -> str | None:
        """What this driver's runs do before the first of them reports, in words; None once one has."""
        if self._has_reported:
            return None
        if any(live.start_epoch is not None for live in self._live.values()):
            doing = "its first runs read the data, build the model and train their first epoch"
        elif not self._live and not self._places.n_at_once():
            doing = "waits for CPUs or cards, which studies of higher priority use"
        else:
            doing = "starts its first workers"
        return doing if self._last_failure is None else f"{doing}; {self._last_failure}"

    def begin(self, ticket: str) -> None:
        """Count a new attempt: the run's worker starts."""
        if (live := self._live.get(ticket)) is None:
            return  # cancelled while its worker started
        live.run = run = self._store.start_attempt(self._lease, live.run.id)
        live.start_epoch = run.epoch
        self._places.begin(ticket)
        live.loop.update(run)
        if not self._has_reported:
            self.tell_why_waiting()
        logger.info("%s: attempt %d starts", _named(live.loop, run), run.attempt, extra=_about(live.loop, run))

    def report(self, ticket: str, report: Report) -> bool:
        """Record a worker's report. Returns whether the run is over: by itself, by the pruner or by the budget."""
        if (live := self._live.get(ticket)) is None:
            return True  # cancelled meanwhile
        if not self._has_reported:
            self._has_reported = True
            self.tell_why_waiting()
        loop, run, end = live.loop, live.run, report.end
        if report.pace is not None:
            self._places.saw(ticket, report.pace, loop=loop, run=run)
        if end is None:
            loop.report(run, report.points, start=report.start)
            end = self._end_early(loop, run, report)
            if end is None:
                return False
            loop.finish(run, end)
        else:
            loop.finish(run, end, points=report.points, start=report.start)
        logger.info("%s: %s", _named(loop, run), end.state, extra=_about(loop, run))
        self._remove(ticket)
        return True

    def _end_early(self, loop: SearchLoop, run: RunRecord, report: Report) -> RunOutcome | None:
        """The outcome of a run that is stopped before its last epoch; None if it continues."""
        last = report.points[-1]
        spent = self._spent_limit() if run.stage is Stage.SEARCH else None
        if spent is not None:
            error = f"{spent} during the trial's epoch {last.epoch}"
            return RunOutcome(state=RunState.PRUNED, value=last.value, error=error)
        return RunOutcome(state=RunState.PRUNED, value=last.value) if loop.should_prune(run) else None

    def fail(self, ticket: str, *, kind: FailureKind, error: str) -> None:
        """Record a failed attempt (an exception, or its worker died), and try again up to `max_failures` times.

        Two failures do not count: a worker that died before it began (up to FREE_FALSE_STARTS times), and a lost node
        if the run made progress on it. So a run finishes on unreliable nodes, but not one that kills its node.
        """
        if ticket not in self._live:
            return  # its end was recorded before its worker died
        if kind is FailureKind.OUT_OF_MEMORY and self._places.has_cohort(ticket):
            self.give_up_cohort(ticket, reason=error)
            return
        crowded = kind is FailureKind.OUT_OF_MEMORY and self._places.is_too_crowded(ticket)
        live = self._remove(ticket)
        loop, run = live.loop, live.run
        if crowded:
            logger.warning("%s: %s", _named(loop, run), error, extra=_about(loop, run))
            loop.requeue(self._store.interrupt_attempt(self._lease, run.id, reason=f"{error}; {TOO_MANY}"))
            return
        if live.start_epoch is None:
            self._false_starts[run.id] += 1
            if kind is not FailureKind.ERROR and self._false_starts[run.id] <= FREE_FALSE_STARTS:
                loop.requeue(run)
                return
            run = self._store.start_attempt(self._lease, run.id)
        elif kind is FailureKind.PREEMPTED and loop.epoch_of(run) > live.start_epoch:
            loop.requeue(self._store.interrupt_attempt(self._lease, run.id, reason=error))
            return
        outcome = RunOutcome(state=RunState.FAIL, failure=kind, error=error)
        logger.warning("%s: its attempt failed (%s): %s", _named(loop, run), kind, error, extra=_about(loop, run))
        should_retry = self._should_retry(loop, run, kind, error)
        run = self._store.fail_attempt(self._lease, run.id, outcome=outcome)
        if run.n_failures > self._definition.max_failures or not should_retry:
            loop.finish(run, outcome)
        else:
            loop.requeue(run)
        if not self._has_reported:
            self._last_failure = f"{_named(loop, run)}: attempt {run.attempt} failed: {error[:MAX_ERROR]}"
            self.tell_why_waiting()

    def _should_retry(self, loop: SearchLoop, run: RunRecord, kind: FailureKind, error: str) -> bool:
        """Whether to try again. A run that ran out of memory on a shared card is tried once more, on a whole one.

        What a run raises twice in the same words before its first epoch, it would raise again: it is its code's fault.
        """
        if kind is FailureKind.OUT_OF_MEMORY:
            return self._places.want_whole_card(loop, run)
        if kind is FailureKind.ERROR and loop.epoch_of(run) == 0:
            before, self._raised[run.id] = self._raised.get(run.id), error
            return error != before
        return True

    def give_up_cohort(self, ticket: str, *, reason: str) -> None:
        """Queue a run again that cannot be trained in a cohort. From now on each run gets a process of its own."""
        if ticket not in self._live:
            return  # cancelled meanwhile
        live = self._remove(ticket)
        self._places.give_up_cohort(live.loop, reason=reason)
        live.loop.requeue(self._store.interrupt_attempt(self._lease, live.run.id, reason=f"{reason}; {PROCESS_EACH}"))

    def leave_cohort(self, ticket: str, *, reason: str) -> None:
        """Put a run back into the queue whose result is certain only in a process of its own, which it gets next."""
        if (live := self._live.get(ticket)) is not None:
            self._places.leave_cohort(live.loop, live.run)
        self.interrupt(ticket, reason=reason)

    def interrupt(self, ticket: str, *, reason: str) -> None:
        """Put a run back into the queue that did not fail: a pause, or its machine or another run of its cohort."""
        if ticket in self._live:  # else cancelled meanwhile
            live = self._remove(ticket)
            live.loop.requeue(self._store.interrupt_attempt(self._lease, live.run.id, reason=reason))

    def drop_cancelled(self) -> list[str]:
        """Drop the runs that were cancelled by request. Returns the tickets whose workers must be ended."""
        cancelled = self._store.cancelled_runs(self._study.id)
        tickets = [ticket for ticket, live in self._live.items() if live.run.id in cancelled]
        for ticket in tickets:
            self._remove(ticket)
        for loop in self._loops:
            loop.drop(cancelled, _cancelled("the trial was cancelled"))
        return tickets

    def cancel(self) -> None:
        """End every unfinished run as FAIL with failure CANCELLED."""
        self._closed = True
        for ticket in list(self._live):
            self._remove(ticket)
        for loop in self._loops:
            loop.close(_cancelled("the study was cancelled"))

    def others_wait(self) -> bool:
        """Whether other studies have runs, for which a place may be wanted that no run of this study has."""
        return self._places.workplace.is_shared()

    def _remove(self, ticket: str) -> _LiveRun:
        self._places.leave(ticket)
        return self._live.pop(ticket)

    def _assign(self, loop: SearchLoop, run: RunRecord, place: Place) -> Assignment:
        definition, workplace = self._definition, self._places.workplace
        folder = run_folder(self._study.id, loop.record.label, run)
        settings, recipe = split_recipe({**loop.spec.fixed, **run.params})
        return Assignment(
            run_id=run.id,
            label=loop.record.label,
            trial_number=run.trial_number,
            stage=run.stage,
            seed=run.seed,
            attempt=run.attempt + 1,
            task=with_recipe(definition.task.model_dump(mode="json"), recipe),
            optimizer=loop.spec.name,
            settings=settings,
            metric=definition.objective.metric,
            direction=definition.objective.direction,
            checkpoint_dir=inside(workplace.storage, folder),
            checkpoint_every_s=definition.checkpoint_every_s,
            data_dir=workplace.data_dir,
            threads=max(1, int(definition.resources.cpus)),
            cpus=workplace.each.cpus,
            gpus=place.gpus,
            placement=place.placement,
            init_from=workplace.init_from,
            reported=tuple(one.metric for one in definition.objectives if one.metric not in COSTS),
            slot=place.slot,
            cohort=place.cohort,
            own_process=place.own_process,
            study_id=self._study.id,
        )

    def completion_reason(self) -> str | None:
        """Which limits ended searches before their planned trials, and which searches have no result; None: neither."""
        cut_short = [loop for loop in self._loops if loop.is_cut_short and not loop.has_given_up]
        reasons = [f"{loop.record.label}: {loop.limit}" for loop in cut_short]
        return "; ".join([*reasons, *filter(None, map(_why_without_result, self._loops))]) or None

    def _apply_budgets(self) -> None:
        spent = self._spent_limit()
        for loop in self._loops:
            if spent is not None:
                loop.end_search(spent)
                loop.close_waiting_trials(spent)
            elif (limit := spent_by_search(self._definition, loop.runs())) is not None:
                loop.end_search(limit)
            elif loop.fails_from_the_start:
                loop.is_on_hold = loop.is_training_trials
                if not loop.is_on_hold:
                    loop.end_search(FIRST_FAILED)
            else:
                loop.is_on_hold = may_be_spent(self._definition, loop.runs())
        for loop in self._loops:
            if loop.waits_for_prediction and not loop.limit:
                self._predict(loop)

    def _predict(self, loop: SearchLoop) -> None:
        """Queue the trials that verify a prediction once the searches that it follows from have ended."""
        others = [one for one in self._loops if one.of == loop.of and one is not loop]
        if any(one.is_searching for one in others):
            return
        scale, direction = self._definition.scale, self._definition.objective.direction
        assert scale is not None
        optimizer = next(one for one in self._definition.optimizers if one.label == loop.of)
        results = {one.size: results_of(one.runs()) for one in others if one.size is not None}
        if reason := why_not_verified(scale, optimizer, results, direction):
            loop.end_search(reason)
        else:
            loop.verify(verifying_trials(scale, optimizer, results, direction))

    def _spent_limit(self) -> str | None:
        """The limit of the whole study that is spent, in words; None if none is."""
        runs = (run for loop in self._loops for run in loop.runs())
        return spent_by_study(self._definition.budget, runs, elapsed_s=self._elapsed_s)


def _why_without_result(loop: SearchLoop) -> str | None:
    """That all trials of a search failed, and the last one's error; None if one did not."""
    trials = [run for run in loop.runs() if run.stage is Stage.SEARCH]
    if not trials or any(run.state is not RunState.FAIL for run in trials):
        return None
    last = max(trials, key=lambda run: run.trial_number)
    error = (last.error or "").strip().splitlines()
    what = (error[-1] if error else str(last.failure)).rstrip(".")
    if loop.has_given_up:
        which = f"its first {len(trials)} trials failed, and no other starts until the study is extended; the last"
        return f"{loop.record.label}: {which} with: {what}"
    which = f"all {len(trials)} trials failed, the last" if len(trials) > 1 else "its only trial failed,"
    return f"{loop.record.label}: {which} with: {what}"


def _named(loop: SearchLoop, run: RunRecord) -> str:
    return f"{loop.record.label} trial {run.trial_number} ({run.stage}, seed {run.seed})"


def _about(loop: SearchLoop, run: RunRecord) -> dict[str, Any]:
    """The fields that `service.logs` adds to the line."""
    return {"about": {"label": loop.record.label, "trial": run.trial_number, "run": run.id}}


def _cancelled(error: str) -> RunOutcome:
    return RunOutcome(state=RunState.FAIL, failure=FailureKind.CANCELLED, error=error)
