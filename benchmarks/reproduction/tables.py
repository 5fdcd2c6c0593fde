"""The report's tables as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from admeta.client.models import ComparisonRow, PairView, ProfilesView, SpreadView
from benchmarks.reproduction.facts import StudyFacts
from search.paper import comparison, tables
from search.states import Verdict

OURS = ("admetar", "admetas")
SIGNS = {"better": "+", "equivalent": "=", "open": "·", "worse": "−"}
"""What is shown of one optimizer against another."""
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
    header = ["", ">search best", ">validation", ">test", ">n", ">p to the first", ">card s", "settings chosen"]
    has_paper = any(theirs.values())
    if has_paper:
        header += [f">paper: {PAPER_NAMES[PAPER_MODELS[str(study.view.model)]]}"]
    pairs = {frozenset((pair.a, pair.b)): pair for pair in study.comparison.pairs}
    body = []
    for row in rows:
        pair = pairs.get(frozenset((rows[0].label, row.label)))
        cells = [row.label, told(study, row.search_value), spread(study, row.validation), spread(study, row.test)]
        cells += [str(row.validation.n), _p(pair), f"{row.gpu_s:,.0f}", _chosen(study, row)]
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
            body.append(_difference(study, pair, ours))
    if not body:
        return ""
    unit = "difference" if is_loss(study) else "difference, points"
    return markdown([f"{ours} against", f">{unit}", ">interval", ">p (adjusted)", f"{ours}"], body)


def matrix(study: StudyFacts) -> str:
    """Every two optimizers: what is shown of the row against the column; empty where nothing was confirmed."""
    labels = [
        row.label for row in study.comparison.rows if any(row.label in (p.a, p.b) for p in study.comparison.pairs)
    ]
    if not labels:
        return ""
    signs = {(pair.a, pair.b): pair for pair in study.comparison.pairs}
    body = []
    for place, label in enumerate(labels, 1):
        found = [signs.get((label, other)) or signs.get((other, label)) for other in labels]
        body.append([f"{place} {label}", *("" if pair is None else SIGNS[_verdict(pair, label)] for pair in found)])
    return markdown(["", *(str(place) for place in range(1, len(labels) + 1))], body)


def counts(study: StudyFacts) -> str:
    """How many pairs are decided, in words."""
    found = Counter("better" if pair.better else str(pair.verdict) for pair in study.comparison.pairs)
    n, margin = sum(found.values()), next((pair.margin for pair in study.comparison.pairs), None)
    words = [f"one better: {found.pop('better', 0)}"]
    if margin is not None:
        words.append(f"equivalent within {in_unit(study, margin)}: {found.pop(Verdict.EQUIVALENT.value, 0)}")
    return f"Of {n} pairs, {', '.join(words)}, open: {sum(found.values())}."


def in_unit(study: StudyFacts, value: float) -> str:
    """A difference of the metric in words: points, or nats of a loss."""
    return f"{value:g}" if is_loss(study) else f"{100 * value:g} points"


def is_loss(study: StudyFacts) -> bool:
    """Whether the metric is one that is told as it is, not in hundredths."""
    return study.view.metric.endswith("loss")


def verdicts(studies: Sequence[StudyFacts]) -> str:
    """The verdicts on ours against each other optimizer, over the studies that compare all."""
    body = []
    for ours in OURS:
        for study in filter(is_comparison, studies):
            found: dict[str, list[str]] = {kind: [] for kind in SIGNS}
            for pair in study.comparison.pairs:
                if ours in (pair.a, pair.b):
                    found[_verdict(pair, ours)].append(pair.b if pair.a == ours else pair.a)
            if any(found.values()):
                body.append([ours, study.name, *(_listed(found[kind]) for kind in SIGNS)])
    return markdown(["", "study", "better than", "equivalent to", "open", "worse than"], body)


def scores(profile: ProfilesView, studies: Sequence[StudyFacts]) -> str:
    """Each optimizer's rank in each study, the mean of the ranks, and the score by value (docs/verdicts.md)."""
    ranks = {study.name: {row.label: row.rank for row in study.comparison.rows} for study in studies}
    body = [
        [
            one.name,
            *(str(ranks[study.name].get(one.name) or "–") for study in studies),
            "–" if one.mean_rank is None else f"{one.mean_rank:.2f}",
            "–" if one.by_value is None else f"{one.by_value.area:.2f}",
        ]
        for one in profile.optimizers
    ]
    return markdown(["", *(f">{study.name}" for study in studies), ">mean rank", ">score by value"], body)


def standing(studies: Sequence[StudyFacts]) -> Iterator[str]:
    """How the studies stand, in few words: for the end of a call."""
    for study in studies:
        yield f"{study.name}: {study.view.state}, {len(study.runs)} runs, {study.gpu_s / 60:.1f} card minutes"
        for row in study.comparison.rows:
            confirmed = f"{spread(study, row.validation)} | test {spread(study, row.test)} | n {row.validation.n}"
            yield f"  {row.label:<21} search {told(study, row.search_value)} | {confirmed} | {_chosen(study, row)}"


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


def told(study: StudyFacts, value: float | None) -> str:
    """A fraction in points, with two places; a loss as it is; a dash for none."""
    if value is None:
        return "–"
    return f"{value:.4f}" if is_loss(study) else f"{100 * value:.2f}"


def spread(study: StudyFacts, view: SpreadView) -> str:
    """Mean ± sample standard deviation."""
    if view.mean is None:
        return "–" if not view.n_failed else f"– ({view.n_failed} failed)"
    words = told(study, view.mean) if view.std is None else f"{told(study, view.mean)} ± {told(study, view.std)}"
    return words if not view.n_failed else f"{words} ({view.n_failed} failed)"


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


def _difference(study: StudyFacts, pair: PairView, ours: str) -> list[str]:
    sign = 1.0 if pair.a == ours else -1.0
    other = pair.b if pair.a == ours else pair.a
    if pair.difference is None:
        return [other, "–", "–", "–", pair.note or "not compared"]
    ends = sorted(sign * end for end in (pair.low, pair.high) if end is not None)
    interval = " to ".join(_signed(study, end) for end in ends) or "–"
    return [other, _signed(study, sign * pair.difference), interval, _p(pair) or "–", _verdict(pair, ours)]


def _signed(study: StudyFacts, value: float) -> str:
    return ("+" if value >= 0 else "") + told(study, value)


def _verdict(pair: PairView, ours: str) -> str:
    if pair.better is None:
        return "equivalent" if pair.verdict == Verdict.EQUIVALENT else "open"
    return "better" if pair.better == ours else "worse"


def is_comparison(study: StudyFacts) -> bool:
    """Whether it searches ours and the usual ones, each in its own space."""
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
