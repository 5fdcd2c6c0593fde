"""What the studies will take of a card, and what they can decide, before they run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.reproduction.tables import markdown
from search.analysis import Plan, Rules, replay
from search.definition import StudyDefinition
from search.pruners import AshaPruner, first_epoch
from search.states import Direction, Verdict

N_TRAIN = {"cola": 7_696, "stsb": 5_174, "mrpc": 3_301, "sst2": 65_329, "conll2003": 14_041, "cifar10": 45_000}
SAMPLES_PER_S = {
    "cola": 60_000, "stsb": 30_000, "mrpc": 16_000, "sst2": 60_000, "conll2003": 20_000,
    "gpt": 30_000, "resnet20": 165_000, "resnet110": 24_000,
}  # fmt: skip
"""Of 16 processes (ResNet-110: 4) on an H200 together. CoLA's, SST-2's and ResNets' were measured (docs/benchmarks.md);
STS-B's and MRPC's are CoLA's by the tokens of a row, CoNLL's by its batch of 8, the GPT's a guess."""
BESIDE_S = 0.25
"""Card seconds of a run besides training: start, captures, evaluations; 16 at once take about 4 s each."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one study. `most` has all seeds of all optimizers, `least` those of the first look."""

    name: str
    n_trials: int
    n_confirm_least: int
    n_confirm_most: int
    samples_search: float
    samples_run: float
    samples_per_s: float

    def seconds(self, n_confirm: float) -> float:
        samples = self.samples_search + n_confirm * self.samples_run
        return samples / self.samples_per_s + BESIDE_S * (self.n_trials + n_confirm)


def estimate(raw: dict[str, Any]) -> Estimate:
    study = StudyDefinition.model_validate(raw)
    task, k = study.task, len(study.optimizers)
    n_trials = k * (study.budget.trials_per_optimizer or 0)
    tokens = getattr(task, "tokens_per_epoch", None)
    run = task.epochs * (tokens / task.context if tokens else N_TRAIN[task.name])  # type: ignore[attr-defined]
    share = 1.0
    if isinstance(study.pruner, AshaPruner) and n_trials > k:
        first = first_epoch(study.pruner_of_budget, max_epochs=task.epochs) / task.epochs
        share = first + (1 - first) * 0.45  # of 8 to 20 trials some 45 % pass a rung of three
    confirm = study.confirm
    return Estimate(
        name=study.name,
        n_trials=n_trials,
        n_confirm_least=k * len(confirm.seeds),
        n_confirm_most=k * (confirm.max_seeds if confirm.until else len(confirm.seeds)),
        samples_search=n_trials * run * share,
        samples_run=run,
        samples_per_s=SAMPLES_PER_S.get(str(task.model), SAMPLES_PER_S.get(task.name, 1.0)),
    )


def table(studies: Iterable[dict[str, Any]]) -> str:
    """A row a study, in the order in which they run."""
    body = []
    for one in map(estimate, studies):
        typical = (one.n_confirm_least + one.n_confirm_most) / 2
        body.append([one.name, str(one.n_trials), f"{one.n_confirm_least} to {one.n_confirm_most}"])
        body[-1] += [f"{(one.samples_search + typical * one.samples_run) / 1e6:,.1f}"]
        body[-1] += [f"{one.seconds(n):,.0f}" for n in (one.n_confirm_least, typical, one.n_confirm_most)]
    header = ["study", ">trials", ">confirm runs", ">million samples, typical", ">card s, least", ">typical", ">most"]
    return markdown(header, body)


N_FIRST = 7
"""Of thirteen optimizers, those that are equal and first in `power`; the others are BEHIND points worse."""
BEHIND = 0.02
MARGIN = 0.005


def power(stds: Iterable[float], *, max_seeds: int = 12, n_studies: int = 20) -> str:
    """What adaptive confirmation of such a study decides, by simulation: a row for each spread between seeds.

    Args:
        stds: between seeds, fractions; the noise is normal.
        n_studies: simulated for each; one takes 2 to 8 s.
    """
    draw = np.random.default_rng(0)
    body = []
    for std in stds:
        found = [_decided(draw, std, max_seeds) for _ in range(n_studies)]
        runs, equal, shown, wrong = (np.asarray(one, dtype=float) for one in zip(*found, strict=True))
        error = 100 * equal.std(ddof=1) / n_studies**0.5
        body.append([f"{100 * std:g}", f"{runs.mean():.0f}", f"{100 * equal.mean():.0f} ± {error:.0f}"])
        body[-1] += [f"{100 * shown.mean():.0f}", f"{wrong.sum():.0f}"]
    header = ["spread, points", ">confirm runs", ">equal: called equivalent, %"]
    return markdown([*header, f">{100 * BEHIND:g} points behind: shown, %", ">wrong verdicts"], body)


def _decided(draw: np.random.Generator, std: float, max_seeds: int) -> tuple[int, float, float, int]:
    """Runs, share of equal first pairs called equivalent, share of real differences shown, wrong verdicts."""
    labels = [f"{number:02d}" for number in range(13)]
    behind = {label: BEHIND * (int(label) >= N_FIRST) for label in labels}
    values = {label: draw.normal(-behind[label], std, max_seeds) for label in labels}
    results: dict[str, dict[int, float | None]] = {label: {} for label in labels}
    rules, plan = Rules(direction=Direction.MAXIMIZE, margin=MARGIN), Plan(3, max_seeds)
    while True:
        decision, missing = replay(results, {label: range(max_seeds) for label in labels}, rules, plan)
        if not missing:
            break
        for label, seeds in missing.items():
            results[label] |= {seed: float(values[label][seed]) for seed in seeds}
    assert decision is not None
    equal = shown = wrong = 0
    for one in decision.verdicts:
        differ = behind[one.a] != behind[one.b]
        equal += one.verdict is Verdict.EQUIVALENT and not (differ or behind[one.a])
        shown += one.better is not None and differ
        wrong += (one.better is not None and not differ) or (one.verdict is Verdict.EQUIVALENT and differ)
    n_equal, n_differ = N_FIRST * (N_FIRST - 1) / 2, N_FIRST * (13 - N_FIRST)
    return sum(map(len, results.values())), equal / n_equal, shown / n_differ, wrong
