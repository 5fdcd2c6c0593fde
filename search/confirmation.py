"""How a study's confirm runs are compared, what they can show and which seeds it trains next.

Also which trial they choose, and which runs show how the result depends on one parameter around it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from admeta.client.models import DetectableView
from search.analysis import Decision, Plan, Rules, detectable_difference, replay
from search.definition import StudyDefinition
from search.extension import alpha_after
from search.optimizer_search import OptimizerSearch
from search.records import RunRecord
from search.sections import Confirm
from search.states import SETTINGS_FAILURES, Direction, FailureKind, RunState, SignificanceTest, Stage, Verdict


def rules_of(
    confirm: Confirm,
    *,
    direction: Direction,
    n_seeds: int = 0,
    against: str | None = None,
    test: SignificanceTest = SignificanceTest.MODERATED,
    n_seen: int = 0,
) -> Rules:
    """The rules by which a study's optimizers are compared.

    Args:
        n_seen: see `search.extension.alpha_after`.
        n_seeds: seeds of the optimizer with most. With `until: decided` the verdicts are those of the last look that
            these allow.
        against: compare every optimizer with this one only.
    """
    rules = Rules(
        direction=direction,
        test=test,
        alpha=alpha_after(confirm.confidence, n_seen),
        margin=confirm.min_effect,
        against=against,
    )
    plan = _plan(confirm, n_seen)
    look = None if plan is None or test is not SignificanceTest.MODERATED else plan.look_of(n_seeds)
    return rules if plan is None or look is None else plan.rules_at(rules, look)


def next_seeds(
    definition: StudyDefinition,
    results: Mapping[str, Mapping[int, float | None]],
    *,
    cancelled: Mapping[str, Collection[int]],
    n_seen: int = 0,
) -> tuple[Decision | None, dict[str, list[int]]]:
    """What is decided, and the seeds that each optimizer still needs; none for a study that confirms with fixed seeds.

    Args:
        results: by label and seed the values of finished confirm runs; None for one that failed.
        cancelled: by label, seeds whose runs were cancelled: the next ones take their place.
        n_seen: see `search.extension.alpha_after`. All looks are taken again with the alpha that is left.
    """
    confirm = definition.confirm
    plan = _plan(confirm, n_seen)
    if plan is None or len(results) < 2:
        return None, {}
    against = None if definition.contrasts is None else definition.contrasts.against
    if against not in (None, *results):
        return None, {}
    rules = rules_of(confirm, direction=definition.objective.direction, against=against, n_seen=n_seen)
    planned = confirm.all_seeds(definition.training_seed)
    seeds = {label: [seed for seed in planned if seed not in cancelled.get(label, ())] for label in results}
    return replay(results, seeds, rules, plan)


def describe(decision: Decision) -> str | None:
    """The decision in words, as a study's reason while it trains further seeds; None where it trains none."""
    if decision.n_next is None:
        return None
    n_decided = sum(verdict.verdict is not Verdict.UNDECIDED for verdict in decision.verdicts)
    settled = f"; {', '.join(decision.settled)} decided" if decision.settled else ""
    return (
        f"confirmation, look {decision.look + 1}: {n_decided} of {len(decision.verdicts)} pairs are decided{settled}. "
        f"{', '.join(decision.open)} train up to {decision.n_next} seeds each"
    )


@dataclass(frozen=True, kw_only=True)
class Spread:
    """What earlier studies of a recipe say of one optimizer's confirm runs.

    Attributes:
        std: typical standard deviation between seeds, in the metric's unit.
        n_studies: studies that it was found in.
    """

    std: float
    n_studies: int


def detectable_in(definition: StudyDefinition, earlier: Spread | None) -> DetectableView | None:
    """What this study can show with a probability of 80 %, before it has results; None where it has one optimizer."""
    k, confirm, plan = len(definition.optimizers), definition.confirm, _plan(definition.confirm, 0)
    if k < 2:
        return None
    if not confirm.top_k:
        sentence = "Nothing is confirmed, so no difference can be shown."
        return DetectableView(difference=None, std=None, sentence=sentence)
    repeated = definition.searches > 1
    unit = "searches" if repeated else "seeds"
    n_seeds = len(confirm.seeds) if plan is None else plan.max_seeds
    # With several confirmed trials half of the seeds choose one, and the other half report it.
    n = definition.searches if repeated else n_seeds if confirm.top_k == 1 else math.ceil(n_seeds / 2)
    if n < 2:
        sentence = "One confirm seed of each optimizer shows no spread, so no difference can be shown."
        return DetectableView(difference=None, std=None, sentence=sentence)
    against = None if definition.contrasts is None else definition.contrasts.against
    rules = rules_of(confirm, direction=definition.objective.direction, n_seeds=n, against=against)
    std = None if earlier is None or repeated else earlier.std
    difference = detectable_difference(rules, n_optimizers=k, n=n, std=std or 1.0)
    compared = f"{k} optimizers with {'up to ' if plan else ''}{n} {unit} each"
    if earlier is None or std is None:
        size = f"about {difference:.2g} standard deviations between {unit}"
        source = f"no earlier study of this recipe says how large one is{' between searches' if repeated else ''}"
    else:
        size = f"about {difference:.2g} in {definition.objective.metric}"
        studies = "an earlier study" if earlier.n_studies == 1 else f"{earlier.n_studies} earlier studies"
        source = f"the standard deviation between seeds was {std:.2g} in {studies} of this recipe"
    sentence = f"{compared}: a difference of {size} is shown with a probability of 80 %; {source}."
    return DetectableView(difference=difference, std=std, sentence=sentence)


def choosing_seeds(seeds: Iterable[int]) -> set[int]:
    """The confirm seeds that choose among several confirmed trials: every second one. The others report.

    The best of several trials by the same seeds would be the luckiest.
    """
    return {seed for i, seed in enumerate(sorted(set(seeds))) if i % 2}


def choose(trials: Sequence[RunRecord], confirm_runs: Sequence[RunRecord], direction: Direction) -> RunRecord | None:
    """The trial that represents a search, by its finished confirm runs; None where there is no trial.

    Args:
        trials: those that were confirmed, best first.
        confirm_runs: of all of them.
    """
    counted = [run for run in confirm_runs if not (run.failure and run.failure.is_withdrawn)]
    seeds = {run.seed for run in counted}
    choosing = choosing_seeds(seeds) or seeds
    if len(trials) < 2:
        return trials[0] if trials else None

    def place(trial: RunRecord) -> tuple[bool, float, bool, float, int]:
        own = [run for run in counted if run.trial_number == trial.trial_number and run.seed in choosing]
        values = [run.value for run in own if run.state is RunState.COMPLETE and run.value is not None]
        cost = direction.cost(sum(values) / len(values)) if values else 0.0
        failed = 1 - len(values) / len(own) if own else 0.0
        return not own, failed, not values, cost, trial.trial_number

    return min(trials, key=place)


def without(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The other parameters: trials that have the same ones lie on one line of the search space."""
    return {key: value for key, value in params.items() if key != name}


def tells_of_settings(run: RunRecord) -> bool:
    """Whether the run's end is a result of its settings: a value at full length, or a divergence."""
    return run.state is RunState.COMPLETE or run.failure in SETTINGS_FAILURES


def sensitivity_runs(
    definition: StudyDefinition, optimizer: OptimizerSearch, runs: Sequence[RunRecord], chosen: RunRecord
) -> list[tuple[dict[str, Any], int]]:
    """Parameters and seed of each run that is still to be made around the chosen trial.

    A trial that has the same other parameters and lies within a quarter of the distance between two values takes the
    place of a run: further seeds are trained at its own value. The chosen trial itself does not, since its value was
    selected for being good; its confirm runs do.

    Args:
        runs: of the search, all stages.
    """
    asked = definition.sensitivity
    if asked is None:
        return []
    name, at = asked.parameter, optimizer.number(asked.parameter, chosen.params)
    seeds = definition.confirm.seeds[: asked.seeds]
    log = optimizer.varies_on_log_scale(name)
    values = optimizer.values_around(chosen.params, asked)
    apart = min((_distance(a, b, log=log) for a, b in pairwise(values)), default=0.0)
    trials = [
        (value, run)
        for run in runs
        if run.stage is Stage.SEARCH and run.id != chosen.id and tells_of_settings(run)
        and without(name, run.params) == without(name, chosen.params)
        and (value := optimizer.number(name, run.params)) is not None
    ]  # fmt: skip
    wanted: list[tuple[dict[str, Any], int]] = []
    for value in values:
        params = {**chosen.params, name: value}
        if value == at:
            wanted += [(dict(chosen.params), seed) for seed in seeds if not definition.confirm.top_k]
            continue
        near = min(trials, key=lambda one: _distance(one[0], value, log=log), default=None)
        if near is not None and _distance(near[0], value, log=log) <= apart / 4:
            wanted += [(dict(near[1].params), seed) for seed in seeds[:-1]]
        else:
            wanted += [(params, seed) for seed in seeds]
    made = [run for run in runs if run.stage is Stage.SENSITIVITY and run.failure is not FailureKind.REPLACED]
    known = [(run.params, run.seed) for run in made]
    return [one for one in wanted if one not in known]


def _distance(a: float, b: float, *, log: bool) -> float:
    return abs(math.log(a / b)) if log else abs(a - b)


def _plan(confirm: Confirm, n_seen: int) -> Plan | None:
    if confirm.until is None:
        return None
    return Plan(len(confirm.seeds), confirm.max_seeds, alpha=alpha_after(confirm.confidence, n_seen))
