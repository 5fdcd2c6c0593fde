"""How many runs share a card (`resources.gpus: auto`), found by the study's own runs as they train.

A study begins with BEGIN runs on each card. Each epoch that a run reports says how fast it trained and how many trained
beside it. While twice as many runs train faster together, and the card's memory allows, more are started; where they do
not, fewer start from then on. No run is stopped for it. What was found is kept in SQL (`CardFacts`) for the next study.

Ray reserves a part of a card as a run starts, and puts runs on the fullest card that has room. With one card each run
reserves the least that it may come to share. With several, the first run of a card reserves more than half of it, the
second more than half of the rest, and so on, so that each card gets as many runs as the others.

Knows neither Ray nor SQL.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import fmean

from search.assignment import Pace, Slot
from search.records import CardFacts

BEGIN = 2
"""Runs on a card of which nothing is known."""
BEGIN_ON_LARGE = 4
LARGE_CARDS = frozenset({"A100", "GH200", "H20", "H100", "H200", "B200", "B300", "GB200", "GB300"})
"""Cards of 40 GiB or more, as Ray names them: four runs begin there."""
FIRST_RAISE = 8
"""Runs that may train on a card after the first report at the latest, if it says that they have room."""
LEFT_FOR_MORE = 2
"""Runs that must be left for each that a card gets more: what it gains must be worth the start of its process."""
MOST = 16
"""Runs on a card; more are not tried."""
MIN_GAIN = 1.05
"""By which twice as many runs must raise the card's total, or each of them only becomes slower."""
MEMORY_SHARE = 0.9
"""Of the card that runs may fill; the rest is left for fragmentation and for an evaluation's peak."""
FACTS_LAST = timedelta(days=30)
"""Older facts are found again: a driver or a library may have changed."""
FEWER, MORE = 0.75, 1.1
"""Of a number of runs: how many train during an epoch that counts for it, on average. Some are often about to start."""
CLEAR = 0.1
"""A gain that differs by so much from the least one needs no further epochs."""
N_IF_UNCLEAR = 3
"""Epochs of each run from which a smaller difference is decided."""
N_KEPT = 128
"""Of the epochs that runs reported, and of the runs that left, the latest."""
_NARROWING = (0.51, 0.25, 0.09, 0.09, *(0.0125,) * 4, *(0.0012,) * 8)
"""Parts of a card that its first, second, … run reserves, each more than half of what is left for its equals."""


@dataclass(frozen=True, kw_only=True)
class CardKind:
    """The cards of one model in the cluster.

    Attributes:
        name: as Ray names it, such as `H200`; empty where Ray knows none.
        n_cards: how many there are.
        most: runs that a card may have, for the CPUs beside it and the study's limit.
    """

    name: str
    n_cards: int
    most: int


@dataclass(kw_only=True)
class _Stay:
    """A run on a card: the place that it has there, and from when until when it trained, by the clock."""

    kind: _Kind
    index: int
    limit: int  # of runs on a card as it came
    came_at: float
    card: str | None = None
    since: float = math.inf
    until: float = math.inf


@dataclass(frozen=True, kw_only=True)
class _Epoch:
    card: str
    ticket: str
    group: str
    begin: float
    end: float
    samples_per_s: float


_Totals = dict[str, list[tuple[str, float]]]
"""By group, the card's total that each epoch shows, and whose epoch it is."""


class Packing:
    """The cards of a cluster, and a study's runs on them. A run is on a card from `take` until `leave`."""

    def __init__(
        self,
        kinds: Iterable[CardKind],
        *,
        known: Mapping[str, CardFacts],
        release: str,
        clock: Callable[[], float],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Begin with what is known of these kinds of cards.

        Args:
            known: by kind, what earlier studies found of the task.
            release: the versions that decide memory and speed; facts of others are found again.
            clock: seconds since any moment.
        """
        self._clock = clock
        self._now = now
        self._release = release
        self._known = {name: facts for name, facts in known.items() if is_fresh(facts, release=release, now=now())}
        self._kinds: dict[str, _Kind] = {}
        self._stays: dict[str, _Stay] = {}
        self._unstored: set[str] = set()
        self.update(kinds)

    def update(self, kinds: Iterable[CardKind]) -> None:
        """Use the cards that the cluster has now. Cards that have gone get no further run."""
        found = {kind.name: kind for kind in kinds}
        for name, kind in self._kinds.items():
            kind.resize(found.pop(name, CardKind(name=name, n_cards=0, most=kind.most)))
        for name, new in found.items():
            self._kinds[name] = _Kind(new, self._known.get(name))

    @property
    def n_at_once(self) -> int:
        """Runs that all cards may have now."""
        return sum(kind.n_slots for kind in self._kinds.values())

    @property
    def share(self) -> float:
        """A run's part of a card, on average over the cards."""
        n_cards = sum(kind.n_cards for kind in self._kinds.values())
        return n_cards / self.n_at_once if n_cards else 1.0

    @property
    def least_reserved(self) -> float:
        """The least part of a card that a run may reserve, now or when its card has more runs."""
        return min((1.0 / kind.most for kind in self._kinds.values()), default=1.0)

    @property
    def words(self) -> str:
        """How many runs share a card and why, for people."""
        present = [kind for kind in self._kinds.values() if kind.n_cards]
        if len(present) == 1:
            return present[0].words
        return "; ".join(f"{kind.name or 'other cards'}: {kind.words}" for kind in present)

    def take(self, ticket: str, *, crowded: bool = False) -> Slot | None:
        """A place for a run that is to start; None where every card has as many as it may.

        Args:
            crowded: whether other studies want cards: the places that leave them most are taken first.
        """
        free = {name: i for name, kind in self._kinds.items() if (i := self._free(kind, crowded=crowded)) is not None}
        if not free:
            return None
        name = min(free, key=lambda one: len(self._present(self._kinds[one])) / self._kinds[one].n_slots)
        kind = self._kinds[name]
        self._stays[ticket] = _Stay(kind=kind, index=free[name], limit=kind.limit, came_at=self._clock())
        several = sum(one.n_cards > 0 for one in self._kinds.values()) > 1
        return kind.slot(free[name], pinned=name if several else "", crowded=crowded)

    def has_room(self) -> bool:
        """Whether `take` would find a place."""
        return any(self._free(kind) is not None for kind in self._kinds.values())

    def leave(self, ticket: str) -> None:
        """The run has ended, by itself or not. One that has left already is not missed."""
        if (stay := self._stays.pop(ticket, None)) is not None and stay.card is not None:
            stay.until = self._clock()
            stay.kind.left.append(stay)

    def saw(self, ticket: str, pace: Pace, *, group: str, n_left: float = math.inf) -> None:
        """Take note of an epoch that a run reports now, and decide whether a card should have more runs, or fewer.

        Args:
            group: of runs that are equally fast on a free card: those of one optimizer and batch size.
            n_left: runs of the study that have not started.
        """
        if (stay := self._stays.get(ticket)) is None:
            return
        kind, end = stay.kind, self._clock() - pace.eval_s
        if stay.card is None:
            stay.card, stay.since = pace.card, end - pace.train_s
        kind.remember(pace)
        if kind.is_settled or pace.samples_per_s <= 0:
            return
        begin = max(end - pace.train_s, stay.since)
        if begin >= end:  # reports that came late, and together
            return
        kind.epochs.append(
            _Epoch(card=stay.card, ticket=ticket, group=group, begin=begin, end=end, samples_per_s=pace.samples_per_s)
        )
        n_left_a_card = n_left / max(1, kind.n_cards)
        if kind.decide([*self._present(kind), *kind.left], n_left=n_left_a_card):
            self._unstored.add(kind.name)

    def ran_out(self, ticket: str) -> bool:
        """A run found no memory left on its card. Returns whether fewer start from now on, so that it may be repeated.

        False where it had a card for itself, as far as this study knows. Of several that run out at once the first
        lowers the number, and the others came when it was higher.
        """
        if (stay := self._stays.get(ticket)) is None:
            return False
        n_at_once = math.ceil(len(self._present(stay.kind)) / max(1, stay.kind.n_cards))
        if n_at_once <= 1:
            return stay.limit > stay.kind.limit
        if stay.kind.run_out(n_at_once):
            self._unstored.add(stay.kind.name)
        return True

    def news(self) -> dict[str, CardFacts]:
        """By kind of card, what was found since the last call."""
        found = {name: self._kinds[name].facts(release=self._release, at=self._now()) for name in self._unstored}
        self._unstored.clear()
        return found

    def _present(self, kind: _Kind) -> list[_Stay]:
        return [stay for stay in self._stays.values() if stay.kind is kind]

    def _free(self, kind: _Kind, *, crowded: bool = False) -> int | None:
        """The place, counted from a card's first, that some card of this kind has free."""
        present = self._present(kind)
        if len(present) >= kind.n_slots:
            return None
        taken = Counter(stay.index for stay in present)
        order = range(kind.limit)
        return next((i for i in (reversed(order) if crowded else order) if taken[i] < kind.n_cards), None)


class _Kind:
    """The cards of one kind, and how many runs each may have.

    Attributes:
        limit: runs that a card may have now.
        is_settled: whether the number was found; else it grows.
        epochs: what runs reported while the number was growing.
        left: runs that left.
    """

    def __init__(self, kind: CardKind, known: CardFacts | None) -> None:
        self._kind = kind
        self._known = known
        self._first = BEGIN_ON_LARGE if kind.name in LARGE_CARDS else BEGIN
        self._wanted = self._first if known is None else known.n_at_once
        self.is_settled = known is not None and known.is_settled
        self._reason = "" if known is None else known.reason
        self._totals = {} if known is None else dict(known.totals)
        self._too_many = 2 * MOST
        self._before = max((n for n in self._totals if n < self._wanted), default=None)
        self._memory_bytes = 0 if known is None else known.memory_bytes
        self._card_bytes = 0 if known is None else known.card_bytes
        self._shares_are_equal = self.is_settled
        self.epochs: deque[_Epoch] = deque(maxlen=N_KEPT)
        self.left: deque[_Stay] = deque(maxlen=N_KEPT)

    @property
    def name(self) -> str:
        return self._kind.name

    @property
    def n_cards(self) -> int:
        return self._kind.n_cards

    @property
    def limit(self) -> int:
        return min(self._wanted, self._kind.most)

    @property
    def most(self) -> int:
        return self._kind.most

    @property
    def n_slots(self) -> int:
        return self.n_cards * self.limit

    @property
    def words(self) -> str:
        many = f"{self.limit} trial{'s' if self.limit > 1 else ''} a card"
        if self.limit < self._wanted or (not self.is_settled and self.limit == self.most):
            return f"{many}, {'the most that is tried' if self.most == MOST else 'as CPUs and the study allow'}"
        if not self.is_settled:
            return f"{many}, growing"
        return f"{many}{', as an earlier study found' if self._known is not None else ''}: {self._reason}"

    def resize(self, kind: CardKind) -> None:
        self._kind = kind

    def slot(self, index: int, *, pinned: str, crowded: bool) -> Slot:
        if self._shares_are_equal:
            reserved = 1.0 / self.limit
        elif self.n_cards == 1 or crowded:
            reserved = 1.0 / self.most
        else:
            reserved = 1.0 if self.most == 1 else _NARROWING[index]
        return Slot(
            kind=pinned,
            reserved=math.floor(reserved * 1e4 + 1e-6) / 1e4,  # as fine as Ray counts
            share=1.0 / self.limit,
            n_beside=self.limit if self.is_settled else min(2 * self.limit, self.most),
            reason=self.words,
        )

    def remember(self, pace: Pace) -> None:
        """The memory of a run. If the card has less than that which the facts are of, they do not hold."""
        if self._known is not None and pace.card_bytes and pace.card_bytes < 0.95 * self._card_bytes:
            self._known, self.is_settled, self._shares_are_equal = None, False, False
            self._wanted, self._before = min(self._first, self._wanted), None
            self._totals.clear()
        self._card_bytes = pace.card_bytes or self._card_bytes
        self._memory_bytes = max(self._memory_bytes, pace.memory_bytes)

    def decide(self, stays: Sequence[_Stay], *, n_left: float) -> bool:
        """Let a card have more runs, or fewer, if what they reported says so. Returns whether anything was found.

        There is nothing to compare the first runs with, so that more start as soon as the first report says how much
        memory a run takes; until those train, the first ones show what their number is compared with.
        """
        n, most = self.limit, min(self.most, self._too_many - 1)
        following = 2 * n if 2 * n <= most else n if self._too_many <= self.most else most
        if n == following and n in self._totals:
            return False
        if self._before is None and following > n:
            self._raise([2 * n, *(m for m in (4 * n,) if self._card_bytes and m <= min(FIRST_RAISE, most))], before=n)
            return self.is_settled
        before = self._before or 0
        now, earlier = self._shown(stays, n, before)
        n_epochs = sum(map(len, now.values()))
        if len({ticket for totals in now.values() for ticket, _ in totals}) < math.ceil(n / 2):
            return False
        if earlier:
            self._totals[before] = _mean(earlier)
        total = _mean(now)
        if before in self._totals:
            gain, needed = self._gain(now, earlier, before=before), MIN_GAIN ** math.log2(n / before)
            if abs(gain - needed) < CLEAR and n_epochs < N_IF_UNCLEAR * n:
                return False
            if gain < needed:
                self._totals[n] = total
                self._take_back(n, f"{n} {'gained' if gain >= 1 else 'lost'} {abs(gain - 1):.0%}", before=before)
                return True
        elif n_epochs < n:
            return False
        self._totals[n] = total
        if self._too_many <= self.most and 2 * n >= self._too_many:
            self._settle(n, self._reason)
        elif following > n and n_left >= LEFT_FOR_MORE * (following - n):
            self._raise([following], before=n)
        return True

    def _raise(self, numbers: Sequence[int], *, before: int) -> None:
        """Let the largest of these numbers of runs start that fits into the card's memory and is allowed."""
        allowed = [min(number, self.most) for number in numbers]
        fitting = [
            m for m in allowed if not self._card_bytes or m * self._memory_bytes <= MEMORY_SHARE * self._card_bytes
        ]
        if fitting and fitting[-1] > before:
            self._wanted, self._before = fitting[-1], before
        elif not fitting:
            room = f"{allowed[0]} of {_gib(self._memory_bytes)} do not fit in {_gib(self._card_bytes)}"
            self._settle(before, room)

    def _take_back(self, n: int, reason: str, *, before: int) -> None:
        """So many were too many. Where their number had been raised at once by more than a doubling, half are tried."""
        if n // 2 > before:
            self._wanted, self._too_many, self._reason = n // 2, n, reason
        else:
            self._settle(before, reason)

    def _shown(self, stays: Sequence[_Stay], *numbers: int) -> list[_Totals]:
        """For each number of runs the totals that epochs show during which about so many trained on the card.

        A run says when it began to train with its first report. Epochs that ended after it came are shown only then.
        """
        until = min((stay.came_at for stay in stays if stay.card is None), default=math.inf)
        on_card: dict[str, list[_Stay]] = defaultdict(list)
        for stay in stays:
            if stay.card is not None:
                on_card[stay.card].append(stay)
        found: list[_Totals] = [defaultdict(list) for _ in numbers]
        for epoch in (epoch for epoch in self.epochs if epoch.end <= until):
            n_beside = _n_beside(epoch, on_card[epoch.card])
            for n, totals in zip(numbers, found, strict=True):
                if FEWER * n <= n_beside <= MORE * n:
                    totals[epoch.group].append((epoch.ticket, n_beside * epoch.samples_per_s))
        return found

    def run_out(self, n_at_once: int) -> bool:
        """So many runs on a card were too many. Returns whether that was news."""
        fewer = min(self.limit, 2 ** (math.ceil(math.log2(n_at_once)) - 1))
        if self.is_settled and fewer == self.limit:
            return False
        self._settle(fewer, f"{n_at_once} ran out of memory")
        return True

    def facts(self, *, release: str, at: datetime) -> CardFacts:
        return CardFacts(
            n_at_once=self.limit,
            is_settled=self.is_settled,
            reason=self._reason,
            totals=dict(self._totals),
            memory_bytes=self._memory_bytes,
            card_bytes=self._card_bytes,
            release=release,
            found_at=at,
        )

    def _gain(self, now: _Totals, earlier: _Totals, *, before: int) -> float:
        """The card's total now over that before, by the groups that trained with both numbers if any did."""
        if both := now.keys() & earlier.keys():
            return _mean({one: now[one] for one in both}) / _mean({one: earlier[one] for one in both})
        return _mean(now) / self._totals[before]

    def _settle(self, n: int, reason: str) -> None:
        self._wanted, self.is_settled, self._reason, self._known = n, True, reason, None
        # A run that reserves as much as one before it takes over its process; one that comes alone gets a new one.
        self._shares_are_equal = self._shares_are_equal or n == 1
        self.epochs.clear()
        self.left.clear()


def is_fresh(facts: CardFacts, *, release: str, now: datetime) -> bool:
    """Whether what was found then still holds."""
    return facts.release == release and now - facts.found_at < FACTS_LAST


def _n_beside(epoch: _Epoch, stays: Sequence[_Stay]) -> float:
    """How many of its card's runs trained during the epoch, itself among them, on average over its time."""
    both_s = sum(
        max(0.0, min(epoch.end, stay.until) - max(epoch.begin, stay.since)) for stay in stays if stay.card == epoch.card
    )
    return both_s / max(1e-9, epoch.end - epoch.begin)


def _mean(totals: Mapping[str, Sequence[tuple[str, float]]]) -> float:
    """Each group counts as much as the others, however many epochs it trained."""
    return fmean(fmean(total for _, total in of_group) for of_group in totals.values())


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
