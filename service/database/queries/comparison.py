"""The comparison of a study's optimizers: each one's best trial, what sets them apart, and what the search cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

from sqlalchemy import ColumnElement, Engine, func, select
from sqlalchemy.orm import Session

from admeta.client.formatting import number
from admeta.client.models import (
    BestOfNView,
    ComparisonRow,
    ComparisonView,
    DetectableView,
    PairView,
    SpreadView,
)
from search.analysis import (
    BestOfN,
    PairVerdict,
    Rules,
    Sample,
    compare,
    divergence_rate,
    spread,
    typical_std,
)
from search.confirmation import Spread, detectable_in, rules_of
from search.definition import StudyDefinition
from search.extension import looks_in_words, unequal_budgets
from search.optimizer_search import BASELINE
from search.recipe import own_fields, recipe_of
from search.records import RunOutcome
from search.scale import sizes_of
from search.states import SETTINGS_FAILURES, Direction, FailureKind, RunState, SignificanceTest, Stage, StudyState
from service.database.engine import reading
from service.database.models import CONFIRM, Run, Search, Study
from service.database.queries.chosen import (
    best_by_search,
    chosen_trials,
    found_edges,
    searches_with_best,
    times_to_target,
    trial_values,
)
from service.database.queries.lookup import confirm_of, find_study
from service.database.queries.summaries import TrialSummary, test_metric
from service.database.retry import REQUEST, retried
from tasks.engine.protocol import Cost

MIN_EQUAL = 3
"""Trials of a search that all have one value before that is told."""

MAX_STUDIES = 50
"""Last studies of a task among which one of the same data is looked for."""

MAX_EARLIER = 2000
"""Confirm runs of earlier studies, the last ones, that tell the spread between seeds."""


@retried(REQUEST)
def comparison(engine: Engine, study: str, *, test: SignificanceTest = SignificanceTest.MODERATED) -> ComparisonView:
    """The optimizers of a study, best first; those without a complete trial come last and have no rank.

    An optimizer is represented by its best confirmed trial, by mean validation over the confirm seeds; before anything
    is confirmed by the best value of the search.

    Raises:
        StudyNotFoundError: no study has this id or name.

    Args:
        test: how optimizers are compared.
    """
    with reading(engine) as session:
        return compared(session, find_study(session, study), test=test)[0]


def compared(session: Session, row: Study, *, test: SignificanceTest) -> tuple[ComparisonView, dict[str, Sample]]:
    """A study's `comparison`, and by label the confirm runs of the trial that represents each search.

    Searches without confirm runs have no sample.
    """
    searches = searches_with_best(session, row)
    chosen = chosen_trials(session, row, searches)
    counts = _counts(session, row)
    values = trial_values(session, row)
    best = best_by_search(values, direction=row.direction)
    targets = times_to_target(session, row, chosen)
    rows = {
        search.label: _row(
            search,
            chosen.get(search.id),
            counts.get(search.id, _NO_RUNS),
            _NO_TRIALS if _is_baseline(row, search) else best.get(search.id, _NO_TRIALS),
            target=targets.get(search.id),
            test_metric=test_metric(row.metric),
            **place_in_definition(row, search),
        )
        for search, _ in searches
    }
    ranked = _ranked(rows, {search.label: _place(chosen.get(search.id), row.direction) for search, _ in searches})
    confirms = confirm_of(row).top_k != 0
    counted = {
        search.label: one
        for search, _ in searches
        if (one := chosen.get(search.id)) and (one.confirmed or not confirms)
    }
    repeated = row.definition.get("searches", 1) > 1
    samples = _by_search(row, ranked, counted) if repeated else _by_seed([one.label for one in ranked], counted)
    rules = _rules(row, samples, test=test, unit="searches" if repeated else "seeds")
    confirmed = {search.label: one for search, _ in searches if (one := chosen.get(search.id)) and one.confirmed}
    view = ComparisonView(
        **{**row.columns(), "study": row.name},
        complete=row.state == StudyState.COMPLETED,
        rows=ranked,
        optimizers=_folded(row, ranked, samples, [one for one, _ in searches], values, counts) if repeated else [],
        pairs=[PairView.model_validate(pair) for pair in _verdicts(ranked, samples, rules)] if confirms else [],
        over_searches={label: _spread_over(one) for label, one in samples.items()} if repeated else {},
        remarks=[*_remarks(row), *_without_effect(row, [one for one, _ in searches], values)],
        **found_edges(
            session, row, {one.id: place_in_definition(row, one)["listed_as"] for one, _ in searches}, chosen
        ),
    )
    return view, _by_seed(list(confirmed), confirmed)


def _remarks(study: Study) -> list[str]:
    common = study.definition["budget"]["trials_per_optimizer"]
    budgets = {one["label"]: one.get("n_trials") or common for one in study.definition["optimizers"]}
    looks = looks_in_words(confirm_of(study).confidence, study.n_seen)
    remarks = (unequal_budgets(budgets), looks, _recipe_note(study), _several_objectives(study), _unconfirmed(study))
    return [remark for remark in remarks if remark is not None]


def _unconfirmed(study: Study) -> str | None:
    if confirm_of(study).top_k:
        return None
    return (
        "Nothing is confirmed (confirm.top_k is 0): each value is the best of a search, which is partly luck, and no "
        "verdict rests on it."
    )


def _without_effect(
    study: Study, searches: Sequence[Search], values: Mapping[int, Sequence[float | None]]
) -> Iterator[str]:
    """The searches whose trials all have one value."""
    for search in searches:
        of = values.get(search.id, ())
        if len(of) >= MIN_EQUAL and of[0] is not None and len(set(of)) == 1:
            yield (
                f"{search.label}: all {len(of)} trials have the same {study.metric}, {number(of[0])}: nothing tells "
                "their settings apart, and the best are those tried first. Perhaps the training does not use the "
                "optimizer's settings, or the metric is too coarse."
            )


def _several_objectives(study: Study) -> str | None:
    names = [one["metric"] for one in study.definition.get("objectives", [])]
    if not names:
        return None
    return (
        f"Trials were searched for {' and '.join(names)} as well: a search for {study.metric} alone may find a better "
        "one. The Pareto fronts show all of it."
    )


@retried(REQUEST)
def detectable(engine: Engine, definition: StudyDefinition) -> DetectableView | None:
    """The difference that a study of this definition can show, by what earlier studies of its recipe say."""
    with reading(engine) as session:
        earlier = _earlier_spread(session, _likely_recipe(session, definition))
    return detectable_in(definition, earlier)


def _likely_recipe(session: Session, definition: StudyDefinition) -> str:
    """The recipe that a new study will have, if its data are as the last study that names the same found them."""
    named = {"data_dir": definition.task.data_dir, **definition.task.imports()}
    known = (
        select(Study.data_fingerprint, Study.definition)
        .where(Study.task == definition.task.name, Study.data_fingerprint.is_not(None))
        .order_by(Study.created_at.desc())
        .limit(MAX_STUDIES)
    )
    for fingerprint, content in session.execute(known):
        if all(content["task"].get(name) == value for name, value in named.items()):
            return recipe_of(definition, data_fingerprint=fingerprint)
    return recipe_of(definition)


def _earlier_spread(session: Session, recipe: str) -> Spread | None:
    """Typical spread between the seeds of one trial."""
    query = (
        select(Search.study_id, Run.search_id, Run.trial_number, Run.value)
        .join(Run.search)
        .join(Search.study)
        .where(Study.recipe == recipe, Run.stage == CONFIRM, Run.state == RunState.COMPLETE, Run.value.is_not(None))
        .order_by(Run.id.desc())
        .limit(MAX_EARLIER)
    )
    values: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for study_id, search_id, trial, value in session.execute(query):
        if value is not None:
            values[study_id, search_id, trial].append(value)
    std = typical_std(values.values())
    n_studies = len({study for (study, *_), of in values.items() if len(of) > 1})
    return None if std is None else Spread(std=std, n_studies=n_studies)


def _rules(study: Study, samples: Mapping[str, Sample], *, test: SignificanceTest, unit: str) -> Rules:
    """The rules by which the study's definition asks for its optimizers to be compared."""
    contrasts = study.definition.get("contrasts")
    known = study.definition.get("scale") is not None or (contrasts and contrasts["against"] in samples)
    against = contrasts["against"] if contrasts and known else None
    n = max((sample.n for sample in samples.values()), default=0)
    confirm = confirm_of(study)
    rules = rules_of(confirm, direction=study.direction, n_seeds=n, against=against, test=test, n_seen=study.n_seen)
    return replace(rules, unit=unit)


def _verdicts(rows: Sequence[ComparisonRow], samples: Mapping[str, Sample], rules: Rules) -> list[PairVerdict]:
    """Between the searched optimizers, then of each with its baseline; the second family costs the first nothing."""
    if any(row.size is not None for row in rows):
        pairs = _within_sizes(rows, samples, against=rules.against)
        return compare(samples, replace(rules, against=None, pairs=pairs)) if pairs else []
    of = {row.baseline_of: row.label for row in rows if row.baseline_of is not None}
    searched = {label: sample for label, sample in samples.items() if label not in of.values()}
    pairs = [(label, of[label]) for label in searched if of.get(label) in samples]
    found = compare(searched, rules)
    if pairs:
        found += compare(samples, replace(rules, against=None, looks=None, pairs=pairs))
    if rules.unit == "searches":  # a baseline searches nothing: no further search would decide
        note = "The defaults are one trial beside the searches"
        found = [replace(one, more=None, note=one.note or note) if one.b in of.values() else one for one in found]
    return found


def _within_sizes(
    rows: Sequence[ComparisonRow], samples: Mapping[str, Sample], *, against: str | None
) -> list[tuple[str, str]]:
    """The pairs of searches at one size; with `against`, an optimizer's label, those with its search."""
    known = [row for row in rows if row.label in samples]
    pairs = [pair for pair in combinations(known, 2) if pair[0].size == pair[1].size]
    return [
        (a.label, b.label) if b.listed_as == against or against is None else (b.label, a.label)
        for a, b in pairs
        if against in (None, a.listed_as, b.listed_as)
    ]


def place_in_definition(study: Study, search: Search) -> dict[str, Any]:
    """Which optimizer of the definition the search is of, and how many of its searches come before it."""
    if _is_baseline(study, search):
        return {
            "listed_as": search.label,
            "repeat": 0,
            "size": None,
            "baseline_of": search.label.removesuffix(BASELINE),
        }
    sizes = sizes_of(study.definition)
    n_searches = study.definition.get("searches", 1)
    place, rest = divmod(search.position, n_searches * len(sizes))
    size, repeat = divmod(rest, n_searches)
    return {"listed_as": study.definition["optimizers"][place]["label"], "repeat": repeat, "size": sizes[size]}


def _is_baseline(study: Study, search: Search) -> bool:
    """Baselines come after all searches."""
    of_each: int = study.definition.get("searches", 1) * len(sizes_of(study.definition))
    return search.position >= of_each * len(study.definition.get("optimizers") or [])


def _by_seed(labels: Sequence[str], confirmed: Mapping[str, TrialSummary]) -> dict[str, Sample]:
    """By label, the values of the confirm runs: verdicts are then on the settings that one search found."""
    return {
        label: Sample(
            values={run.seed: run.value for run in runs if run.state == RunState.COMPLETE and run.value is not None},
            n_failed=sum(run.state == RunState.FAIL for run in runs),
        )
        for label in labels
        if label in confirmed
        for runs in [confirmed[label].counted]
    }


def _by_search(study: Study, rows: Sequence[ComparisonRow], counted: Mapping[str, TrialSummary]) -> dict[str, Sample]:
    """By the optimizer's label, what each of its searches reached: verdicts are then on the optimizers.

    A search counts by the mean of its confirm runs, which varies with the luck of the search and with the seeds. A
    search with a failed confirm run, or without a trial to confirm, counts as failed. Where the study confirms nothing,
    a search counts by its best trial.
    """
    values: dict[str, dict[Hashable, float]] = defaultdict(dict)
    n_failed: dict[str, int] = defaultdict(int)
    for row in rows:
        one = counted.get(row.label)
        if one is not None and one.score is not None and not one.failed_share:
            values[row.listed_as][row.repeat] = one.score
        elif one is not None or study.state.is_terminal:
            n_failed[row.listed_as] += 1
    return {
        label: Sample(values=values[label], n_failed=n_failed[label])
        for label in dict.fromkeys(row.listed_as for row in rows)
        if values[label] or n_failed[label]
    }


def _recipe_note(study: Study) -> str | None:
    """Which optimizers have a recipe of their own, in words; None where all train as the study's task says."""
    optimizers = study.definition["optimizers"]
    labels: dict[str, list[str]] = defaultdict(list)
    for one in optimizers:
        labels[", ".join(own_fields([one]))].append(one["label"])
    others = labels.pop("", [])
    if not labels:
        return None
    if len(labels) == 1 and not others:
        which = f"Each optimizer has its own {next(iter(labels))}"
    else:
        which = "; ".join(
            f"{', '.join(of)} {'have their' if len(of) > 1 else 'has its'} own {text}" for text, of in labels.items()
        )
        which += "; the others train as the study's task says" if others else ""
    return f"{which}. A verdict compares optimizers together with these, at equal epochs."


def _spread_over(sample: Sample) -> SpreadView:
    return spread([*sample.values.values(), *[None] * sample.n_failed])


def _folded(
    study: Study,
    rows: Sequence[ComparisonRow],
    samples: Mapping[str, Sample],
    searches: Sequence[Search],
    values: Mapping[int, Sequence[float | None]],
    counts: Mapping[int, Mapping[str, Any]],
) -> list[ComparisonRow]:
    """A row an optimizer, best first: its searches together, by what they reached."""
    by_label = {row.label: row for row in rows}
    grouped: dict[str, list[Search]] = defaultdict(list)
    for search in searches:
        grouped[by_label[search.label].listed_as].append(search)
    pooled = {of[0].id: [value for one in of for value in values.get(one.id, ())] for of in grouped.values()}
    best = best_by_search({one: of for one, of in pooled.items() if of}, direction=study.direction)
    folded, places = {}, {}
    for label, of in grouped.items():
        found = [by_label[search.label] for search in of]
        reached = _spread_over(samples[label]) if label in samples else spread([])
        seen = [row.search_value for row in found if row.search_value is not None]
        row = _row(
            of[0],
            None,
            _together([counts.get(search.id, _NO_RUNS) for search in of]),
            _NO_TRIALS if _is_baseline(study, of[0]) else best.get(of[0].id, _NO_TRIALS),
            listed_as=label,
            test_metric=test_metric(study.metric),
            baseline_of=found[0].baseline_of,
        )
        tested = spread([one.test.mean for one in found if one.test.n + one.test.n_failed])
        shown = {"validation": reached, "test": tested, "search_value": spread(seen).mean}
        folded[label] = row.model_copy(update=shown)
        if reached.mean is not None:
            places[label] = reached.n_failed / (reached.n + reached.n_failed), study.direction.cost(reached.mean)
    return _ranked(folded, {label: places.get(label) for label in folded})


def _together(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The counts and costs of several searches as one."""
    costs = {field.name for field in fields(Cost)}
    return {
        name: sum(of[name] for of in counts)
        if name not in costs or Cost.adds_up(name)
        else max(of[name] for of in counts)
        for name in _NO_RUNS
    }


def _row(
    search: Search, summary: TrialSummary | None, counts: Mapping[str, Any], best: BestOfN, **others: Any
) -> ComparisonRow:
    n_diverged, n_judged = counts["n_diverged"], counts["n_judged"]
    diverged = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED)
    outcomes = [diverged] * n_diverged + [RunOutcome(state=RunState.COMPLETE)] * (n_judged - n_diverged)
    nothing = spread([])
    known = {"trial": None, "settings": None, "search_value": None, "validation": nothing, "test": nothing}
    return ComparisonRow(
        **{**search.columns(), **counts, **(known if summary is None else summary.shown), **others},
        rank=None,
        expected_best=[value for value in best.expected if value is not None],
        best_of_n=BestOfNView.model_validate(best),
        divergence=divergence_rate(outcomes),
    )


def _place(summary: TrialSummary | None, direction: Direction) -> tuple[float, float] | None:
    """What an optimizer is ranked by, smaller is better: its share of failed runs, then its score."""
    if summary is None or summary.score is None:
        return None
    return summary.failed_share, direction.cost(summary.score)


def _ranked(rows: Mapping[str, ComparisonRow], places: Mapping[str, tuple[float, float] | None]) -> list[ComparisonRow]:
    """Best first; equal ones share a rank (1, 2, 2, 4); those without a place come last, unranked.

    Searches at different sizes of the model have ranks of their own; the smallest size comes first.
    """
    placed = {label: place for label, place in places.items() if place is not None}
    ranks = {
        label: 1 + sum(other < place for one, other in placed.items() if rows[one].size == rows[label].size)
        for label, place in placed.items()
    }
    in_order = sorted(placed, key=lambda label: (rows[label].size or 0.0, placed[label]))
    ranked = [rows[label].model_copy(update={"rank": ranks[label]}) for label in in_order]
    return ranked + [row for label, row in rows.items() if label not in placed]


def _counts(session: Session, study: Study) -> dict[int, Mapping[str, Any]]:
    """Of each search: its trials by how they ended, and the cost of all its runs, by the names of the view."""
    of_search, failed = Run.stage == Stage.SEARCH, Run.state == RunState.FAIL
    judged = Run.state.in_((RunState.COMPLETE, RunState.PRUNED)) | Run.failure.in_(SETTINGS_FAILURES)
    counted = {
        "n_trials": of_search,
        "n_complete": of_search & (Run.state == RunState.COMPLETE),
        "n_pruned": of_search & (Run.state == RunState.PRUNED),
        "n_failed": of_search & failed,
        "n_diverged": of_search & (Run.failure == FailureKind.DIVERGED),
        "n_judged": of_search & judged,
    }
    query = (
        select(
            Run.search_id,
            *(func.count().filter(which).label(name) for name, which in counted.items()),
            func.coalesce(func.sum(Run.n_epochs).filter(of_search), 0).label("n_epochs"),
            func.coalesce(func.sum(Run.gpu_s).filter(of_search), 0.0).label("search_gpu_s"),
            *(_total(field.name).label(field.name) for field in fields(Cost)),
        )
        .join(Run.search)
        .where(Search.study_id == study.id)
        .group_by(Run.search_id)
    )
    return {row.search_id: row._asdict() for row in session.execute(query)}


def _total(name: str) -> ColumnElement[Any]:
    column = getattr(Run, name)
    return func.sum(column) if Cost.adds_up(name) else func.max(column)


_NO_TRIALS = BestOfN(median=(), low=(), high=(), expected=())
_NO_RUNS: Mapping[str, Any] = {
    **dict.fromkeys(("n_trials", "n_complete", "n_pruned", "n_failed", "n_diverged", "n_judged", "n_epochs"), 0),
    "search_gpu_s": 0.0,
    **vars(Cost()),
}
