"""How a study's confirm runs are compared, what they can show, which trial they choose and which seeds come next."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from admeta.client.models import DetectableView
from search.analysis import Decision, Plan, Rules, detectable_difference, replay
from search.definition import StudyDefinition
from search.extension import alpha_after
from search.records import RunRecord
from search.sections import Confirm
from search.states import Direction, RunState, SignificanceTest, Verdict


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


def _plan(confirm: Confirm, n_seen: int) -> Plan | None:
    if confirm.until is None:
        return None
    return Plan(len(confirm.seeds), confirm.max_seeds, alpha=alpha_after(confirm.confidence, n_seen))
