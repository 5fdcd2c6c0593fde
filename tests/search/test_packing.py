"""How many runs share a card: the decisions, on simulated cards that place runs as Ray does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from search.assignment import Pace, Slot
from search.packing import FACTS_LAST, CardKind, Packing
from search.records import CardFacts

GIB = 2**30
NOW = datetime(2026, 1, 1, tzinfo=UTC)
STEP_S = 0.25


def rising(up_to: int, *, then: float = 1.0) -> Callable[[int], float]:
    """A card's total by its number of runs: 80 % more for each doubling up to a number, and then times a factor."""

    def total(n: int) -> float:
        value, m = 1000.0, 1
        while m < n:
            value *= 1.8 if m < up_to else then
            m *= 2
        return value

    return total


@dataclass
class Run:
    slot: Slot
    card: str
    group: str
    left: float
    trains_at: float
    reported_at: float = 0.0
    n_epochs: int = 0


@dataclass
class Cluster:
    """Cards on which runs train at the same time, simulated in steps.

    Attributes:
        totals: by kind, the samples a second of a card's runs together.
        cards: by name, the kind.
        memory_bytes: of each run.
        noise: standard deviation of a rate, relative to it.
    """

    totals: Mapping[str, Callable[[int], float]]
    cards: Mapping[str, str]
    most: int = 16
    memory_bytes: int = GIB
    card_bytes: int = 140 * GIB
    start_s: float = 8.0
    epoch_samples: float = 10_000.0
    n_epochs: int = 8
    noise: float = 0.0
    known: Mapping[str, CardFacts] = field(default_factory=dict)
    crowded: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self.time = 0.0
        self.n_run_out = 0
        self.runs: dict[str, Run] = {}
        self.most_on: Counter[str] = Counter()
        self.history: list[int] = []
        self.n_started = 0
        self._random = random.Random(self.seed)
        n_of = Counter(self.cards.values())
        self.packing = Packing(
            [CardKind(name=kind, n_cards=n, most=self.most) for kind, n in n_of.items()],
            known=self.known,
            release="1",
            clock=lambda: self.time,
            now=lambda: NOW,
        )
        self.news: dict[str, CardFacts] = {}

    def train(self, n_runs: int) -> Cluster:
        """Train as many runs, one after the other where there is no room; returns itself."""
        waiting = n_runs
        self.n_left = n_runs
        for _ in range(200_000):
            while waiting and self.packing.has_room() and self._start():
                waiting -= 1
            self.n_left = waiting
            if not self.runs and not waiting:
                return self
            waiting += self._step()
        raise AssertionError("the runs did not end")

    def _start(self) -> bool:
        ticket = f"t{self.n_started}"
        slot = self.packing.take(ticket, crowded=self.crowded)
        assert slot is not None
        card = self._placed(slot)
        if card is None:  # Ray would let it wait
            self.packing.leave(ticket)
            return False
        self.n_started += 1
        group = f"optimizer{self.n_started % 3}"
        run = Run(slot=slot, card=card, group=group, left=self.epoch_samples, trains_at=self.time + self.start_s)
        self.runs[ticket] = run
        self.most_on[card] = max(self.most_on[card], self.n_on(card))
        return True

    def _placed(self, slot: Slot) -> str | None:
        """The fullest card with room, as Ray chooses."""
        free = {
            card: 1.0 - sum(run.slot.reserved for run in self.runs.values() if run.card == card)
            for card, kind in self.cards.items()
            if not slot.kind or kind == slot.kind
        }
        fits = {card: room for card, room in free.items() if room >= slot.reserved - 1e-9}
        return min(fits, key=lambda card: fits[card]) if fits else None

    def n_on(self, card: str) -> int:
        return sum(run.card == card for run in self.runs.values())

    def _step(self) -> int:
        """Let STEP_S pass. Returns how many runs have to be repeated."""
        self.time += STEP_S
        again = 0
        training = Counter(run.card for run in self.runs.values() if run.trains_at < self.time)
        for ticket, run in list(self.runs.items()):
            if run.trains_at >= self.time:
                continue
            if run.n_epochs == 0 and self.n_on(run.card) * self.memory_bytes > self.card_bytes:
                self.n_run_out += 1
                assert self.packing.ran_out(ticket)
                self._end(ticket)
                again += 1
                continue
            n = training[run.card]
            rate = self.totals[self.cards[run.card]](n) / n
            run.left -= rate * STEP_S
            if run.left <= 0:
                self._report(ticket, run)
        self.news |= self.packing.news()
        self.history.append(len(self.runs))
        return again

    def _report(self, ticket: str, run: Run) -> None:
        begin = max(run.trains_at, run.reported_at)
        spent = self.time - begin
        rate = self.epoch_samples / spent * self._random.gauss(1.0, self.noise)
        pace = Pace(
            card=run.card,
            samples_per_s=rate,
            train_s=spent,
            eval_s=0.0,
            memory_bytes=self.memory_bytes,
            card_bytes=self.card_bytes,
        )
        self.packing.saw(ticket, pace, group=run.group, n_left=self.n_left)
        run.left, run.reported_at, run.n_epochs = self.epoch_samples, self.time, run.n_epochs + 1
        if run.n_epochs == self.n_epochs:
            self._end(ticket)

    def _end(self, ticket: str) -> None:
        self.packing.leave(ticket)
        del self.runs[ticket]


def one_card(total: Callable[[int], float], **more: object) -> Cluster:
    return Cluster(totals={"": total}, cards={"a": ""}, **more)  # type: ignore[arg-type]


def test_more_runs_start_while_the_total_rises() -> None:
    cluster = one_card(rising(16))
    assert cluster.packing.words == "2 trials a card, growing"
    cluster.train(60)
    assert cluster.most_on["a"] == 16
    assert cluster.packing.words == "16 trials a card, the most that is tried"
    assert cluster.news[""].n_at_once == 16
    assert [cluster.news[""].totals[n] for n in (2, 8)] == pytest.approx([1800, 5832], rel=0.15)


def test_four_begin_on_a_large_card() -> None:
    cluster = Cluster(totals={"H200": rising(16)}, cards={"a": "H200"})
    assert cluster.packing.words == "4 trials a card, growing"
    cluster.train(60)
    assert list(cluster.news["H200"].totals) == [4, 8, 16]


def test_more_are_not_tried_for_the_few_runs_that_are_left() -> None:
    assert one_card(rising(16)).train(22).most_on["a"] == 8
    assert one_card(rising(16)).train(60).most_on["a"] == 16


@pytest.mark.parametrize(("then", "words"), [(1.01, "16 gained 1%"), (0.8, "16 lost 20%")])
def test_what_does_not_help_is_taken_back(then: float, words: str) -> None:
    """Runs that were started too many go on to their end; those after them start in fewer places."""
    cluster = one_card(rising(8, then=then)).train(80)
    assert cluster.most_on["a"] == 16
    assert cluster.packing.words.startswith("8 trials a card: 16 ")
    assert cluster.packing.n_at_once == 8
    assert cluster.n_started == 80  # none was started again
    assert cluster.news[""].is_settled


def test_two_stay_where_neither_eight_nor_four_gain() -> None:
    cluster = one_card(rising(1)).train(40)
    assert cluster.most_on["a"] == 8
    assert cluster.packing.words.startswith("2 trials a card: 4 gained 0%")


@pytest.mark.parametrize("up_to", [8, 16])
def test_noise_of_three_percent_seldom_changes_a_decision(up_to: int) -> None:
    """In 40 simulated studies it did in 0 to 3 %, of 5 % in 0 to 18 %; then one doubling more was kept."""
    found = [one_card(rising(up_to), noise=0.03, seed=seed).train(60).packing.n_at_once for seed in range(8)]
    assert sum(n == up_to for n in found) >= 7


def test_memory_is_asked_before_more_are_tried() -> None:
    cluster = one_card(rising(16), memory_bytes=15 * GIB, card_bytes=80 * GIB).train(40)
    assert cluster.n_run_out == 0
    assert cluster.most_on["a"] == 4
    assert cluster.packing.words == "4 trials a card: 8 of 15.0 GiB do not fit in 80.0 GiB"


def test_a_first_run_that_fills_the_card_leaves_it_alone() -> None:
    """Two begin, and one of them finds no room: it is repeated, alone on a card that Ray gives to it as a whole."""
    cluster = one_card(rising(16), memory_bytes=60 * GIB, card_bytes=80 * GIB).train(5)
    assert cluster.n_run_out >= 1
    assert cluster.packing.words == "1 trial a card: 2 ran out of memory"
    assert cluster.packing.take("next") == Slot(
        kind="", reserved=1.0, share=1.0, n_beside=1, reason="1 trial a card: 2 ran out of memory"
    )


def test_several_that_run_out_at_once_lower_the_number_once() -> None:
    packing = one_card(rising(16)).packing
    packing._kinds[""]._wanted = 8
    for number in range(8):
        packing.take(f"t{number}")
    for number in range(4, 8):
        assert packing.ran_out(f"t{number}")
        packing.leave(f"t{number}")
    assert packing.words == "4 trials a card: 8 ran out of memory"
    assert not packing.has_room()


def test_both_of_two_may_run_out_at_once() -> None:
    packing = one_card(rising(16)).packing
    for ticket in ("a", "b"):
        packing.take(ticket)
    for ticket in ("a", "b"):
        assert packing.ran_out(ticket)
        packing.leave(ticket)
    assert packing.words == "1 trial a card: 2 ran out of memory"
    packing.take("a again")
    assert not packing.ran_out("a again")


def test_a_run_alone_on_its_card_fails_by_itself() -> None:
    packing = one_card(rising(16)).packing
    packing.take("only")
    assert not packing.ran_out("only")
    assert not packing.ran_out("unknown")


@pytest.mark.parametrize("n_cards", [2, 3, 8])
def test_every_card_gets_as_many_runs(n_cards: int) -> None:
    cards = {f"c{i}": "" for i in range(n_cards)}
    cluster = Cluster(totals={"": rising(16)}, cards=cards).train(60 * n_cards)
    assert dict(cluster.most_on) == dict.fromkeys(cards, 16)
    assert max(cluster.history) == 16 * n_cards


def test_cards_of_two_kinds_have_numbers_of_their_own() -> None:
    cards = {"large": "H200", "small": "L4"}
    cluster = Cluster(totals={"H200": rising(16), "L4": rising(2)}, cards=cards).train(150)
    assert cluster.packing.words.startswith("H200: 16 trials a card, the most that is tried; L4: 2 trials a card: 4 ")
    assert cluster.news["L4"].n_at_once == 2
    assert cluster.news["H200"].n_at_once == 16


def facts(**changes: object) -> CardFacts:
    values: dict[str, object] = {
        "n_at_once": 8,
        "is_settled": True,
        "reason": "16 gained 1%",
        "totals": {4: 3240.0, 8: 5832.0, 16: 5900.0},
        "memory_bytes": GIB,
        "card_bytes": 140 * GIB,
        "release": "1",
        "found_at": NOW - timedelta(days=1),
    }
    return CardFacts(**{**values, **changes})  # type: ignore[arg-type]


def test_the_next_study_begins_with_what_is_known() -> None:
    cluster = one_card(rising(16), known={"": facts()})
    assert cluster.packing.words == "8 trials a card, as an earlier study found: 16 gained 1%"
    slot = cluster.packing.take("one")
    assert (slot.reserved, slot.share, slot.n_beside) == (0.125, 0.125, 8) if slot else False
    cluster.packing.leave("one")
    assert cluster.train(40).most_on["a"] == 8
    assert not cluster.news


def test_a_study_that_ended_before_it_was_decided_leaves_the_rest_to_the_next() -> None:
    first = one_card(rising(16)).train(12)
    assert not first.news[""].is_settled
    second = one_card(rising(16), known=first.news)
    assert second.packing.n_at_once == first.packing.n_at_once == 8
    assert second.train(60).packing.n_at_once == 16


@pytest.mark.parametrize(
    "stale", [{"found_at": NOW - FACTS_LAST}, {"release": "0"}], ids=["of long ago", "of another release"]
)
def test_stale_facts_are_found_again(stale: dict[str, object]) -> None:
    assert one_card(rising(16), known={"": facts(**stale)}).packing.words == "2 trials a card, growing"


def test_facts_of_a_larger_card_do_not_hold() -> None:
    cluster = one_card(rising(16), known={"": facts()}, card_bytes=80 * GIB).train(60)
    assert cluster.packing.n_at_once == 16
    assert cluster.news[""].card_bytes == 80 * GIB


def test_no_more_than_the_cpus_and_the_study_allow() -> None:
    cluster = one_card(rising(16), most=5)
    assert cluster.train(40).most_on["a"] == 5
    assert cluster.packing.words == "5 trials a card, as CPUs and the study allow"
    few = one_card(rising(16), most=3, known={"": facts()})
    assert few.train(9).most_on["a"] == 3
    assert not few.news  # what is known of more stays known
    assert few.packing.words == "3 trials a card, as CPUs and the study allow"
    assert one_card(rising(16), most=1).train(3).most_on["a"] == 1


def test_one_run_that_fills_its_card_is_no_reason_for_fewer() -> None:
    cluster = one_card(rising(16), most=1, memory_bytes=76 * GIB, card_bytes=80 * GIB).train(3)
    assert cluster.packing.words == "1 trial a card, as CPUs and the study allow"


def test_reports_that_arrive_late_and_together_are_no_epochs() -> None:
    """After a driver was busy the clock of its reports is wrong: an epoch may end before its run began."""
    now_s = [0.0]
    kinds = [CardKind(name="", n_cards=1, most=2)]
    packing = Packing(kinds, known={}, release="1", clock=lambda: now_s[0], now=lambda: NOW)
    pace = Pace(card="a", samples_per_s=9.0, train_s=1.0, eval_s=0.0, memory_bytes=1, card_bytes=100)
    for ticket in ("one", "two"):
        packing.take(ticket)
    now_s[0] = 100.0
    packing.saw("two", replace(pace, samples_per_s=0.0), group="adamw")
    packing.saw("one", pace, group="adamw")
    now_s[0] = 100.5
    packing.saw("one", replace(pace, eval_s=30.0), group="adamw")
    assert packing.words == "2 trials a card, as CPUs and the study allow"


def test_cards_come_and_go() -> None:
    packing = one_card(rising(16)).packing
    packing.update([CardKind(name="", n_cards=2, most=16), CardKind(name="L4", n_cards=1, most=4)])
    assert packing.n_at_once == 6
    packing.update([CardKind(name="L4", n_cards=1, most=4)])
    assert packing.n_at_once == 2
    assert packing.words == "2 trials a card, growing"
    packing.update([])
    assert not packing.has_room()


def test_beside_other_studies_runs_take_small_parts_of_a_card() -> None:
    """So that the others' runs find room as soon as one ends."""
    cluster = Cluster(totals={"": rising(16)}, cards={"a": "", "b": ""}, crowded=True)
    slots = [cluster.packing.take(f"t{number}", crowded=True) for number in range(4)]
    assert {slot.reserved for slot in slots if slot} == {0.0625}
