"""Adaptive confirmation: few seeds first, more where the question is open, valid at every look.

Owns the schedule of looks, how much alpha each look spends, and which optimizers get more seeds. Does not own the runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from search.analysis.summary import AnalysisError
from search.analysis.verdicts import Looks, PairVerdict, Rules, Sample, compare
from search.states import Verdict

GROWTH = 1.3
"""Ratio of the numbers of seeds at two looks."""


@dataclass(frozen=True)
class Plan:
    """Looks after `first` seeds of each optimizer, then after about 1.3 times as many, up to `max_seeds`.

    Raises:
        AnalysisError: first is below 2, or max_seeds below first.
    """

    first: int
    max_seeds: int
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 2 <= self.first <= self.max_seeds:
            raise AnalysisError(
                f"the first look is at {self.first} seeds and the last at {self.max_seeds}; the first must be at least "
                "2 and not after the last"
            )

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """Seeds of each optimizer at each look; increasing."""
        numbers = [self.first]
        while numbers[-1] < self.max_seeds:
            numbers.append(min(self.max_seeds, max(numbers[-1] + 1, round(numbers[-1] * GROWTH))))
        return tuple(numbers)

    def look_of(self, n: int) -> int | None:
        """The last look, counted from 0, that an optimizer with n seeds has reached; None before the first."""
        return max((i for i, seeds in enumerate(self.looks) if seeds <= n), default=None)

    def until(self, look: int) -> Looks:
        """The looks up to this one, counted from 0; alpha is spent in proportion to the seeds."""
        numbers = self.looks[: look + 1]
        before = (0, *numbers)
        spent = tuple(self.alpha * (n - last) / self.max_seeds for last, n in zip(before, numbers, strict=False))
        return Looks(n=numbers, spent=spent)

    def rules_at(self, rules: Rules, look: int) -> Rules:
        """The rules of one look, counted from 0."""
        return replace(rules, alpha=self.alpha, looks=self.until(look))


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What one look decides.

    Attributes:
        look: its number, from 0.
        verdicts: of all pairs at this look.
        open: optimizers that need the seeds of the next look; empty where the question is decided or the seeds are used
            up.
        settled: optimizers that need no further seeds: another one is better, or they are equivalent to the leader.
            Where the rules compare with one optimizer only, those that are decided against it.
        n_next: seeds that each open optimizer should have at the next look.
    """

    look: int
    verdicts: tuple[PairVerdict, ...]
    open: tuple[str, ...]
    settled: tuple[str, ...]
    n_next: int | None


def decide(samples: Mapping[str, Sample], rules: Rules, plan: Plan) -> Decision:
    """Look at the results so far: what is settled, who needs more seeds.

    The look is the last one for which the optimizer with most runs has its seeds. The question is who is best: it is
    decided once every other optimizer is worse than, or equivalent to, the leader. Where the rules compare with one
    optimizer only, the question is each other's contrast with it, and it takes part as long as one is open. Intervals
    and decisions hold at all looks together with probability 1 − alpha, whatever is stopped in between.

    Raises:
        AnalysisError: as `compare`; no optimizer has the seeds of the first look.
    """
    most = max((sample.n for sample in samples.values()), default=0)
    look = plan.look_of(most)
    if look is None:
        raise AnalysisError(f"the first look needs {plan.looks[0]} runs of an optimizer; there are {most}")
    verdicts = compare(samples, plan.rules_at(rules, look))
    leader = _leader(samples, verdicts, rules)
    settled = _settled(verdicts, leader, rules)
    candidates = [label for label in samples if label not in settled]
    is_over = look == len(plan.looks) - 1 or len(candidates) <= 1
    return Decision(
        look=look,
        verdicts=tuple(verdicts),
        open=() if is_over else tuple(candidates),
        settled=tuple(label for label in samples if label in settled),
        n_next=None if is_over else plan.looks[look + 1],
    )


def _settled(verdicts: Sequence[PairVerdict], leader: str | None, rules: Rules) -> set[str]:
    if rules.against is not None:
        return {
            label
            for v in verdicts
            if v.verdict is not Verdict.UNDECIDED
            for label in (v.a, v.b)
            if label != rules.against
        }
    equivalent = [v for v in verdicts if v.verdict is Verdict.EQUIVALENT and leader in (v.a, v.b)]
    return _behind(verdicts) | {v.b if v.a == leader else v.a for v in equivalent}


def _behind(verdicts: Sequence[PairVerdict]) -> set[str]:
    """Those that another one is shown to be better than."""
    return {v.b if v.better == v.a else v.a for v in verdicts if v.verdict is Verdict.BETTER}


def replay(
    results: Mapping[str, Mapping[int, float | None]], seeds: Mapping[str, Sequence[int]], rules: Rules, plan: Plan
) -> tuple[Decision | None, dict[str, list[int]]]:
    """The last look that the results allow, and the seeds that the next one still needs.

    Every look is taken again from the results alone, so that a driver that takes over decides as the one before.

    Args:
        results: by label and seed; None for a run that failed.
        seeds: by label, in the order in which they are trained; fewer than `plan.max_seeds` where runs were cancelled.

    Returns:
        The decision, None before the first look; missing seeds by label, none where the question is decided or the
        seeds are used up.
    """
    n = dict.fromkeys(results, plan.looks[0])
    decision: Decision | None = None
    while True:
        wanted = {label: seeds[label][:count] for label, count in n.items()}
        missing = {label: [s for s in of if s not in results[label]] for label, of in wanted.items()}
        if missing := {label: of for label, of in missing.items() if of}:
            return decision, missing
        samples = {label: _sample({seed: results[label][seed] for seed in of}) for label, of in wanted.items()}
        decision = decide(samples, rules, plan)
        if decision.n_next is None:
            return decision, {}
        n.update(dict.fromkeys(decision.open, decision.n_next))


def _sample(values: Mapping[int, float | None]) -> Sample:
    known: dict[Hashable, float] = {seed: value for seed, value in values.items() if value is not None}
    return Sample(values=known, n_failed=len(values) - len(known))


def _leader(samples: Mapping[str, Sample], verdicts: Sequence[PairVerdict], rules: Rules) -> str | None:
    behind = _behind(verdicts)
    means = {
        label: sum(sample.values.values()) / len(sample.values)
        for label, sample in samples.items()
        if label not in behind and sample.values and not sample.n_failed
    }
    return rules.direction.best_first(means, means.__getitem__)[0] if means else None
