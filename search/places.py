"""Where a study's runs train: on a whole card, on a share of one, in a cohort, or in a process of their own.

Owns what is learned of it as runs train and fail: which of them need a whole card or a process of their own, why no
cohort is possible, and how many share a card. It is kept for the next driver of the study.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from admeta.spaces import split_recipe
from search.assignment import Pace, Slot
from search.loop import SearchLoop
from search.objectives import MEMORY
from search.packing import Packing
from search.records import Capacity, Lease, RunRecord, StudyRecord
from search.store import Store

logger = logging.getLogger(__name__)

ALONE = "a whole card: the attempt before ran out of memory on a shared one"
OUT_OF_COHORT = "a process of its own: several runs of its cohort became NaN or infinite at once"
WHOLE_CARD, OWN_PROCESS, NO_COHORT = "runs_on_a_whole_card", "runs_out_of_the_cohort", "why_no_cohort"
"""What a driver keeps for the next one (`SearchLoop.keep`): numbers of runs, and the reason in words."""


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


@dataclass(frozen=True, kw_only=True)
class Place:
    """What one run gets; the attributes are those of `search.assignment.Assignment`."""

    gpus: float
    slot: Slot | None
    cohort: int
    placement: str
    own_process: str


@dataclass
class _Taken:
    run_id: int
    is_in_cohort: bool
    has_begun: bool = False


class Places:
    """The places of a study's live runs. A run has one from `take` until `leave`.

    Attributes:
        workplace: what every run gets now; it changes once no cohort is possible.
    """

    def __init__(
        self, workplace: Workplace, loops: Sequence[SearchLoop], *, study: StudyRecord, store: Store, lease: Lease
    ) -> None:
        """Begin with what earlier drivers of the study found out."""
        self.workplace = workplace
        self._loops = loops
        self._study = study
        self._store = store
        self._lease = lease
        self._taken: dict[str, _Taken] = {}
        kept = [loop.kept() for loop in loops]
        self._alone: set[int] = {run_id for one in kept for run_id in one.get(WHOLE_CARD, ())}
        self._out_of_cohort: set[int] = {run_id for one in kept for run_id in one.get(OWN_PROCESS, ())}
        self._why_no_cohort: str | None = next((one[NO_COHORT] for one in kept if NO_COHORT in one), None)
        if self._why_no_cohort is not None and workplace.without_cohort is not None:
            self.workplace = workplace.without_cohort()

    # Places of runs that start and end --------------------------------------------------------------------------------

    def n_at_once(self) -> int:
        """The number of runs that may be live. More would make Tune start new workers rather than reuse free ones."""
        slots, limit = self.workplace.slots(), self._study.definition.max_concurrent_trials
        return slots if limit is None else min(slots, limit)

    def has_room(self) -> bool:
        """Whether a run may start now."""
        packing = self.workplace.packing
        is_full = len(self._taken) >= self.n_at_once() or (packing is not None and not packing.has_room())
        return not is_full and not self._waits_for_a_card() and not self._waits_for_a_cohort()

    def _waits_for_a_card(self) -> bool:
        """Whether a run waits for a whole card. Until it has one, no other run may start on shares that are freed."""
        return any(self._needs_whole_card(one.run_id) and not one.has_begun for one in self._taken.values())

    def _waits_for_a_cohort(self) -> bool:
        """Whether a cohort that gets no further runs still trains some, and holds the memory that processes need."""
        return self._why_no_cohort is not None and any(one.is_in_cohort for one in self._taken.values())

    def take(self, ticket: str, run: RunRecord) -> Place:
        """The place of a run that is to start."""
        workplace = self.workplace
        alone = self._needs_whole_card(run.id)
        packing = None if alone else workplace.packing
        slot = None if packing is None else packing.take(ticket, crowded=workplace.is_crowded())
        cohort = 1 if alone or run.id in self._out_of_cohort else workplace.cohort
        placement = ALONE if alone else workplace.placement if slot is None else slot.reason
        if cohort < workplace.cohort and not alone:
            placement = OUT_OF_COHORT
        self._taken[ticket] = _Taken(run.id, is_in_cohort=cohort > 1)
        return Place(
            gpus=1.0 if alone else workplace.each.gpus if slot is None else slot.reserved,
            slot=slot,
            cohort=cohort,
            placement=self._in_words(placement) or "",
            own_process=self._why_own_process(run),
        )

    def _why_own_process(self, run: RunRecord) -> str:
        """Why the run's process trains no others; empty: it may. What failed an attempt may fail those beside it."""
        if run.id in self._out_of_cohort:
            return "it left its cohort"
        if any(one.metric == MEMORY for one in self._study.definition.all_objectives):
            return "its memory is an objective"
        return "an attempt of it failed" if run.n_failures else ""

    def begin(self, ticket: str) -> None:
        """The run's worker starts: it has the resources that it waited for."""
        self._taken[ticket].has_begun = True

    def leave(self, ticket: str) -> None:
        """The run has ended, or waits in the queue again."""
        if self.workplace.packing is not None:
            self.workplace.packing.leave(ticket)
        del self._taken[ticket]

    # What is learned as runs train and fail ---------------------------------------------------------------------------

    def saw(self, ticket: str, pace: Pace, *, loop: SearchLoop, run: RunRecord) -> None:
        """Take note of an epoch that a run reports now: it may show that a card should have more runs, or fewer."""
        if (packing := self.workplace.packing) is not None:
            packing.saw(ticket, pace, group=_group(loop, run), n_left=sum(one.n_to_start for one in self._loops))
            self._keep_card_facts(packing)

    def is_too_crowded(self, ticket: str) -> bool:
        """Whether a run ran out of memory because too many share its card, of which fewer start from now on."""
        packing = self.workplace.packing
        if packing is None or not packing.ran_out(ticket):
            return False
        self._keep_card_facts(packing)
        return True

    def _keep_card_facts(self, packing: Packing) -> None:
        for card, facts in packing.news().items():
            logger.info("study %s: %s", self._study.id, packing.words)
            if not self.workplace.is_crowded():  # else they say how many fit beside the other study's
                self._store.keep_card_facts(self._lease, self.workplace.task_shape, card, facts)

    def want_whole_card(self, loop: SearchLoop, run: RunRecord) -> bool:
        """Give a run that ran out of memory on a shared card a whole one. False where it had one, or none is shared."""
        if run.id in self._alone or not self._cards_are_shared():
            return False
        self._keep_run(loop, run, self._alone, name=WHOLE_CARD)
        return True

    def has_cohort(self, ticket: str) -> bool:
        """Whether the run is in a cohort, or others of the study are that may fill its card."""
        return self._taken[ticket].is_in_cohort or self.workplace.cohort > 1

    def leave_cohort(self, loop: SearchLoop, run: RunRecord) -> None:
        """Give a run, from its next start on, a process of its own."""
        self._keep_run(loop, run, self._out_of_cohort, name=OWN_PROCESS)

    def give_up_cohort(self, loop: SearchLoop, *, reason: str) -> None:
        """Give each run that starts from now on a process of its own, since one cannot be trained in a cohort."""
        if self.workplace.without_cohort is not None:
            self._why_no_cohort = f"no cohort: {reason.partition('. ')[0]}"
            loop.keep(NO_COHORT, self._why_no_cohort)
            logger.warning("study %s: %s", self._study.id, self._why_no_cohort)
            self.workplace = self.workplace.without_cohort()

    def _cards_are_shared(self) -> bool:
        return 0 < self.workplace.each.gpus < 1

    def _needs_whole_card(self, run_id: int) -> bool:
        """Where the study shares cards. The cluster may have others, or none, since the run needed a whole one."""
        return run_id in self._alone and self._cards_are_shared()

    def _keep_run(self, loop: SearchLoop, run: RunRecord, known: set[int], *, name: str) -> None:
        """Add a run to a set that the next driver knows, too."""
        known.add(run.id)
        loop.keep(name, sorted(known & {one.id for one in loop.runs()}))

    # In words ---------------------------------------------------------------------------------------------------------

    def packing_in_words(self) -> str | None:
        """How many runs share a card, and why no cohort is possible; None where there is nothing to say."""
        packing = self.workplace.packing
        return self._in_words(None if packing is None else packing.words)

    def _in_words(self, placement: str | None) -> str | None:
        """Why a run holds what it holds, after why it is in no cohort that the study asks for."""
        return "; ".join(filter(None, (self._why_no_cohort, placement))) or None


def _group(loop: SearchLoop, run: RunRecord) -> str:
    """Names runs that are equally fast on a free card: of one optimizer, and of one recipe if it is searched."""
    _, recipe = split_recipe({**loop.spec.fixed, **run.params})
    return f"{loop.record.label} {recipe.get('batch_size', '')}"
