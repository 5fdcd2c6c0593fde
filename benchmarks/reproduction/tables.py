"""The report's tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from admeta.client.models import ComparisonRow, PairView, SpreadView
from benchmarks.reproduction.facts import StudyFacts
from search.analysis import mean_ranks
from search.paper import comparison, tables

OURS = ("admetar", "admetas")
# The paper's network that is shown next to ours: another depth or size, so only the order can be compared.
PAPER_MODELS = {"resnet20": "resnet110", "resnet110": "resnet110", "minilm": "bert-base"}
PAPER_NAMES = {"resnet110": "ResNet-110, 160 epochs, test", "bert-base": "BERT-base, development set"}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; columns after the first are set to the right where their heading begins with '>'."""
    rule = ["---:" if name.startswith(">") else "---" for name in header]
    lines = [[name.removeprefix(">") for name in header], rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def results(study: StudyFacts) -> str:
    """An optimizer a row, best validation first."""
    rows = study.comparison.rows
    theirs = {row.label: _of_paper(study, row) for row in rows}
    header = ["", ">search best", ">validation", ">test", ">n", ">p to the first", "settings chosen"]
    has_paper = any(theirs.values())
    if has_paper:
        header += [f">paper: {PAPER_NAMES[PAPER_MODELS[str(study.view.model)]]}"]
    pairs = {frozenset((pair.a, pair.b)): pair for pair in study.comparison.pairs}
    body = []
    for row in rows:
        pair = pairs.get(frozenset((rows[0].label, row.label)))
        cells = [row.label, percent(row.search_value), spread(row.validation), spread(row.test)]
        cells += [str(row.validation.n), _p(pair), _chosen(study, row)]
        body.append(cells + ([theirs[row.label]] if has_paper else []))
    return markdown(header, body)


def trials(study: StudyFacts) -> str:
    """How each optimizer's search trials ended, and the card seconds of all its runs."""
    return markdown(
        ["", ">diverged", ">pruned", ">card s"],
        [
            [row.label, f"{row.n_diverged} of {row.divergence.n}", str(row.n_pruned), f"{row.gpu_s:,.0f}"]
            for row in study.comparison.rows
        ],
    )


def against(study: StudyFacts, ours: str) -> str:
    """One of ours against every other optimizer of the study; empty where it has no confirm runs."""
    body = []
    for pair in study.comparison.pairs:
        if ours in (pair.a, pair.b):
            body.append(_difference(pair, ours))
    if not body:
        return ""
    return markdown([f"{ours} against", ">difference, points", ">95 % interval", ">p (adjusted)", f"{ours}"], body)


def verdicts(studies: Sequence[StudyFacts]) -> str:
    """The verdicts on ours against each other optimizer, over the studies of all nine."""
    compared = [study for study in studies if _is_comparison(study)]
    body = []
    for ours in OURS:
        for study in compared:
            told: dict[str, list[str]] = {"better": [], "not shown": [], "worse": []}
            for pair in study.comparison.pairs:
                if ours in (pair.a, pair.b):
                    other = pair.b if pair.a == ours else pair.a
                    told[_verdict(pair, ours)].append(other)
            if any(told.values()):
                body.append([ours, study.name, *(_listed(told[kind]) for kind in ("better", "not shown", "worse"))])
    return markdown(["", "study", "better than", "no difference shown", "worse than"], body)


def ranks(studies: Sequence[StudyFacts]) -> str:
    """Each optimizer's rank by mean validation in the studies of all nine, and the mean of the ranks."""
    compared = [study for study in studies if _is_comparison(study)]
    scores: dict[str, dict[str, float | None]] = {
        study.name: {row.label: row.validation.mean for row in study.comparison.rows} for study in compared
    }
    labels = sorted({label for found in scores.values() for label in found})
    if not compared or any(set(found) != set(labels) for found in scores.values()):
        return ""
    found = {study.name: {row.label: row.rank for row in study.comparison.rows} for study in compared}
    means = mean_ranks([(scores[study.name], study.view.direction) for study in compared])
    body = [
        [label, *(str(found[study.name][label] or "–") for study in compared), f"{means[label]:.2f}"]
        for label in sorted(labels, key=lambda label: means[label])
    ]
    return markdown(["", *(f">{study.name}" for study in compared), ">mean"], body)


def standing(studies: Sequence[StudyFacts]) -> Iterator[str]:
    """How the studies stand, in few words: for the end of a call."""
    for study in studies:
        yield f"{study.name}: {study.view.state}, {len(study.runs)} runs, {study.gpu_s / 60:.1f} card minutes"
        for row in study.comparison.rows:
            confirmed = f"{spread(row.validation)} | test {spread(row.test)} | n {row.validation.n}"
            yield f"  {row.label:<21} search {percent(row.search_value)} | {confirmed} | {_chosen(study, row)}"


def held(study: StudyFacts) -> str:
    """What each optimizer's settings were held at."""
    return markdown(
        ["", "searched", "held at"],
        [
            [
                spec.label,
                ", ".join(f"{name} {_space(parameter)}" for name, parameter in spec.space.items()),
                settings(spec.fixed),
            ]
            for spec in study.definition.optimizers
        ],
    )


def percent(value: float | None) -> str:
    """A fraction in points, with two places; a dash for none."""
    return "–" if value is None else f"{100 * value:.2f}"


def spread(view: SpreadView) -> str:
    """Mean ± sample standard deviation, in points."""
    if view.mean is None:
        return "–" if not view.n_failed else f"– ({view.n_failed} failed)"
    told = percent(view.mean) if view.std is None else f"{percent(view.mean)} ± {percent(view.std)}"
    return told if not view.n_failed else f"{told} ({view.n_failed} failed)"


def settings(values: Mapping[str, Any]) -> str:
    """Names and values in a line."""
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(_value(one) for one in value) + ")"
    return f"{value:.3g}" if isinstance(value, float) else "none" if value is None else str(value)


def _space(parameter: Any) -> str:
    choices = getattr(parameter, "choices", None)
    if choices is not None:
        return " or ".join(_value(choice) for choice in choices)
    return f"{_value(parameter.low)} to {_value(parameter.high)}{', log' if parameter.log else ''}"


def _chosen(study: StudyFacts, row: ComparisonRow) -> str:
    if row.settings is None:
        return "none: no trial reached the end"
    spec = next(one for one in study.definition.optimizers if one.label == row.label)
    return settings({name: value for name, value in row.settings.items() if name in spec.space})


def _p(pair: PairView | None) -> str:
    return "" if pair is None or pair.p_adjusted is None else f"{pair.p_adjusted:.3f}"


def _difference(pair: PairView, ours: str) -> list[str]:
    sign = 1.0 if pair.a == ours else -1.0
    other = pair.b if pair.a == ours else pair.a
    if pair.difference is None:
        return [other, "–", "–", "–", pair.note or "not compared"]
    ends = sorted(sign * end for end in (pair.low, pair.high) if end is not None)
    interval = " to ".join(f"{100 * end:+.2f}" for end in ends) or "–"
    return [other, f"{100 * sign * pair.difference:+.2f}", interval, _p(pair) or "–", _verdict(pair, ours)]


def _verdict(pair: PairView, ours: str) -> str:
    if pair.better is None:
        return "not shown"
    return "better" if pair.better == ours else "worse"


def _is_comparison(study: StudyFacts) -> bool:
    labels = {spec.label for spec in study.definition.optimizers}
    return study.is_search and set(OURS) <= labels and {"sgdm", "adamw"} <= labels


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) or "–"


def _of_paper(study: StudyFacts, row: ComparisonRow) -> str:
    """The paper's number for the same optimizer, or for the ablation that the row's settings are."""
    theirs = PAPER_MODELS.get(str(study.view.model))
    metric = study.view.metric.removeprefix("val_")
    if theirs is None or "preset" in (row.settings or {}):
        return ""
    variant = comparison.variant_of(
        task=study.view.task, model=theirs, optimizer=row.optimizer, settings=row.settings or {}
    )
    found = tables.results(task=study.view.task, model=theirs, optimizer=row.optimizer, metric=metric)
    return next((one.text.replace("±", " ± ") for one in found if one.variant == variant), "")
