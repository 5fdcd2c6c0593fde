"""How a study's confirm runs are compared, and which seeds it trains next: its definition as rules."""

from __future__ import annotations

from collections.abc import Mapping

from search.analysis import Decision, Plan, Rules, replay
from search.definition import Confirm, StudyDefinition
from search.states import Direction, SignificanceTest, Verdict


def rules_of(
    confirm: Confirm,
    *,
    direction: Direction,
    n_seeds: int = 0,
    against: str | None = None,
    test: SignificanceTest = SignificanceTest.MODERATED,
) -> Rules:
    """The rules by which a study's optimizers are compared.

    Args:
        n_seeds: seeds of the optimizer with most. With `until: decided` the verdicts are those of the last look that
            these allow.
        against: compare every optimizer with this one only.
    """
    rules = Rules(
        direction=direction, test=test, alpha=1 - confirm.confidence, margin=confirm.min_effect, against=against
    )
    plan = _plan(confirm)
    look = None if plan is None or test is not SignificanceTest.MODERATED else plan.look_of(n_seeds)
    return rules if plan is None or look is None else plan.rules_at(rules, look)


def next_seeds(
    definition: StudyDefinition, results: Mapping[str, Mapping[int, float | None]]
) -> tuple[Decision | None, dict[str, list[int]]]:
    """What is decided, and the seeds that each optimizer still needs; none for a study that confirms with fixed seeds.

    Args:
        results: by label and seed the values of finished confirm runs; None for one that failed.
    """
    confirm = definition.confirm
    plan = _plan(confirm)
    if plan is None or len(results) < 2:
        return None, {}
    against = None if definition.contrasts is None else definition.contrasts.against
    if against not in (None, *results):
        return None, {}
    rules = rules_of(confirm, direction=definition.objective.direction, against=against)
    return replay(results, confirm.all_seeds(definition.training_seed), rules, plan)


def describe(decision: Decision) -> str | None:
    """The decision in words, as a study's reason while it trains further seeds; None where it trains none."""
    if decision.n_next is None:
        return None
    n_decided = sum(verdict.verdict is not Verdict.UNDECIDED for verdict in decision.verdicts)
    behind = f"; {', '.join(decision.behind)} decided" if decision.behind else ""
    return (
        f"confirmation, look {decision.look + 1}: {n_decided} of {len(decision.verdicts)} pairs are decided{behind}. "
        f"{', '.join(decision.open)} train up to {decision.n_next} seeds each"
    )


def _plan(confirm: Confirm) -> Plan | None:
    if confirm.until is None:
        return None
    return Plan(len(confirm.seeds), confirm.max_seeds, alpha=1 - confirm.confidence)
