"""Decides for a running study which run is next, what a report means, and when the study is over.

Owns what spans the study's optimizers: fair turns, budgets, retries. It knows neither Ray nor SQL: Tune reaches it
through `search.tuning`, and the store is a protocol.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from admeta.spaces import split_recipe
from search.analysis import Decision
from search.assignment import Assignment, Report, Slot
from search.confirmation import describe, next_seeds
from search.definition import StudyDefinition
from search.loop import SearchLoop
from search.objectives import COSTS, MEMORY
from search.packing import Packing
from search.prediction import results_of, verifying_trials, why_not_verified
from search.records import Capacity, Lease, RunOutcome, RunRecord, StudyRecord
from search.sections import N_TRIALS
from search.states import FailureKind, RunState, Stage, StudyState
from search.store import Store
from tasks.config import with_recipe
from tasks.engine.folders import inside

logger = logging.getLogger(__name__)

FREE_FALSE_STARTS = 3
WORKER_TIMEOUT_S = 60.0
ALONE = "a whole card: the attempt before ran out of memory on a shared one"
OUT_OF_COHORT = "a process of its own: several runs of its cohort became NaN or infinite at once"
PROCESS_EACH = "the runs that start from now have a process each; this does not count as a failure of the run"
WHOLE_CARD, OWN_PROCESS, NO_COHORT = "runs_on_a_whole_card", "runs_out_of_the_cohort", "why_no_cohort"
"""What a driver keeps for the next one (`SearchLoop.keep`): numbers of runs, and the reason in words."""
TOO_MANY = "too many runs shared the card, so that fewer start now; this does not count as a failure of the run"


class Idle(Enum):
    """Why there is no run to start."""

    WAIT = "wait"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """The resources and folders that every run of a study gets.

    Attributes:
        storage: folder or URI under which each run has its checkpoint folder.
        data_dir: the data folder, as workers see it.
        each: the resources of one run; where runs share cards (`packing`), the least that one may have.
        cohort: runs that one process trains together.
        without_cohort: returns the workplace where each run has a process of its own; None where it has one anyway.
        placement: the reason for that amount, in words.
        packing: the cards whose number of runs is found as they train; None: each run holds `each`.
        task_shape: of the facts that are found so (`Store.keep_card_facts`).
        is_crowded: returns whether other studies want cards.
        is_shared: returns whether other studies have runs.
        init_from: checkpoint folders of the trial that every run starts from.
        slots: returns how many runs the cluster has room for now.
        why_none_fits: returns why no machine of the cluster has room for a run; None where one has.
    """

    storage: str
    data_dir: str | None
    each: Capacity
    slots: Callable[[], int]
    init_from: tuple[str, ...] = ()
    placement: str = ""
    cohort: int = 1
    without_cohort: Callable[[], Workplace] | None = None
    packing: Packing | None = None
    task_shape: str = ""
    is_crowded: Callable[[], bool] = lambda: False
    is_shared: Callable[[], bool] = lambda: False
    why_none_fits: Callable[[], str | None] = lambda: None


@dataclass
class _LiveRun:
    """A run that was proposed and has not ended; `start_epoch` is None until its worker starts."""

    loop: SearchLoop
    run: RunRecord
    proposed_at_s: float
    is_in_cohort: bool
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
        self._workplace = workplace
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
        self._live: dict[str, _LiveRun] = {}
        self._confirming: str | None = None
        self._told: str | None = None
        self._has_reported = False
        self._false_starts: Counter[int] = Counter()
        kept = [loop.kept() for loop in self._loops]
        self._alone: set[int] = {run_id for one in kept for run_id in one.get(WHOLE_CARD, ())}
        self._out_of_cohort: set[int] = {run_id for one in kept for run_id in one.get(OWN_PROCESS, ())}
        self._why_no_cohort: str | None = next((one[NO_COHORT] for one in kept if NO_COHORT in one), None)
        if self._why_no_cohort is not None and workplace.without_cohort is not None:
            self._workplace = workplace.without_cohort()
        self._closed = False
        self._apply_budgets()
        if not any(loop.is_searching for loop in self._loops):
            decision, _ = self._next_seeds()
            self._confirming = None if decision is None else describe(decision)

    def next(self, ticket: str) -> Assignment | Idle:
        """The next run, to start under this ticket (Tune's trial id)."""
        self._apply_budgets()
        self.tell_why_waiting()
        is_full = len(self._live) >= self._room() or self._cards_are_full()
        if is_full or self._waits_for_a_card() or self._waits_for_a_cohort():
            return Idle.WAIT
        # Fair turns: the optimizer with the fewest live runs comes first, then the one with the fewest started runs.
        # Sensitivity runs come last: what they spend must not end the search of another optimizer.
        for loop in sorted(self._loops, key=lambda loop: (loop.has_sensitivity_left, loop.n_live, loop.n_started)):
            run = loop.propose()
            if run is not None:
                assignment = self._assign(loop, run, self._take_slot(ticket, run))
                in_cohort = assignment.cohort > 1
                self._live[ticket] = _LiveRun(loop, run, proposed_at_s=self._elapsed_s(), is_in_cohort=in_cohort)
                return assignment
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
            self._workplace.why_none_fits()
            or self._why_no_worker_starts()
            or "; ".join(filter(None, (self._first_epoch() or self._confirming, self._packing_in_words())))
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
        return (
            f"has waited {waited_s // 60:.0f} min for Ray to start a worker, though the cluster has room for a run; "
            "look at the service's log and at `ray status`, and restart Ray if this continues"
        )

    def _first_epoch(self) -> str | None:
        """What this driver's runs do before the first of them reports, in words; None once one has."""
        if self._has_reported:
            return None
        if any(live.start_epoch is not None for live in self._live.values()):
            return "its first runs read the data, build the model and train their first epoch"
        if not self._live and not self._room():
            return "waits for CPUs or cards, which studies of higher priority use"
        return "starts its first workers"

    def begin(self, ticket: str) -> None:
        """Count a new attempt: the run's worker starts."""
        if (live := self._live.get(ticket)) is None:
            return  # cancelled while its worker started
        live.run = run = self._store.start_attempt(self._lease, live.run.id)
        live.start_epoch = run.epoch
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
        if (packing := self._workplace.packing) is not None and report.pace is not None:
            packing.saw(ticket, report.pace, group=_group(loop, run), n_left=sum(one.n_to_start for one in self._loops))
            self._keep_card_facts(packing)
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
        if kind is FailureKind.OUT_OF_MEMORY and (self._live[ticket].is_in_cohort or self._workplace.cohort > 1):
            self.give_up_cohort(ticket, reason=error)
            return
        crowded = kind is FailureKind.OUT_OF_MEMORY and self._gives_way(ticket)
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
        should_retry = self._should_retry(loop, run, kind)
        run = self._store.fail_attempt(self._lease, run.id, outcome=outcome)
        if run.n_failures > self._definition.max_failures or not should_retry:
            loop.finish(run, outcome)
        else:
            loop.requeue(run)

    def _should_retry(self, loop: SearchLoop, run: RunRecord, kind: FailureKind) -> bool:
        """Whether to try again. A run that ran out of memory on a shared card is tried once more, on a whole one."""
        if kind is not FailureKind.OUT_OF_MEMORY:
            return True
        if run.id in self._alone or not self._cards_are_shared():
            return False
        self._keep_run(loop, run, self._alone, name=WHOLE_CARD)
        return True

    def _cards_are_shared(self) -> bool:
        return 0 < self._workplace.each.gpus < 1

    def _needs_whole_card(self, run: RunRecord) -> bool:
        """Where the study shares cards. The cluster may have others, or none, since the run needed a whole one."""
        return run.id in self._alone and self._cards_are_shared()

    def _keep_run(self, loop: SearchLoop, run: RunRecord, known: set[int], *, name: str) -> None:
        """Add a run to a set that the next driver knows, too."""
        known.add(run.id)
        loop.keep(name, sorted(known & {one.id for one in loop.runs()}))

    def give_up_cohort(self, ticket: str, *, reason: str) -> None:
        """Queue a run again that cannot be trained in a cohort. From now on each run gets a process of its own."""
        if ticket not in self._live:
            return  # cancelled meanwhile
        live = self._remove(ticket)
        if self._workplace.without_cohort is not None:
            self._why_no_cohort = f"no cohort: {reason.partition('. ')[0]}"
            live.loop.keep(NO_COHORT, self._why_no_cohort)
            logger.warning("study %s: %s", self._study.id, self._why_no_cohort)
            self._workplace = self._workplace.without_cohort()
        live.loop.requeue(self._store.interrupt_attempt(self._lease, live.run.id, reason=f"{reason}; {PROCESS_EACH}"))

    def _waits_for_a_cohort(self) -> bool:
        """Whether a cohort that gets no further runs still trains some, and holds the memory that processes need."""
        return self._why_no_cohort is not None and any(live.is_in_cohort for live in self._live.values())

    def _waits_for_a_card(self) -> bool:
        """Whether a run waits for a whole card. Until it has one, no other run may start on shares that are freed."""
        return any(self._needs_whole_card(live.run) and live.start_epoch is None for live in self._live.values())

    def leave_cohort(self, ticket: str, *, reason: str) -> None:
        """Put a run back into the queue whose result is certain only in a process of its own, which it gets next."""
        if (live := self._live.get(ticket)) is not None:
            self._keep_run(live.loop, live.run, self._out_of_cohort, name=OWN_PROCESS)
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
        return self._workplace.is_shared()

    def _room(self) -> int:
        """The number of runs that may be live. More would make Tune start new workers rather than reuse free ones."""
        slots, limit = self._workplace.slots(), self._definition.max_concurrent_trials
        return slots if limit is None else min(slots, limit)

    def _remove(self, ticket: str) -> _LiveRun:
        if self._workplace.packing is not None:
            self._workplace.packing.leave(ticket)
        return self._live.pop(ticket)

    def _cards_are_full(self) -> bool:
        packing = self._workplace.packing
        return packing is not None and not packing.has_room()

    def _take_slot(self, ticket: str, run: RunRecord) -> Slot | None:
        """The run's place on a card that it shares; None if it gets a fixed amount, or a whole card."""
        packing = self._workplace.packing
        if packing is None or self._needs_whole_card(run):
            return None
        return packing.take(ticket, crowded=self._workplace.is_crowded())

    def _gives_way(self, ticket: str) -> bool:
        """Whether the run ran out of memory because too many share its card, of which fewer start from now on."""
        packing = self._workplace.packing
        if packing is None or not packing.ran_out(ticket):
            return False
        self._keep_card_facts(packing)
        return True

    def _keep_card_facts(self, packing: Packing) -> None:
        for card, facts in packing.news().items():
            logger.info("study %s: %s", self._study.id, packing.words)
            if not self._workplace.is_crowded():  # else they say how many fit beside the other study's
                self._store.keep_card_facts(self._lease, self._workplace.task_shape, card, facts)

    def _packing_in_words(self) -> str | None:
        packing = self._workplace.packing
        return self._in_words(None if packing is None else packing.words)

    def _in_words(self, placement: str | None) -> str | None:
        """Why a run holds what it holds, after why it is in no cohort that the study asks for."""
        return "; ".join(filter(None, (self._why_no_cohort, placement))) or None

    def _assign(self, loop: SearchLoop, run: RunRecord, slot: Slot | None) -> Assignment:
        definition = self._definition
        folder = run_folder(self._study.id, loop.record.label, run)
        alone = self._needs_whole_card(run)
        cohort = 1 if alone or run.id in self._out_of_cohort else self._workplace.cohort
        placement = ALONE if alone else self._workplace.placement if slot is None else slot.reason
        if cohort < self._workplace.cohort and not alone:
            placement = OUT_OF_COHORT
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
            checkpoint_dir=inside(self._workplace.storage, folder),
            checkpoint_every_s=definition.checkpoint_every_s,
            data_dir=self._workplace.data_dir,
            threads=max(1, int(definition.resources.cpus)),
            cpus=self._workplace.each.cpus,
            gpus=1.0 if alone else self._workplace.each.gpus if slot is None else slot.reserved,
            placement=self._in_words(placement) or "",
            init_from=self._workplace.init_from,
            reported=tuple(one.metric for one in definition.objectives if one.metric not in COSTS),
            slot=slot,
            cohort=cohort,
            own_process=self._why_own_process(run),
            study_id=self._study.id,
        )

    def _why_own_process(self, run: RunRecord) -> str:
        """Why the run's process trains no others; empty: it may. What failed an attempt may fail those beside it."""
        if run.id in self._out_of_cohort:
            return "it left its cohort"
        if any(one.metric == MEMORY for one in self._definition.all_objectives):
            return "its memory is an objective"
        return "an attempt of it failed" if run.n_failures else ""

    def completion_reason(self) -> str | None:
        """Which limits ended searches before their planned trials, and which searches have no result; None: neither."""
        reasons = [f"{loop.record.label}: {loop.limit}" for loop in self._loops if loop.is_cut_short]
        return "; ".join([*reasons, *filter(None, map(_why_without_result, self._loops))]) or None

    def _apply_budgets(self) -> None:
        spent = self._spent_limit()
        for loop in self._loops:
            if spent is not None:
                loop.end_search(spent)
                loop.close_waiting_trials(spent)
            elif (limit := self._spent_limit_of(loop)) is not None:
                loop.end_search(limit)
            else:
                loop.is_on_hold = self._may_be_spent(loop)
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
        return self._first_spent(
            max_hours=lambda: self._elapsed_s() / 3600,
            gpu_hours=lambda: _gpu_hours(run for loop in self._loops for run in loop.runs()),
        )

    def _spent_limit_of(self, loop: SearchLoop) -> str | None:
        """The limit of this optimizer's search that is met, in words; None if none is."""

        def trained() -> Iterator[RunRecord]:  # a duplicate copies a result: it has no attempt, and cost nothing
            return (run for run in loop.runs() if run.stage is Stage.SEARCH and run.attempt > 0)

        target, direction = self._definition.budget.target, self._definition.objective.direction
        values = (run.value for run in trained() if run.state is RunState.COMPLETE and run.value is not None)
        if target is not None and any(direction.reaches(value, target) for value in values):
            return f"budget.target ({target:.12g}) was reached"
        ended = [run for run in trained() if run.state.is_finished]
        counts_cost = self._definition.budget.trials_per_optimizer is None
        if counts_cost and len(ended) >= N_TRIALS and not any(run.n_epochs for run in ended):
            return f"none of its first {N_TRIALS} trials trained an epoch"
        return self._first_spent(
            epochs_per_optimizer=lambda: sum(run.n_epochs for run in trained()),
            gpu_hours_per_optimizer=lambda: _gpu_hours(trained()),
        )

    def _may_be_spent(self, loop: SearchLoop) -> bool:
        """Whether the search's open trials may spend its whole budget, each being trained to its last epoch.

        No further trial starts until one of them is stopped early. So a search spends at most one training too many,
        however many trials run at once, and every optimizer spends as much.
        """
        budget = self._definition.budget
        max_epochs, max_hours = budget.epochs_per_optimizer, budget.gpu_hours_per_optimizer
        if max_epochs is None and max_hours is None:
            return False
        runs = [run for run in loop.runs() if run.stage is Stage.SEARCH]
        n_open = sum(self._definition.task.epochs - run.epoch for run in runs if not run.state.is_finished)
        trained = [run for run in runs if run.attempt > 0]
        n_epochs, gpu_hours = sum(run.n_epochs for run in trained), _gpu_hours(trained)
        if max_epochs is not None and n_epochs + n_open >= max_epochs:
            return True
        an_epoch = gpu_hours / n_epochs if n_epochs else 0.0
        return max_hours is not None and gpu_hours + n_open * an_epoch >= max_hours

    def _first_spent(self, **amounts: Callable[[], float]) -> str | None:
        """The first of these limits of the budget that its amount reaches, in words; None if none does."""
        for name, amount in amounts.items():
            limit = getattr(self._definition.budget, name)
            if limit is not None and amount() >= limit:
                return f"budget.{name} ({limit:.12g}) was spent"
        return None


def _why_without_result(loop: SearchLoop) -> str | None:
    """That all trials of a search failed, and the last one's error; None if one did not."""
    trials = [run for run in loop.runs() if run.stage is Stage.SEARCH]
    if not trials or any(run.state is not RunState.FAIL for run in trials):
        return None
    last = max(trials, key=lambda run: run.trial_number)
    error = (last.error or "").strip().splitlines()
    what = (error[-1] if error else str(last.failure)).rstrip(".")
    which = f"all {len(trials)} trials failed, the last" if len(trials) > 1 else "its only trial failed,"
    return f"{loop.record.label}: {which} with: {what}"


def _gpu_hours(runs: Iterable[RunRecord]) -> float:
    return sum(run.cost.gpu_s for run in runs) / 3600


def run_folder(study_id: str, label: str, run: RunRecord) -> str:
    """The run's folder for checkpoints and logs, relative to the storage."""
    return f"{study_id}/{label}/{run.trial_number:05d}/{run.stage.value}-{run.seed}"


def _group(loop: SearchLoop, run: RunRecord) -> str:
    """Names runs that are equally fast on a free card: of one optimizer, and of one recipe if it is searched."""
    _, recipe = split_recipe({**loop.spec.fixed, **run.params})
    return f"{loop.record.label} {recipe.get('batch_size', '')}"


def _named(loop: SearchLoop, run: RunRecord) -> str:
    return f"{loop.record.label} trial {run.trial_number} ({run.stage}, seed {run.seed})"


def _about(loop: SearchLoop, run: RunRecord) -> dict[str, Any]:
    """The fields that `service.logs` adds to the line."""
    return {"about": {"label": loop.record.label, "trial": run.trial_number, "run": run.id}}


def _cancelled(error: str) -> RunOutcome:
    return RunOutcome(state=RunState.FAIL, failure=FailureKind.CANCELLED, error=error)
