"""Several studies side by side: the best of each, what differs in their definitions, verdicts within one recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Engine

from admeta.client.models import (
    ComparedRowView,
    ComparedStudyView,
    ComparisonView,
    DifferenceView,
    PairView,
    StudiesComparisonView,
)
from search.analysis import Rules, Sample, compare
from search.extension import alpha_after
from search.states import SignificanceTest
from service.database.engine import reading
from service.database.models import Study
from service.database.queries.comparison import compared
from service.database.queries.lookup import confirm_of, find_study
from service.database.retry import REQUEST, retried

MAX_SEARCHES = 150
"""Searches with confirm runs in all studies, up to which there are verdicts: pairs grow with the square."""
_NO_DIFFERENCE = {"name", "description"}


@retried(REQUEST)
def compare_studies(
    engine: Engine, studies: Sequence[str], *, test: SignificanceTest = SignificanceTest.MODERATED
) -> StudiesComparisonView:
    """Studies side by side, in the order given.

    Verdicts are adjusted for every two searches of all the studies, so that those of the best of each, which are
    chosen by the same values, err no more often than the studies allow.

    Args:
        studies: ids or names, each once.

    Raises:
        StudyNotFoundError: no study has one of the ids or names.
    """
    with reading(engine) as session:
        rows = [find_study(session, study) for study in studies]
        found = [compared(session, row, test=test) for row in rows]
    each = [view for view, _ in found]
    samples = {row.id: sample for row, (_, sample) in zip(rows, found, strict=True)}
    why = _why_not(rows, n_searches=sum(map(len, samples.values())))
    pairs = [] if why else _pairs(rows, samples, each, test=test)
    if not why and not pairs:
        why = "fewer than two of these studies have confirm runs."
    return StudiesComparisonView(
        studies=[_compared(row, view) for row, view in zip(rows, each, strict=True)],
        differences=differences([row.definition for row in rows]),
        pairs=pairs,
        no_verdicts=why,
    )


def _compared(study: Study, view: ComparisonView) -> ComparedStudyView:
    rows = [ComparedRowView.model_validate(row) for row in view.rows]
    of_one_size = not any(row.size for row in view.rows)
    best = rows[0].label if of_one_size and rows and rows[0].rank is not None else None
    return ComparedStudyView(**{**study.columns(), "rows": rows, "best": best})


def _why_not(studies: Sequence[Study], *, n_searches: int) -> str | None:
    """Why there can be no verdicts between the studies; None where there can."""
    if len({study.recipe for study in studies}) > 1 or studies[0].recipe is None:
        differing = [
            name
            for name in ("task", "model", "epochs", "metric")
            if len({getattr(study, name) for study in studies}) > 1
        ]
        of = f": {', '.join(differing)} differ" if differing else ""
        return (
            "their results are not comparable, because the studies are not of one recipe (task with its settings, data "
            f"and objective){of}. The differences of the definitions are listed."
        )
    if any(study.definition.get("scale") for study in studies):
        return "a study has searches at several sizes of its model, which are compared within it alone."
    if any(study.definition.get("searches", 1) > 1 for study in studies):
        return "a study repeats its searches; its verdicts are on optimizers, and those of the others on settings."
    if any(confirm_of(study).until for study in studies):
        return "a study confirmed until it was decided; its number of seeds depends on its own results."
    if n_searches > MAX_SEARCHES:
        return (
            f"the studies have {n_searches} confirmed searches together, and verdicts are given for up to "
            f"{MAX_SEARCHES}, which are compared each with each other one. Compare fewer studies at once."
        )
    return None


def _pairs(
    studies: Sequence[Study],
    samples: Mapping[str, Mapping[str, Sample]],
    each: Sequence[ComparisonView],
    *,
    test: SignificanceTest,
) -> list[PairView]:
    """The verdicts between the best of every two studies, and between searches of the same label."""
    confirms = [confirm_of(study) for study in studies]
    margins = {confirm.min_effect for confirm in confirms}
    all_samples = {f"{study.name}/{label}": sample for study in studies for label, sample in samples[study.id].items()}
    rules = Rules(
        direction=studies[0].direction,
        test=test,
        alpha=min(
            alpha_after(confirm.confidence, study.n_seen) for confirm, study in zip(confirms, studies, strict=True)
        ),
        margin=margins.pop() if len(margins) == 1 else None,
    )
    places = {f"{study.name}/{label}": (study.name, label) for study in studies for label in samples[study.id]}
    best = {f"{study.name}/{view.rows[0].label}" for study, view in zip(studies, each, strict=True) if view.rows}
    found = []
    for pair in compare(all_samples, rules):
        (study, label), (other, other_label) = places[pair.a], places[pair.b]
        if study != other and (label == other_label or {pair.a, pair.b} <= best):
            found.append(PairView.model_validate(pair))
    return sorted(found, key=lambda pair: not {pair.a, pair.b} <= best)


def differences(definitions: Sequence[Mapping[str, Any]]) -> list[DifferenceView]:
    """The fields in which the definitions differ, by their paths; an optimizer's by its label."""
    fields = [dict(_fields(definition)) for definition in definitions]
    return [
        DifferenceView(field=path, values=[one.get(path) for one in fields])
        for path in dict.fromkeys(chain.from_iterable(fields))
        if path not in _NO_DIFFERENCE and any(one.get(path) != fields[0].get(path) for one in fields)
    ]


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The fields below a value with their paths; a parameter of a search space is one."""
    before = f"{path}." if path else ""
    if isinstance(value, Mapping) and value and "type" not in value:
        for name, child in value.items():
            yield from _fields(child, before + name)
    elif isinstance(value, list) and value and all(isinstance(child, Mapping) and "label" in child for child in value):
        for child in value:
            rest = {name: one for name, one in child.items() if name != "label"}
            yield from _fields(rest, before + child["label"])
    else:
        yield path, value
