"""What is said of a search beside its best settings, and how often it is wrong: importance, the edge of the space, and
whether further trials would gain anything.

    python -m benchmarks.answers --data DIR          all tables (about a quarter of an hour on two cores)
    python -m benchmarks.answers edge                one of them
    python -m benchmarks.answers conditions          samplers under a condition on their parameters (five minutes)

DIR holds `tuning-runs.jsonl.xz`: random searches of others with learning curves, whose true importance is that of all
their trainings. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.terminator import EMMREvaluator, RegretBoundEvaluator
from optuna.trial import TrialState, create_trial

from benchmarks.printing import show, wilson
from benchmarks.verdicts.samples import final_values
from search import pruners, samplers
from search.edge import EDGE, End, gets_better_towards
from search.importance import importance
from search.optimizer_search import OptimizerSearch
from search.optuna_samplers import build
from search.space import FloatParameter, draw
from search.states import Direction, ImportanceMethod
from search.trial_views import FAILURE_KIND

EPOCHS = 36
"""Length to which the learning curves are scaled."""

UNIT = FloatParameter(type="float", low=0, high=1)


def main() -> None:
    parts: dict[str, Callable[[Path], None]] = {
        "importance": of_parameters,
        "edge": edge,
        "stopping": stopping,
        "conditions": conditions,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the public results")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    for name in arguments.parts or parts:
        parts[name](arguments.data)


def trainings(data: Path) -> list[tuple[dict[str, float], dict[int, float]]]:
    """Parameters and validation accuracy by epoch of AlexNet's 512 trainings; an empty end where one diverged."""
    found = []
    with lzma.open(data / "tuning-runs.jsonl.xz", "rt") as file:
        for run in map(json.loads, file):
            if run["set"] == "alexnet":
                known = [point["top_1"] for point in run["learning_curve"]]
                at = [max(1, run["epochs"] * epoch // EPOCHS) for epoch in range(1, EPOCHS + 1)]
                curve = {epoch: known[i - 1] for epoch, i in enumerate(at, 1) if i <= len(known)}
                names = ("epochs", "batch_size", "lr_peak_epoch", "momentum", "label_smoothing")
                logs = {name: math.log(run[name]) for name in ("lr", "weight_decay")}
                found.append(({**logs, **{name: float(run[name]) for name in names}}, curve))
    return found


def searched(
    runs: list[tuple[dict[str, float], dict[int, float]]],
    pruner: pruners.Pruner,
    *,
    bounds: dict[str, FloatDistribution],
) -> optuna.Study:
    """A search that made these trainings one after another, with what the pruner leaves of them."""
    study = optuna.create_study(direction="maximize")
    others: list[pruners.OtherTrial] = []
    for number, (params, whole) in enumerate(runs):
        curve: dict[int, float] = {}
        state = TrialState.FAIL
        for epoch in range(1, EPOCHS + 1):
            if epoch not in whole:
                break
            curve[epoch] = whole[epoch]
            stopped = pruners.stops(
                pruner, trial_number=number, curve=curve, others=lambda: others, direction=Direction.MAXIMIZE,
                max_epochs=EPOCHS,
            )  # fmt: skip
            if stopped:
                state = TrialState.PRUNED
                break
        else:
            state = TrialState.COMPLETE
        others.append(pruners.OtherTrial(curve=curve, is_complete=state is TrialState.COMPLETE))
        value = None if state is TrialState.FAIL else curve[max(curve)]
        study.add_trial(
            create_trial(
                state=state, value=value, params=params, distributions=bounds, intermediate_values=curve,
                user_attrs={"failure_kind": "diverged"} if state is TrialState.FAIL else {},
            )
        )  # fmt: skip
    return study


def complete_only(study: optuna.Study) -> dict[str, float]:
    """Importance by the values of the complete trials alone, as Optuna computes it."""
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares: dict[str, float] = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return shares


def of_parameters(data: Path) -> None:
    """Error of the shares against those of all trainings, and how often intervals hold."""
    runs = trainings(data)
    names = list(runs[0][0])
    bounds = {n: FloatDistribution(min(p[n] for p, _ in runs), max(p[n] for p, _ in runs)) for n in names}
    whole = searched(runs, pruners.NoPruner(name="none"), bounds=bounds)
    truth = importance(whole, method=ImportanceMethod.FANOVA).shares
    print(f"\n{len(runs)} trainings: {', '.join(f'{name} {share:.2f}' for name, share in truth.items())}")
    rows = []
    for pruner in (pruners.AshaPruner(), pruners.HyperbandPruner(name="hyperband")):
        for n in (12, 20, 40):
            rng, held, n_complete = np.random.default_rng(1), [], []
            errors: dict[str, list[float]] = defaultdict(list)
            first: Counter[str] = Counter()
            for _ in range(40):
                study = searched([runs[i] for i in rng.permutation(len(runs))[:n]], pruner, bounds=bounds)
                n_complete.append(sum(trial.state is TrialState.COMPLETE for trial in study.trials))
                for way, shares in _ways(study):
                    errors[way].append(sum(abs(shares.get(name, 0.0) - truth[name]) for name in names) / 2)
                    first[way] += max(shares, key=shares.__getitem__) == "lr"
                found = importance(study)
                held += [low <= truth[name] <= high for name, (low, high) in found.intervals.items()]
            for way, of in errors.items():
                sure = f"{100 * np.mean(held):.0f}" if way.startswith("all") else ""
                error = f"{np.mean(of):.2f} ± {np.std(of) / math.sqrt(len(of)):.2f}"
                rows.append(
                    f"{pruner.name} | {n} | {way} | {np.mean(n_complete):.1f} | {error} | "
                    f"{100 * first[way] / len(of):.0f} | {sure}"
                )
    header = "pruner | trials | used | complete | error of the shares | lr is first, % | intervals that hold, %"
    show("Importance", header, rows)


def _ways(study: optuna.Study) -> Iterator[tuple[str, dict[str, float]]]:
    if sum(trial.state is TrialState.COMPLETE for trial in study.trials) >= 3:
        yield "complete, by value", complete_only(study)
    yield "all, by rank", dict(importance(study).shares)


def edge(_data: Path) -> None:
    """How often a search warns that a parameter's best value is at its upper end, by where the optimum is.

    Of two parameters; the noise of a trial is 0, 0.03 or 0.1 of what the range makes.
    """
    rows = []
    for sampler, n_studies in ((samplers.RandomSampler(name="random"), 500), (samplers.TpeSampler(), 100)):
        for optimum in (0.5, 0.7, 0.8, 0.9, 1.2, 1.5, None):
            shares = []
            for n in (8, 20, 40):
                rng = np.random.default_rng(n)
                n_warned = sum(_warns(sampler, optimum, n, rng) for _ in range(n_studies))
                shares.append(wilson(n_warned, n_studies))
            where = "none (no effect)" if optimum is None else f"{optimum:g}"
            rows.append(f"{sampler.name} | {where} | {' | '.join(shares)}")
    show("Warnings of an edge, in percent of studies", "sampler | optimum | 8 trials | 20 | 40", rows)


def _warns(sampler: samplers.Sampler, optimum: float | None, n: int, rng: np.random.Generator) -> bool:
    other, noise, seed = rng.uniform(0.2, 0.8), rng.choice([0.0, 0.03, 0.1]), int(rng.integers(2**31))
    sampler = sampler.model_copy(update={"seed": seed})
    study, space = optuna.create_study(direction="maximize"), dict.fromkeys("xy", UNIT)
    seen = []
    for number in range(n):
        study.sampler = build(sampler, {**space}, label="a", trial_number=number)
        trial = study.ask()
        x, y = (parameter.suggest(trial, name) for name, parameter in space.items())
        effect = 0.0 if optimum is None else (x - optimum) ** 2
        value = -effect - 0.5 * (y - other) ** 2 + noise * rng.standard_normal()
        study.tell(trial, value)
        seen.append((x, value))
    best = max(seen, key=lambda pair: pair[1])[0]
    end: End | None = "high" if best >= 1 - EDGE else "low" if best <= EDGE else None
    return end is not None and gets_better_towards(UNIT, end, seen, direction=Direction.MAXIMIZE)


N_PLANNED, N_FIRST = 40, 10
"""Trials of a search, and those before which it is not stopped early."""

MIN_GAIN = 0.002


def stagnates(n: int, values: np.ndarray) -> bool:
    """Whether the last n trials have gained less than MIN_GAIN."""
    return len(values) > n and values.max() - values[:-n].max() < MIN_GAIN


def gains_little(values: np.ndarray) -> bool:
    """Whether all trials that are left would gain less than MIN_GAIN, if they were drawn as the ones before.

    The upper third of the values has a generalized Pareto distribution (probability-weighted moments, Hosking and
    Wallis 1987).
    """
    if len(values) < N_FIRST:
        return False
    highest = np.sort(values)[::-1]
    k = max(5, len(values) // 3)
    beyond = highest[:k] - highest[k]
    mean = beyond.mean()
    if mean <= 0:
        return True
    weighted = (np.sort(beyond) * (1 - (np.arange(1, k + 1) - 0.35) / k)).mean()
    spread = mean - 2 * weighted
    shape, scale = (2 - mean / spread, 2 * mean * weighted / spread) if spread > 0 else (0.0, mean)
    gain = np.linspace(0, 10 * scale, 400)
    at = (beyond[0] + gain) / scale
    tail = np.exp(-at) if abs(shape) < 1e-6 else np.clip(1 + shape * at, 0, None) ** (-1 / shape) * (1 + shape * at > 0)
    above = 1 - (1 - np.clip(k / len(values) * tail, 0, 1)) ** (N_PLANNED - len(values))
    return float(np.trapezoid(above, gain)) < MIN_GAIN


def branin(*x: float) -> float:
    """Branin's function on the unit square, scaled: the best is about 0."""
    a, b = 15 * x[0] - 5, 15 * x[1]
    valley = (b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6) ** 2
    return -(valley + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10 - 0.397887) / 300


def bowl(*x: float) -> float:
    """A quadratic of four parameters that matter less and less; the best is 0."""
    return -sum(w * (a - c) ** 2 for w, a, c in zip((0.3, 0.15, 0.05, 0.02), x, (0.6, 0.4, 0.7, 0.2), strict=True))


SURFACES: dict[str, tuple[Callable[..., float], int]] = {"Branin": (branin, 2), "bowl": (bowl, 4)}


def stopping(data: Path) -> None:
    """Searches that are stopped once further trials seem to gain little, against a smaller budget from the start."""
    rng = np.random.default_rng(0)
    searches = {
        f"random, {name}": [rng.choice(of, N_PLANNED, replace=False) for _ in range(300)]
        for name, of in final_values(data).items()
    }
    studies = {name: [_study(*surface, seed=seed) for seed in range(60)] for name, surface in SURFACES.items()}
    searches |= {f"TPE, {name}": [_values(study) for study in of] for name, of in studies.items()}
    rules: dict[str, Callable[[np.ndarray], bool]] = {
        "10 trials without a gain": lambda values: stagnates(10, values),
        "15 trials without a gain": lambda values: stagnates(15, values),
        "expected gain of all left": gains_little,
    }
    rows = []
    for name, of in searches.items():
        for title, stops in rules.items():
            ns = [next((n for n in range(N_FIRST, N_PLANNED) if stops(one[:n])), N_PLANNED) for one in of]
            n_fixed = round(float(np.mean(ns)))
            cells = [f"{100 * (1 - np.mean(ns) / N_PLANNED):.0f}"]
            for lengths in (ns, [n_fixed] * len(of)):
                lost = np.array([one.max() - one[:n].max() for one, n in zip(of, lengths, strict=True)])
                cells += [
                    f"{lost.mean():.4f} ± {lost.std() / len(of) ** 0.5:.4f}",
                    wilson((lost > MIN_GAIN).sum(), len(of)),
                ]
            rows.append(f"{name} | {title} | {' | '.join(cells)}")
    show(
        f"Searches of {N_PLANNED} trials that end at a gain below {MIN_GAIN:g}",
        f"search | ends after | trials saved, % | best value lost | lost more than {MIN_GAIN:g}, % | "
        "lost by as many fewer trials for all | more, %",
        rows,
    )
    _bounds(studies)


def _bounds(studies: dict[str, list[optuna.Study]]) -> None:
    """What Optuna's evaluators say that is still to be gained, beside what the rest of 40 trials gains."""
    rows = []
    for name, of in studies.items():
        for evaluator in (RegretBoundEvaluator(seed=0), EMMREvaluator(seed=0)):
            cells = []
            for n in (10, 20, 30):
                told = [evaluator.evaluate(study.trials[:n], study.direction) for study in of[:10]]
                gained = [_values(study).max() - _values(study)[:n].max() for study in of[:10]]
                cells.append(f"{np.mean(told):.3f} (least {min(told):.3f}); {np.mean(gained):.4f}")
            rows.append(f"{name} | {type(evaluator).__name__} | {' | '.join(cells)}")
    header = "surface | evaluator | after 10 trials: told; gained by the rest | 20 | 30"
    show("Optuna's evaluators, 10 TPE searches each", header, rows)


def _values(study: optuna.Study) -> np.ndarray:
    return np.array([trial.value for trial in study.trials])


def _study(surface: Callable[..., float], n_parameters: int, *, seed: int) -> optuna.Study:
    """A search of 40 trials by TPE; the noise between seeds has a standard deviation of 0.002."""
    study, rng = optuna.create_study(direction="maximize"), np.random.default_rng(seed)
    space = {f"x{i}": UNIT for i in range(n_parameters)}
    for number in range(N_PLANNED):
        study.sampler = build(samplers.TpeSampler(seed=seed), {**space}, label="a", trial_number=number)
        trial = study.ask()
        at = [parameter.suggest(trial, name) for name, parameter in space.items()]
        study.tell(trial, surface(*at) + 0.002 * rng.standard_normal())
    return study


HALF = {
    "name": "sgdm",
    "space": {
        "lr": {"type": "float", "low": 0.001, "high": 1.0},
        "momentum": {"type": "float", "low": 0.001, "high": 0.999},
    },
}
"""Two parameters whose sum may be 1 at most: half of the square."""


def conditions(_data: Path) -> None:
    """What the best trial is above the least there is, under a condition that half of the space meets.

    With `when`, and without it where what does not meet the condition diverges. The value is the squared distance from
    a point where the condition holds, or from one beyond it, so that the best is on the boundary.
    """
    kinds: list[tuple[samplers.Sampler, int, int]] = [
        (samplers.RandomSampler(name="random"), 40, 100),
        (samplers.QmcSampler(name="qmc"), 40, 20),
        (samplers.TpeSampler(), 40, 20),
        (samplers.CmaEsSampler(name="cmaes"), 40, 40),
        (samplers.GpSampler(name="gp"), 16, 4),
    ]
    searches = {
        "with `when`": OptimizerSearch.model_validate({**HALF, "when": "lr + momentum <= 1"}),
        "diverges": OptimizerSearch.model_validate(HALF),
    }
    rows = []
    for sampler, n, n_studies in kinds:
        for title, optimum in (("within", (0.3, 0.4)), ("beyond", (0.8, 0.5))):
            for way, search in searches.items():
                found = [_regrets(sampler, search, optimum, n=n, seed=seed) for seed in range(n_studies)]
                cells = []
                for at in (n // 2, n):
                    regrets = [of[at - 1] for of in found]
                    cells.append(f"{np.mean(regrets):.2f} ± {np.std(regrets, ddof=1) / math.sqrt(n_studies):.2f}")
                rows.append(f"{sampler.name} | {title} | {way} | {n // 2}, {n} | {' | '.join(cells)}")
    show(
        "Conditions", "sampler | optimum | what does not meet it | trials | 1,000 × excess after half | after all", rows
    )


def _regrets(
    sampler: samplers.Sampler, search: OptimizerSearch, optimum: tuple[float, float], *, n: int, seed: int
) -> list[float]:
    """After each trial, 1,000 times what the best one is above the least value that meets the condition."""
    sampler = sampler.model_copy(update={"seed": seed})
    study, best, found = optuna.create_study(direction="minimize"), math.inf, []
    least = max(0.0, sum(optimum) - 1) ** 2 / 2
    for number in range(n):
        within = search if search.when else None
        study.sampler = build(sampler, search.space, label="a", trial_number=number, within=within)
        trial = study.ask()
        params = draw(trial, search.space)
        if params["lr"] + params["momentum"] > 1:
            trial.set_user_attr(FAILURE_KIND, "diverged")
            study.tell(trial, state=TrialState.FAIL)
        else:
            value = (params["lr"] - optimum[0]) ** 2 + (params["momentum"] - optimum[1]) ** 2
            study.tell(trial, value)
            best = min(best, value)
        found.append(1000 * (min(best, 1.0) - least))
    return found


if __name__ == "__main__":
    main()
