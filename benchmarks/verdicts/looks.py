"""Verdicts at several looks: more seeds where a pair is undecided, within one study or by extending it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.printing import show, wilson
from benchmarks.verdicts.samples import MAXIMIZE, MINIMIZE, REAL, any_better, last_losses, samples_of
from search.analysis import PairVerdict, Plan, Rules, compare, decide, replay
from search.states import Verdict

Draw = Callable[[np.random.Generator], float]

EXTENDED_TO = (3, 6, 12)
"""Seeds of a study, and after its first and second extension."""


def adaptive(data: Path) -> None:
    """Seeds spent until the question is decided, against a fixed number that decides as much."""
    groups = list(last_losses(data).values())
    rules, n_studies, plan = replace(MINIMIZE, margin=REAL), 100, Plan(3, 20)
    rows = []
    spent, decided = [], [0, 0]
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(n_studies):
        means, draws = _nine(groups, rng)
        verdicts, n_runs = _confirm_adaptively(draws, rules, plan, rng)
        spent.append(n_runs)
        wrong += _score(verdicts, means, decided)
    adaptive_share = decided[0] / decided[1]
    rows.append(f"adaptive, 3 to 20 | {np.mean(spent):.0f} | {100 * adaptive_share:.1f} | {wilson(wrong, n_studies)}")
    fixed: list[tuple[float, int]] = []
    for n in (6, 10, 14, 20):
        decided, wrong, rng = [0, 0], 0, np.random.default_rng(5)
        for _ in range(n_studies):
            means, draws = _nine(groups, rng)
            verdicts = compare(samples_of([[draw(rng) for _ in range(n)] for draw in draws]), rules)
            wrong += _score(verdicts, means, decided)
        fixed.append((decided[0] / decided[1], 9 * n))
        rows.append(f"{n} | {9 * n} | {100 * fixed[-1][0]:.1f} | {wilson(wrong, n_studies)}")
    equal = float(np.interp(adaptive_share, [share for share, _ in fixed], [n for _, n in fixed]))
    show(
        "Adaptive confirmation: nine recipes of one GPT, margin 0.002; the best recipe against each other",
        "seeds of each | runs in all | questions decided, % | studies with a wrong verdict, %",
        rows,
    )
    print(
        f"\nA fixed number that decides as much takes {equal:.0f} runs; "
        f"adaptive confirmation takes {100 * (1 - np.mean(spent) / equal):.0f} % fewer."
    )
    wrong, rng = 0, np.random.default_rng(6)
    for _ in range(n_studies):
        verdicts, _ = _confirm_adaptively([_normal(0, 1)] * 9, MINIMIZE, plan, rng)
        wrong += any_better(verdicts)
    print(f"Nine equal optimizers: {wilson(wrong, n_studies)} % of adaptive studies call any better.")
    _against_one(groups, plan)


def _against_one(groups: Sequence[np.ndarray], plan: Plan) -> None:
    """Adaptive confirmation where each optimizer is compared with the first one only."""
    rules, n_studies = replace(MINIMIZE, margin=REAL, against="o0"), 100
    rows = []
    for title, adaptive_rules in (("who is best", replace(rules, against=None)), ("each against one", rules)):
        rng, spent, decided, wrong = np.random.default_rng(8), 0, 0, 0
        for _ in range(n_studies):
            means, draws = _nine(groups, rng)
            verdicts, n_runs = _confirm_adaptively(draws, adaptive_rules, plan, rng)
            spent += n_runs
            decided += sum(pair.verdict is not Verdict.UNDECIDED for pair in verdicts if "o0" in (pair.a, pair.b))
            wrong += _score(verdicts, means, [0, 0])
        share = f"{100 * decided / (8 * n_studies):.1f}"
        rows.append(f"{title} | {spent / n_studies:.0f} | {share} | {wilson(wrong, n_studies)}")
    show(
        "Adaptive confirmation, 3 to 20 seeds: one of nine recipes of one GPT against each other, margin 0.002",
        "question | runs in all | contrasts with that one decided, % | studies with a wrong verdict, %",
        rows,
    )
    cases: Mapping[str, Callable[[np.random.Generator], Sequence[float]]] = {
        "equal": lambda _: [1] * 9,
        "unequal (log-normal standard deviations, 0.5)": lambda rng: list(np.exp(rng.normal(0, 0.5, 9))),
        "one of ten times the standard deviation": lambda _: [1] * 8 + [10],
    }
    rows, n_studies = [], 100
    for case, stds in cases.items():
        rng, wrong = np.random.default_rng(6), 0
        for _ in range(n_studies):
            draws = [_normal(0, std) for std in stds(rng)]
            rules = replace(MINIMIZE, against="o0", n_draws=6000)  # the first look spends 0.75 % of all
            looks = [verdicts for verdicts, _ in _looks(draws, rules, plan, rng)]
            wrong += any(map(any_better, looks))
        rows.append(f"{case} | {wilson(wrong, n_studies)}")
    show(
        f"Equal optimizers against one, adaptively, {n_studies} studies",
        "case | any called better at any look, %",
        rows,
    )


def _nine(groups: Sequence[np.ndarray], rng: np.random.Generator) -> tuple[list[float], list[Draw]]:
    chosen = [groups[i] for i in rng.choice(len(groups), 9, replace=False)]
    return [float(of.mean()) for of in chosen], [_normal(float(of.mean()), float(of.std(ddof=1))) for of in chosen]


def _normal(mean: float, std: float) -> Draw:
    return lambda rng: float(rng.normal(mean, std))


def _confirm_adaptively(
    draws: Sequence[Draw], rules: Rules, plan: Plan, rng: np.random.Generator
) -> tuple[Sequence[PairVerdict], int]:
    """The verdicts of the last look, and the seeds of all optimizers."""
    *_, last = _looks(draws, rules, plan, rng)
    return last


def _looks(
    draws: Sequence[Draw], rules: Rules, plan: Plan, rng: np.random.Generator
) -> Iterator[tuple[Sequence[PairVerdict], int]]:
    values: list[list[float]] = [[] for _ in draws]
    n: int | None = plan.looks[0]
    running = [f"o{i}" for i in range(len(draws))]
    while n is not None:
        for label in running:
            of = values[int(label[1:])]
            of += [draws[int(label[1:])](rng) for _ in range(n - len(of))]
        decision = decide(samples_of(values), rules, plan)
        yield decision.verdicts, sum(map(len, values))
        n, running = decision.n_next, list(decision.open)


def _score(verdicts: Sequence[PairVerdict], means: Sequence[float], decided: list[int]) -> bool:
    """Add what is decided of the questions between the best and each other; whether anything is wrong."""
    best = f"o{int(np.argmin(means))}"
    behind = {pair.b if pair.better == pair.a else pair.a for pair in verdicts if pair.better}
    wrong = False
    for pair in verdicts:
        gap = means[int(pair.a[1:])] - means[int(pair.b[1:])]
        if pair.verdict is Verdict.BETTER:
            wrong |= (pair.better == pair.a) != (gap < 0)
        wrong |= pair.verdict is Verdict.EQUIVALENT and abs(gap) >= REAL
        if best in (pair.a, pair.b):
            other = pair.b if pair.a == best else pair.a
            decided[0] += pair.verdict is not Verdict.UNDECIDED or other in behind
            decided[1] += 1
    return wrong


def extended(_: Path) -> None:
    """Studies that are extended as long as a pair is undecided: how often any look shows what is not there."""
    n_studies, rows = 1000, []
    for k in (2, 9):
        for title, keeps in (("the same settings", True), ("other settings after more trials", False)):
            for rule, alphas in (
                ("alpha at each look", (0.05,) * 3),
                ("half of the alpha before", (0.05, 0.025, 0.0125)),
            ):
                wrong, shown = ([0] * 3 for _ in range(2))
                for shift, count in ((0.0, wrong), (2.0, shown)):
                    rng = np.random.default_rng(9)
                    for _ in range(n_studies):
                        first = _first_look(rng, k, shift=shift, alphas=alphas, keeps=keeps)
                        for look in range(first, 3):
                            count[look] += 1
                rows.append(
                    f"{k} | {title} | {rule} | {' | '.join(wilson(n, n_studies) for n in wrong)} | "
                    f"{' | '.join(f'{100 * n / n_studies:.0f}' for n in shown)}"
                )
    show(
        f"Extended while a pair is undecided, {' to '.join(map(str, EXTENDED_TO))} seeds, {n_studies} studies",
        "optimizers | extended by | verdicts at | none: any called better, % | once | twice | "
        "one better by 2 standard deviations: shown, % | once | twice",
        rows,
    )
    _extended_maximum()


def _first_look(rng: np.random.Generator, k: int, *, shift: float, alphas: Sequence[float], keeps: bool) -> int:
    """The first look, from 0, at which any optimizer is called better; where there is a shift, the shifted one."""
    values = np.zeros((k, 0))
    for look, (n, alpha) in enumerate(zip(EXTENDED_TO, alphas, strict=True)):
        values = values if keeps else np.zeros((k, 0))
        values = np.hstack([values, rng.standard_normal((k, n - values.shape[1]))])
        pairs = compare(samples_of(values + shift * (np.arange(k) == 0)[:, None]), replace(MAXIMIZE, alpha=alpha))
        if any(pair.better == "o0" if shift else pair.better is not None for pair in pairs):
            return look
    return len(EXTENDED_TO)


def _extended_maximum() -> None:
    """Nine equal optimizers, confirmed until decided by at most 20 seeds; those still undecided get at most 30."""
    n_studies, rows = 200, []
    for rule, alpha in (("alpha again", 0.05), ("half of it", 0.025)):
        rng, wrong, in_all = np.random.default_rng(10), 0, 0
        for _ in range(n_studies):
            values = rng.standard_normal((9, 30))
            seen = _is_ever_better(values[:, :20], Plan(3, 20))
            wrong += seen
            in_all += seen or _is_ever_better(values, Plan(3, 30, alpha=alpha))
        rows.append(f"{rule} | {wilson(wrong, n_studies)} | {wilson(in_all, n_studies)}")
    show(
        f"Until decided, at most 20 seeds, then at most 30: nine equal optimizers, {n_studies} studies",
        "alpha of the extension | any called better by 20 seeds, % | by either",
        rows,
    )


def _is_ever_better(values: np.ndarray, plan: Plan) -> bool:
    results = {f"o{i}": dict(enumerate(map(float, of))) for i, of in enumerate(values)}
    decision, _ = replay(results, {label: range(values.shape[1]) for label in results}, MAXIMIZE, plan)
    return decision is not None and any_better(decision.verdicts)
