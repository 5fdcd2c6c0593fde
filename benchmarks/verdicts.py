"""What verdicts decide, and how often they are wrong, on others' results and by simulation. Seeds are fixed.

    python -m benchmarks.verdicts --data DIR          all tables (a few minutes on two cores)
    python -m benchmarks.verdicts gpt aa --data DIR   some of them

DIR holds public results: `gpt-track3.csv.xz` (validation losses of one GPT, many recipes and seeds),
`tuning-runs.jsonl.xz` (random searches with learning curves), and AlgoPerf's `algoperf-curves.csv.xz` with
`algoperf-v05-targets.json`. Tables whose file is missing are left out, with a line that says so. The test is compared
with what a user would do instead: Welch's t with Holm's correction.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path

import numpy as np
import optuna
from scipy.stats import chi2, studentized_range
from scipy.stats import f as f_dist
from scipy.stats.qmc import Sobol

from search.analysis import PairVerdict, Plan, Rules, Sample, best_of_n, compare, decide, replay
from search.analysis.across import Outcome, Task, told_apart
from search.analysis.algoperf import read_curves, read_targets, scores
from search.analysis.moderated import Contrast, Group, contrasts
from search.analysis.profiles import Friedman, friedman
from search.states import Direction, SignificanceTest, Verdict

Draw = Callable[[np.random.Generator], float]
LESS = Direction.MINIMIZE

MINIMIZE = Rules(direction=Direction.MINIMIZE, n_draws=3000)
MAXIMIZE = Rules(direction=Direction.MAXIMIZE, n_draws=3000)
WELCH = SignificanceTest.WELCH
REAL = 0.002
"""Differences of validation loss above this count as real: two standard deviations between seeds."""

PUBLISHED = {
    "external_tuning": {
        "shampoo_submission": 0.7784, "schedule_free_adamw": 0.7077, "generalized_adam": 0.6383, "cyclic_lr": 0.6301,
        "nadamp": 0.5909, "baseline": 0.5707, "amos": 0.4918, "caspr_adaptive": 0.4722, "lawa_queue": 0.3699,
        "lawa_ema": 0.3384, "schedule_free_prodigy": 0.0,
    },
    "self_tuning": {
        "schedule_free_adamw": 0.8542, "baseline": 0.8194, "nadamw_sequential": 0.3308, "sinv6_75": 0.1420,
        "sinv6": 0.0903, "adamg": 0.0,
    },
}  # fmt: skip
"""Scores of MLCommons AlgoPerf v0.5, as published."""


def main() -> None:
    parts: dict[str, Callable[[Path], None]] = {
        "gpt": gpt, "family": family, "aa": aa, "resampled": resampled, "adaptive": adaptive, "extended": extended,
        "bands": bands, "algoperf": algoperf, "ranks": ranks,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the public results")
    arguments = parser.parse_args()
    for name in arguments.parts or parts:
        try:
            parts[name](arguments.data)
        except FileNotFoundError as error:
            print(f"\n{name}: left out, {error.filename} is missing\n")


def wilson(count: float, n: int) -> str:
    """A share in percent ± its standard error."""
    p = count / n
    return f"{100 * p:.1f} ± {100 * math.sqrt(max(p * (1 - p), 1 / n) / n):.1f}"


def show(title: str, header: str, rows: Sequence[str]) -> None:
    print(f"\n### {title}\n\n| {header} |\n|{'---|' * (header.count('|') + 1)}")
    for row in rows:
        print(f"| {row} |", flush=True)


def samples_of(values: Sequence[Sequence[float]]) -> dict[str, Sample]:
    return {f"o{i}": Sample(values=dict(enumerate(of))) for i, of in enumerate(values)}


def last_losses(data: Path) -> dict[str, np.ndarray]:
    """Last validation loss of each seed, by recipe, of those with at least 8 seeds."""
    runs: dict[tuple[str, str], dict[str, tuple[int, float]]] = defaultdict(dict)
    with lzma.open(data / "gpt-track3.csv.xz", "rt") as file:
        for row in csv.DictReader(file):
            of = runs[row["entry"], row["train_steps"]]
            of[row["run"]] = max(of.get(row["run"], (-1, 0.0)), (int(row["step"]), float(row["val_loss"])))
    return {" ".join(key): np.array([loss for _, loss in of.values()]) for key, of in runs.items() if len(of) >= 8}


def gpt(data: Path) -> None:
    """How many of the real differences nine recipes with few seeds show."""
    groups = list(last_losses(data).values())
    rows = []
    for n in (3, 5):
        for name, rules, n_earlier in (
            ("Welch + Holm", replace(MINIMIZE, test=WELCH), 0),
            ("moderated", MINIMIZE, 0),
            ("moderated, with the variances of an earlier study of nine others", MINIMIZE, 9),
        ):
            rng = np.random.default_rng(0)
            decided = real = wrong = 0
            n_studies = 150
            for _ in range(n_studies):
                order = rng.permutation(len(groups))
                chosen = order[:9]
                drawn = [rng.choice(groups[i], n, replace=False) for i in order[: 9 + n_earlier]]
                means = [groups[i].mean() for i in chosen]
                earlier = [(float(of.var(ddof=1)), n - 1.0) for of in drawn[9:]]
                is_wrong = False
                for pair in compare(samples_of(drawn[:9]), replace(rules, earlier=earlier)):
                    a, b = int(pair.a[1:]), int(pair.b[1:])
                    right = pair.better == (pair.a if means[a] < means[b] else pair.b)
                    is_real = abs(means[a] - means[b]) > REAL
                    real += is_real
                    decided += is_real and right
                    is_wrong |= pair.better is not None and not right
                wrong += is_wrong
            rows.append(f"{n} | {name} | {100 * decided / real:.1f} | {wilson(wrong, n_studies)}")
    show(
        "Nine of 24 recipes of one GPT (validation loss; 8 to 30 seeds each), 150 draws",
        "seeds | test | real differences decided, % | draws with a wrong decision, %",
        rows,
    )


CASES: Mapping[str, Callable[[np.random.Generator, int], list[np.ndarray]]] = {
    "equal": lambda rng, n: [rng.standard_normal(n) for _ in range(9)],
    "unequal (log-normal standard deviations, 0.5)": lambda rng, n: [
        std * rng.standard_normal(n) for std in np.exp(rng.normal(0, 0.5, 9))
    ],
    "one of ten times the standard deviation": lambda rng, n: [
        (10 if i == 8 else 1) * rng.standard_normal(n) for i in range(9)
    ],
    "one of a tenth": lambda rng, n: [(0.1 if i == 8 else 1) * rng.standard_normal(n) for i in range(9)],
    "skew (exponential)": lambda rng, n: [rng.exponential(size=n) for _ in range(9)],
    "outliers (t with 3 degrees of freedom)": lambda rng, n: [rng.standard_t(3, n) for _ in range(9)],
    "two optimizers": lambda rng, n: [rng.standard_normal(n) for _ in range(2)],
    "two optimizers, one of three times": lambda rng, n: [rng.standard_normal(n), 3 * rng.standard_normal(n)],
}


def family(_data: Path) -> None:
    """How often anything is shown among optimizers that are equal in the mean."""
    rows = []
    n_studies = 500
    for case, draw in CASES.items():
        cells = []
        for n in (3, 5):
            rng = np.random.default_rng(1)
            wrong = sum(_any_better(samples_of(draw(rng, n)), MAXIMIZE) for _ in range(n_studies))
            cells.append(wilson(wrong, n_studies))
        rows.append(f"{case} | {' | '.join(cells)}")
    for chance in (0.1, 0.3):
        cells = []
        for n in (3, 5):
            rng = np.random.default_rng(2)
            wrong = 0
            for _ in range(n_studies):
                failed = rng.binomial(n, chance, 9)
                samples = {
                    f"o{i}": Sample(values=dict(enumerate(rng.standard_normal(n - f))), n_failed=int(f))
                    for i, f in enumerate(failed)
                }
                wrong += _any_better(samples, MAXIMIZE)
            cells.append(wilson(wrong, n_studies))
        rows.append(f"each run fails with probability {chance:g} | {' | '.join(cells)}")
    show(
        f"Nine equal optimizers, {n_studies} studies: studies in which anything is called better, %",
        "case | 3 seeds | 5 seeds",
        rows,
    )


def _any_better(samples: Mapping[str, Sample], rules: Rules) -> bool:
    return any(pair.verdict is Verdict.BETTER for pair in compare(samples, rules))


NOISE = 0.004
"""Standard deviation between seeds on the simulated surface, in accuracy."""


def surface(x: float, y: float) -> float:
    """Accuracy at settings within the unit square; the best is 0.92."""
    return 0.92 - 0.25 * (x - 0.62) ** 2 - 0.06 * (y - 0.35) ** 2 - 0.3 * max(0.0, x - 0.85)


def chosen_settings(sampler: str, n_trials: int, seed: int) -> float:
    """True accuracy of the settings that one search chooses, by the sampler and pruner of Optuna."""
    samplers = {"qmc": partial(optuna.samplers.QMCSampler, scramble=True), "tpe": optuna.samplers.TPESampler}
    pruner = optuna.pruners.SuccessiveHalvingPruner() if sampler == "tpe" else optuna.pruners.NopPruner()
    study = optuna.create_study(direction="maximize", sampler=samplers[sampler](seed=seed), pruner=pruner)
    rng = np.random.default_rng(seed)

    def objective(trial: optuna.Trial) -> float:
        value = surface(trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)) + rng.normal(0, NOISE)
        for epoch in (1, 3, 9):
            trial.report(value - 0.3 / epoch + rng.normal(0, NOISE), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    study.optimize(objective, n_trials=n_trials)
    return surface(study.best_params["x"], study.best_params["y"])


def aa(data: Path) -> None:
    """The same optimizer under several labels, each with searches of its own: who is called better than itself?"""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pools = {
        "QMC, 4 trials": [chosen_settings("qmc", 4, seed) for seed in range(200)],
        "QMC, 8 trials": [chosen_settings("qmc", 8, seed) for seed in range(200)],
        "TPE, 20 trials, ASHA": [chosen_settings("tpe", 20, seed) for seed in range(80)],
    }
    if (data / "tuning-runs.jsonl.xz").exists():
        values, rng = final_values(data)["alexnet"], np.random.default_rng(3)
        pools["8 random trials of AlexNet, as trained"] = [float(rng.choice(values, 8).max()) for _ in range(400)]
    rows, n_studies = [], 200
    for name, pool in pools.items():
        for n_labels in (2, 9):
            for n_seeds in (3, 10):
                cells = []
                for n_searches in (1, 3):
                    rng = np.random.default_rng(4)
                    study = partial(_aa_study, pool, n_labels=n_labels, n_searches=n_searches, n_seeds=n_seeds, rng=rng)
                    cells.append(wilson(sum(_any_better(study(), MAXIMIZE) for _ in range(n_studies)), n_studies))
                rows.append(f"{name} | {n_labels} | {n_seeds} | {' | '.join(cells)}")
    show(
        f"The same optimizer under several labels, {n_studies} studies: called better than itself, %",
        "search | labels | seeds | one search: on these settings, which do differ | `searches: 3`: on the optimizers",
        rows,
    )


def _aa_study(
    pool: Sequence[float], *, n_labels: int, n_searches: int, n_seeds: int, rng: np.random.Generator
) -> dict[str, Sample]:
    """Values by seed of one search; with several searches, each search's mean over its seeds."""
    chosen = rng.choice(pool, (n_labels, n_searches))
    values = chosen[:, :, None] + rng.normal(0, NOISE, (n_labels, n_searches, n_seeds))
    return samples_of(values[:, 0] if n_searches == 1 else values.mean(axis=2))


def resampled(data: Path) -> None:
    """One search of each: its luck from its own trials resampled, which the service does not do, and why.

    `plain` takes the variance of the best of resampled trials as known with two degrees of freedom, `wide` twice that
    variance with one. `shifted`: the first optimizer is better, by 0.05 on the surface and by 0.1 on AlexNet.
    """
    pools: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
        "random": lambda rng, n, m: np.array([surface(*point) for point in rng.random((n * m, 2))]).reshape(n, m),
        "QMC": lambda rng, n, m: np.array(
            [[surface(*p) for p in Sobol(2, seed=int(rng.integers(2**31))).random(m)] for _ in range(n)]
        ),
    }
    if (data / "tuning-runs.jsonl.xz").exists():
        values = final_values(data)["alexnet"]
        pools["random, AlexNet"] = lambda rng, n, m: rng.choice(values, (n, m))
    rows, n_studies = [], 200
    for name, pool in pools.items():
        better_by = 0.1 if "AlexNet" in name else 0.05
        for n_trials in (4, 8, 16):
            for n_labels in (2, 9):
                cells = []
                for better_by_now in (0.0, better_by):
                    for factor, df in ((1, 2), (2, 1)):
                        rng = np.random.default_rng(9)
                        shown = 0
                        for _ in range(n_studies):
                            trained = pool(rng, n_labels, n_trials)
                            trained[0] += better_by_now
                            found = _resampled_study(trained, rng, factor=factor, df=df)
                            right = [c for c in found if not better_by_now or (c.a == 0 and c.difference > 0)]
                            shown += any(contrast.decided for contrast in right)
                        cells.append(wilson(shown, n_studies))
                rows.append(f"{name} | {n_trials} | {n_labels} | {' | '.join(cells)}")
    show(
        f"The luck of one search by resampling its trials, 3 seeds, {n_studies} studies",
        "search | trials | labels | equal, plain: any called better, % | equal, wide | shifted, plain: shown, % | "
        "shifted, wide",
        rows,
    )


def _resampled_study(trained: np.ndarray, rng: np.random.Generator, *, factor: float, df: float) -> Sequence[Contrast]:
    """Optimizers compared by 3 confirm seeds of each one's best trial; `trained`: true values, (labels, trials)."""
    observed = trained + rng.normal(0, NOISE, trained.shape)
    best = trained[np.arange(len(trained)), observed.argmax(axis=1)]
    confirmed = best[:, None] + rng.normal(0, NOISE, (len(trained), 3))
    m = trained.shape[1]
    place = np.arange(1, m + 1)
    chance = ((m - place + 1) / m) ** m - ((m - place) / m) ** m  # that the i-th best is the best of m drawn again
    in_order = -np.sort(-observed, axis=1)
    between = ((in_order - (in_order @ chance)[:, None]) ** 2) @ chance
    variances = factor * between + confirmed.var(axis=1, ddof=1) / 3
    means = confirmed.mean(axis=1)
    groups = [Group(mean=mean, variance=v, n=(1,), df=df) for mean, v in zip(means, variances, strict=True)]
    return contrasts(groups, list(combinations(range(len(groups)), 2)), n_draws=MAXIMIZE.n_draws)


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
        wrong += any(pair.verdict is Verdict.BETTER for pair in verdicts)
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
            wrong += any(pair.verdict is Verdict.BETTER for verdicts in looks for pair in verdicts)
        rows.append(f"{case} | {wilson(wrong, n_studies)}")
    show(
        f"Equal optimizers against one, adaptively, {n_studies} studies",
        "case | any called better at any look, %",
        rows,
    )


EXTENDED_TO = (3, 6, 12)
"""Seeds of a study, and after its first and second extension."""


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
    return decision is not None and any(pair.verdict is Verdict.BETTER for pair in decision.verdicts)


def _normal(mean: float, std: float) -> Draw:
    return lambda rng: float(rng.normal(mean, std))


def _nine(groups: Sequence[np.ndarray], rng: np.random.Generator) -> tuple[list[float], list[Draw]]:
    chosen = [groups[i] for i in rng.choice(len(groups), 9, replace=False)]
    return [float(of.mean()) for of in chosen], [_normal(float(of.mean()), float(of.std(ddof=1))) for of in chosen]


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


def _score(verdicts, means: Sequence[float], decided: list[int]) -> bool:  # type: ignore[no-untyped-def]
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


def final_values(data: Path) -> dict[str, np.ndarray]:
    """Final accuracy of each run of the random searches, by data set; a run that ended without one counts as 0."""
    values: dict[str, list[float]] = defaultdict(list)
    with lzma.open(data / "tuning-runs.jsonl.xz", "rt") as file:
        for line in file:
            run = json.loads(line)
            if "learning_curves" in run:
                curve = [value for _, value in run["learning_curves"]["matched"]]
            else:
                curve = [point["top_1"] for point in run["learning_curve"]]
            values[run["set"]].append(curve[-1] if curve and curve[-1] is not None else 0.0)
    return {name: np.array(of) for name, of in values.items()}


def bands(data: Path) -> None:
    """How often the band of the best of n covers the truth at every n."""
    rows = []
    for name, values in final_values(data).items():
        for n_trials in (8, 32):
            quantile = 0.5 ** (1 / np.arange(1, n_trials + 1))
            truth = np.sort(values)[np.ceil(quantile * len(values)).astype(int) - 1]
            rng, covered, n_samples = np.random.default_rng(7), 0, 500
            for _ in range(n_samples):
                band = best_of_n(list(rng.choice(values, n_trials)), direction=Direction.MAXIMIZE)
                low = np.array([-math.inf if value is None else value for value in band.low])
                high = np.array([math.inf if value is None else value for value in band.high])
                covered += bool(((low <= truth) & (truth <= high)).all())
            rows.append(f"{name} ({len(values)} runs) | {n_trials} | {wilson(covered, n_samples)}")
    show("Bands of the median best of n, from random searches", "set | trials | covered at every n, %", rows)


def algoperf(data: Path) -> None:
    """AlgoPerf v0.5's published scores from its curves."""
    targets = read_targets(data / "algoperf-v05-targets.json")
    curves = list(read_curves(data / "algoperf-curves.csv.xz"))
    rows = []
    for rules, published in PUBLISHED.items():
        found = scores([row for row in curves if row.group == f"v05 {rules}"], targets)
        rows += [f"{rules} | {name} | {score:.4f} | {found[name].score:.4f}" for name, score in published.items()]
    show("AlgoPerf v0.5", "rules | submission | published | here", rows)


def ranks(_: Path) -> None:
    """How often equal optimizers are told apart by their ranks over tasks, and one that is better is."""
    rows = []
    for k, n, p_failed in (
        *((k, n, 0.0) for k in (2, 4, 9) for n in (3, 5, 8, 17)),
        *((k, 8, 0.2) for k in (2, 4, 9)),
    ):
        rng, n_samples = np.random.default_rng(0), 1000
        count = dict.fromkeys(("chi-square", "Iman and Davenport", "permutation", "Nemenyi", "groups", "shown"), 0)
        for _ in range(n_samples):
            values = rng.normal(size=(n, k))
            failed = rng.random((n, k)) < p_failed
            test = ranked(values, failed)
            if test.p_value is None or test.statistic is None:
                continue
            apart = np.ptp(list(test.mean_ranks.values())) > nemenyi(k, n) + 1e-9
            rest = n * (k - 1) - test.statistic
            f = (n - 1) * test.statistic / rest if rest > 1e-9 else math.inf
            count["chi-square"] += bool(chi2.sf(test.statistic, k - 1) <= 0.05)
            count["Iman and Davenport"] += bool(f_dist.sf(f, k - 1, (k - 1) * (n - 1)) <= 0.05)
            count["permutation"] += test.p_value <= 0.05
            count["Nemenyi"] += bool(apart)
            count["groups"] += len(told_apart(test)) > 1
            values[:, 0] -= 1.5
            test = ranked(values, failed)
            groups = told_apart(test)
            count["shown"] += len(groups) > 1 and any("o0" not in group for group in groups)
        failing = f"{n}, runs fail with probability {p_failed}" if p_failed else str(n)
        rows.append(f"{k} | {failing} | " + " | ".join(wilson(of, n_samples) for of in count.values()))
    header = "optimizers | tasks | chi-square | Iman and Davenport | permutation | Nemenyi alone | both | one better"
    show("Equal optimizers told apart by their ranks over tasks, %; one better by 1.5 sd told apart, %", header, rows)
    run_std()


def run_std() -> None:
    """How near the standard deviation of a task's runs is to the true one, 1."""
    rows = []
    for k, n in ((2, 3), (4, 3), (9, 3), (9, 5)):
        rng, found = np.random.default_rng(0), []
        for unstable in (1.0, 10.0):
            scales = [unstable, *[1.0] * (k - 1)]
            found.append([
                Task(
                    direction=LESS,
                    outcomes={f"o{i}": Outcome(values=tuple(rng.normal(0, sd, n))) for i, sd in enumerate(scales)},
                ).std() or 0.0
                for _ in range(2000)
            ])  # fmt: skip
        low, middle, high = np.quantile(found[0], [0.1, 0.5, 0.9])
        rows.append(f"{k} | {n} | {middle:.2f} | {low:.2f} to {high:.2f} | {np.median(found[1]):.2f}")
    header = "optimizers | seeds | median | 80 % of estimates | median, one of ten times the standard deviation"
    show("Standard deviation of a task's runs, true: 1", header, rows)


def ranked(values: np.ndarray, failed: np.ndarray) -> Friedman:
    return friedman(
        [
            ({f"o{j}": None if bad else float(value) for j, (value, bad) in enumerate(zip(row, of, strict=True))}, LESS)
            for row, of in zip(values, failed, strict=True)
        ],
        n_draws=2000,
    )


@cache
def nemenyi(k: int, n: int) -> float:
    return float(studentized_range.ppf(0.95, k, np.inf)) * math.sqrt(k * (k + 1) / (12 * n))


if __name__ == "__main__":
    main()
