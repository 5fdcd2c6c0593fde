"""What the numbers of a comparison say in words: who leads, and whether the others are shown to be behind."""

from __future__ import annotations

from search.states import Direction
from service.models import ComparisonView, StudyView


def leaders(study: StudyView) -> set[str]:
    """Labels of the searches with the best value so far, where there are at least two to compare."""
    values = {search.label: search.best_value for search in study.searches if search.best_value is not None}
    if len(values) < 2:
        return set()
    best = Direction(study.direction).best(values.values())
    return {label for label, value in values.items() if value == best}


def verdicts(standing: ComparisonView) -> dict[str, str]:
    """By label, what is shown against the optimizer in the first place; empty before anything is confirmed."""
    ranked = [row for row in standing.rows if row.rank is not None]
    if not ranked:
        return {}
    first = ranked[0].label
    found: dict[str, str] = {}
    for pair in standing.pairs:
        if first not in (pair.a, pair.b):
            continue
        other = pair.b if pair.a == first else pair.a
        if pair.p_holm is None:
            found[other] = "too few seeds to tell"
        elif pair.better == first:
            found[other] = f"behind, p = {pair.p_holm:.2g}"
        else:
            found[other] = f"no difference shown, p = {pair.p_holm:.2g}"
    return found
