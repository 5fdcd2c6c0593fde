"""docs/reproduction.md from a home's database: tables, plots, cards, hours, seeds, versions.

The section between the two marks is written by hand; it is kept when the report is written again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.reproduction import definitions, tables
from benchmarks.reproduction.facts import StudyFacts, across, gather
from benchmarks.reproduction.plots import Line, line_plot
from benchmarks.reproduction.prose import EARLIER, NOTES, OPENING
from benchmarks.reproduction.work import sessions
from search.analysis import expected_best_curve
from search.states import Direction, RunState, Stage
from service.database.queries.plots import Band

BEGIN_READING = "<!-- written by hand from here; the program keeps it -->"
END_READING = "<!-- written by the program from here -->"
NO_READING = "\n*Not written yet.*\n"


def write_report(home: Path, out: Path) -> None:
    """Write the report, and its plots into a folder next to it with the same name."""
    studies = gather(home)
    if not studies:
        raise SystemExit(f"no study in {home} has a finished run yet")
    reading = _reading(out)
    plots = out.with_suffix("")
    plots.mkdir(parents=True, exist_ok=True)
    for old in plots.glob("*.svg"):
        old.unlink()
    parts = [OPENING, "## Reading\n", BEGIN_READING + reading + END_READING + "\n"]
    current = set(definitions.names())
    now = [study for study in studies if study.name in current]
    earlier = [study for study in studies if study.name not in current]
    parts += [_summary(home, now), NOTES]
    parts += [_study(study, plots=plots) for study in now]
    if earlier:
        parts += [EARLIER, _summary(home, earlier, level="###")]
        parts += [_study(study, plots=plots) for study in earlier]
    parts.append(_machines(home, studies))
    out.write_text("\n".join(parts), encoding="utf-8")
    print(f"wrote {out} and {len(list(plots.glob('*.svg')))} plots")


def write_details(home: Path, out: Path) -> None:
    """Write what the report leaves out: each study's spaces, its trials in numbers, and ours against every other."""
    parts = ["# Reproduction: details\n"]
    for study in gather(home):
        parts += [f"## {study.name}\n", tables.held(study), "", tables.trials(study), ""]
        for ours in tables.OURS:
            if told := tables.against(study, ours):
                parts += [told, ""]
    out.write_text("\n".join(parts), encoding="utf-8")
    print(f"wrote {out}")


def _reading(out: Path) -> str:
    found = out.read_text(encoding="utf-8") if out.is_file() else ""
    match = re.search(re.escape(BEGIN_READING) + "(.*?)" + re.escape(END_READING), found, re.DOTALL)
    return NO_READING if match is None else match[1]


def _summary(home: Path, studies: Sequence[StudyFacts], *, level: str = "##") -> str:
    """Ranks, scores and our verdicts over the completed studies that compare all optimizers."""
    compared = [study for study in studies if study.view.state == "COMPLETED" and tables.is_comparison(study)]
    profile = across(home, [study.name for study in compared])
    if profile is None:
        return f"{level} Over the studies\n\nNo study that compares all optimizers has ended yet.\n"
    parts = [
        f"{level} Over the studies\n",
        "Rank by mean validation over the confirm seeds, and the score by value of verdicts.md: the mean share of\n"
        "studies on which an optimizer is at most x standard deviations of a run behind the best, for x from 0 to 4.\n",
        tables.scores(profile, compared),
        f"\n{profile.sentence}\n",
        "What is shown of AdmetaR and AdmetaS on validation, for all pairs of a study together:\n",
        tables.verdicts(compared),
    ]
    return "\n".join([*parts, ""])


def _study(study: StudyFacts, *, plots: Path) -> str:
    task, confirm = study.definition.task, study.definition.confirm
    lines = [f"## {study.name}\n", f"{study.definition.description}\n"]
    facts = [
        f"{task.epochs} epochs, batch {task.batch_size}, schedule {task.schedule.name}",
        f"{study.definition.budget.trials_per_optimizer} trial(s) an optimizer",
        f"confirm seeds {', '.join(map(str, confirm.seeds))}"
        + (f", more until decided, at most {confirm.max_seeds}" if confirm.until else ""),
        f"metric {study.view.metric}",
        f"{len(study.runs)} runs, {study.gpu_s / 60:.1f} card minutes"
        if study.gpu_s
        else f"{len(study.runs)} runs, {study.train_s / 60:.1f} minutes of training on processors",
    ]
    if study.view.state != "COMPLETED":
        facts.append(f"**{study.view.state}: not all of it was run**")
    lines += ["; ".join(facts) + ".\n", tables.results(study), "", *_verdicts(study), *_failures(study)]
    for name, drawing in _drawings(study):
        file = plots / f"{study.name}-{name}.svg"
        file.write_text(drawing, encoding="utf-8")
        lines.append(f"![{study.name}: {name.replace('-', ' ')}]({plots.name}/{file.name})\n")
    return "\n".join(lines)


def _failures(study: StudyFacts) -> Iterator[str]:
    """Runs that failed, by reason, and attempts that were cut off."""
    failed = Counter((run.label, run.stage, run.failure or "?") for run in study.runs if run.state == RunState.FAIL)
    for (label, stage, failure), n in sorted(failed.items()):
        yield f"- {label}: {n} {stage} run(s) failed: {failure}."
    others = Counter(a.state for run in study.runs for a in run.attempts if a.state in ("LOST", "INTERRUPTED"))
    for state, n in sorted(others.items()):
        yield f"- {n} attempt(s) {state}; their runs went on."
    if failed or others:
        yield ""


def _verdicts(study: StudyFacts) -> Iterator[str]:
    if found := tables.matrix(study):
        yield f"{tables.counts(study)} Row against column: + better, − worse, = equivalent, · open.\n"
        yield found
        yield ""
    for edge in study.comparison.edges:
        yield f"- {edge.sentence}"
    if study.comparison.edges:
        yield ""


def _drawings(study: StudyFacts) -> Iterator[tuple[str, str]]:
    curves = study.curves
    lines = [
        Line(label=band.label, x=curves.x, y=band.median, low=band.low, high=band.high)
        for band in _in_order(study, curves.series)
    ]
    ends = [value for line in lines for value in line.y if value is not None]
    yield (
        "learning-curves",
        line_plot(
            lines,
            title=f"{study.name}: median and quartiles over the confirm seeds",
            x_label="epoch",
            y_label=curves.metric,
            y_from=_lowest_of_interest(ends),
        ),
    )
    if study.is_search:
        lines = list(_best_of_n(study))
        yield (
            "best-of-n",
            line_plot(
                lines,
                title=f"{study.name}: expected best of n trials",
                x_label="trials",
                y_label=study.view.metric,
                y_from=_lowest_of_interest([y for line in lines for y in line.y if y is not None]),
            ),
        )


def _in_order(study: StudyFacts, series: Iterable[Band]) -> list[Band]:
    """As in the table, best first."""
    places = {row.label: place for place, row in enumerate(study.comparison.rows)}
    return sorted(series, key=lambda band: places[band.label])


def _lowest_of_interest(values: Sequence[float]) -> float | None:
    """A fifth of the values may lie below the drawing: early epochs would flatten what matters."""
    return sorted(values)[len(values) // 5] if values else None


def _best_of_n(study: StudyFacts) -> Iterator[Line]:
    trials = [run for run in study.runs if run.stage == Stage.SEARCH]
    values = [run.value for run in trials if run.value is not None]
    if not values:
        return
    for row in study.comparison.rows:
        own = [run.value if run.value is not None else min(values) for run in trials if run.label == row.label]
        best = expected_best_curve(own, direction=Direction(study.view.direction))
        yield Line(label=row.label, x=[float(n + 1) for n in range(len(best))], y=list(best))


def _machines(home: Path, studies: Sequence[StudyFacts]) -> str:
    lines = ["## Cards, hours, seeds, versions\n"]
    body = []
    for session in sessions(home):
        cards = Counter(session["cards"])
        begin, end = (datetime.fromisoformat(session[name]) for name in ("started_at", "finished_at"))
        minutes = (end - begin).total_seconds() / 60
        told = ", ".join(f"{n} × {name}" for name, n in cards.items()) or "none"
        body.append([f"{begin:%Y-%m-%d %H:%M} UTC", told, str(session["cpus"]), f"{minutes:.1f}"])
        body[-1] += [f"{minutes * len(session['cards']):.1f}", str(session["commit"] or "not recorded")[:12]]
    if body:
        total = ["all", "", "", f"{sum(float(line[3]) for line in body):.1f}"]
        body.append([*total, f"{sum(float(line[4]) for line in body):.1f}", ""])
        lines += [tables.markdown(["call", "cards", ">cores", ">minutes", ">card minutes", "commit"], body), ""]
    body = []
    for study in studies:
        span = study.span()
        minutes = 0.0 if span is None else (span[1] - span[0]).total_seconds() / 60
        states = Counter(run.state.lower() for run in study.runs)
        body.append([study.name, study.view.state, ", ".join(f"{n} {state}" for state, n in sorted(states.items()))])
        body[-1] += [f"{minutes:.1f}", f"{study.gpu_s / 60:.1f}", f"{study.train_s / 3600:.2f}"]
    header = ["study", "state", "runs", ">minutes from first to last", ">card minutes", ">hours of training, all runs"]
    lines += [tables.markdown(header, body), "", "Seeds: " + _seeds(studies), ""]
    lines += [f"- {line}" for line in _environments(studies)]
    return "\n".join([*lines, ""])


def _seeds(studies: Sequence[StudyFacts]) -> str:
    training = sorted({study.definition.training_seed for study in studies})
    samplers = sorted({study.definition.sampler.seed for study in studies})
    splits = sorted({study.definition.task.split_seed for study in studies})
    return (
        f"search runs {', '.join(map(str, training))}; samplers {', '.join(map(str, samplers))}; validation splits "
        f"{', '.join(map(str, splits))}; confirm runs as named with each study. A seed decides initial weights, order "
        "of batches, augmentation and dropout, and is the same for every optimizer."
    )


def _environments(studies: Sequence[StudyFacts]) -> Iterator[str]:
    """Every different thing that the attempts recorded of where and how they ran, with how many did."""
    found = [environment for study in studies for environment in study.environments]
    for name in ("device_name", "versions", "python", "cuda", "commit", "step", "precision", "sharing"):
        values = Counter(_told(environment.get(name)) for environment in found)
        told = "; ".join(f"{value} ({n} attempts)" for value, n in values.most_common() if value)
        if told:
            yield f"{name.replace('_', ' ')}: {told}"


def _told(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return "" if value is None else str(value)
