"""Answers as text tables, for the command line, the demo and the pages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console

from admeta.client.terminal import FittedTable
from admeta.client.text import head_text

if TYPE_CHECKING:
    from admeta.client.models import (
        AttemptView,
        BestOfNView,
        BestView,
        ClusterView,
        ComparedRowView,
        ComparisonRow,
        ComparisonView,
        ImportanceView,
        OptimizerView,
        PaperCellView,
        PaperStudyView,
        PaperTableCellsView,
        PaperTableView,
        ParetoTrialView,
        ParetoView,
        PointView,
        ProfilesView,
        ProfileTaskView,
        RangeEndView,
        RecommendationView,
        ScaleView,
        SearchView,
        SensitivityCurveView,
        SensitivityView,
        SpeedupView,
        SpreadView,
        StudiesComparisonView,
        StudyRunView,
        StudyView,
        TaskView,
        TokenView,
        TrainedView,
        TrialView,
    )

PIPE_WIDTH = 240
_FIRST = ("lr", "lambd", "beta")
_FEW = 4
_NOTHING = "–"


def console() -> Console:
    """A console on stdout; where that is not a terminal and COLUMNS is not set, wide enough for most tables."""
    plain = Console(highlight=False, markup=False, emoji=False)
    return (
        plain
        if plain.is_terminal or "COLUMNS" in os.environ
        else Console(highlight=False, markup=False, emoji=False, width=PIPE_WIDTH)
    )


def study_list(studies: Iterable[StudyView]) -> FittedTable:
    """One line for each study."""
    table = FittedTable("study", "state", "task", "model", "optimizers", "trials", "age", wrapped=["optimizers"])
    now = datetime.now(UTC)
    for study in studies:
        finished = sum(n_finished(search) for search in study.searches)
        planned = sum(search.n_trials for search in study.searches)
        labels = ", ".join(search.label for search in study.searches)
        age = rough_duration((now - study.created_at).total_seconds())
        table.add_row(study.name, study.state, study.task, study.model or "", labels, f"{finished}/{planned}", age)
    return table


def cluster(view: ClusterView) -> FittedTable:
    """One line for each machine: its CPUs and GPUs, how many of them are free, its runs."""
    table = FittedTable("host", "address", "alive", "CPUs free", "GPUs free", "runs")
    for node in view.nodes:
        runs = [f"{run.study}/{run.label}/{run.trial}" for run in view.runs if run.node == node.address]
        cpus, gpus = f"{node.cpus_free:g}/{node.cpus:g}", f"{node.gpus_free:g}/{node.gpus:g}"
        table.add_row(node.host, node.address, "yes" if node.alive else "no", cpus, gpus, ", ".join(runs))
    return table


def searches(study: StudyView) -> FittedTable:
    """One line for each optimizer's search, with its progress."""
    best = f"best {study.metric}"
    columns = ("optimizer", "stage", "trials", "pruned", "failed", "confirm", best, "with")
    table = FittedTable(*columns, wrapped=[best, "with"])
    for search in study.searches:
        table.add_row(
            search.label,
            search.stage,
            trials_used(search) + (f", {search.n_taken} from earlier studies" if search.n_taken else ""),
            str(search.n_pruned),
            str(search.n_failed),
            f"{search.n_confirm_finished}/{search.n_confirm_runs}",
            number(search.best_value),
            settings(search.best_params),
        )
    return table


def trial_list(trials: Iterable[TrialView], *, metric: str) -> FittedTable:
    """One line for each trial; with how earlier studies gave its settings, where they did."""
    trials = list(trials)
    origin = ["warm start"] if any(trial.taken_from for trial in trials) else []
    columns = "trial", "state", metric, "epochs", "seconds", "error", *origin, "settings"
    table = FittedTable(*columns, wrapped=["error", *origin, "settings"])
    for trial in trials:
        run = trial.runs[0] if trial.runs else None
        error = next((r.error or r.failure for r in trial.runs if r.error or r.failure), None)
        table.add_row(
            f"{trial.label}/{trial.number}",
            trial.state,
            number(trial.value),
            str(run.epoch) if run else "",
            f"{run.train_s:.1f}" if run else "",
            (error or "").split("\n")[0][:60],
            *([sources(trial)] if origin else []),
            settings(trial.params),
        )
    return table


def sources(view: TrainedView) -> str:
    """How earlier studies gave the settings: taken from first/adamw/3, which second/adamw/0 is near."""
    if not view.taken_from:
        return ""
    first, *near = [f"{one.study}/{one.label}/{one.trial}" for one in view.taken_from]
    how = "a step from" if view.taken_from[0].is_step else "taken from"
    return ", near ".join([f"{how} {first}", *([", ".join(near)] if near else [])])


def run_list(runs: Iterable[StudyRunView]) -> FittedTable:
    """One line for each run."""
    table = FittedTable(
        "run", "trial", "stage", "seed", "state", "value", "epoch", "seconds", "attempt", "device", "why"
    )
    for run in runs:
        last = run.attempts[-1] if run.attempts else None
        where = [part for part in (last.node, last.device) if part] if last else []
        table.add_row(
            str(run.id),
            f"{run.label}/{run.trial}",
            run.stage,
            str(run.seed),
            run.state,
            number(run.value),
            str(run.epoch),
            f"{run.train_s:.1f}",
            str(last.attempt) if last else "",
            " ".join(where),
            ": ".join(part for part in (run.failure, (run.error or "").strip().split("\n")[-1][:80]) if part),
        )
    return table


def attempts(views: Iterable[AttemptView]) -> FittedTable:
    """One line for each attempt of a run: where it ran, from which epoch it started, and its outcome."""
    table = FittedTable(
        "attempt", "state", "started", "from epoch", "device", "error", wrapped=["started", "device", "error"]
    )
    for view in views:
        table.add_row(
            str(view.attempt),
            view.state,
            moment(view.started_at),
            "" if view.resumed_from_epoch is None else str(view.resumed_from_epoch),
            " ".join(part for part in (view.node, view.device) if part),
            (view.error or "").strip().split("\n")[-1],
        )
    return table


def curve(points: Iterable[PointView]) -> FittedTable:
    """One line for each evaluation."""
    points = list(points)
    names = list(dict.fromkeys(name for point in points for name in point.metrics))
    table = FittedTable("epoch", "step", *names, "lr")
    for point in points:
        table.add_row(
            str(point.epoch), str(point.step), *(number(point.metrics.get(name)) for name in names), number(point.lr)
        )
    return table


def comparison(view: ComparisonView, *, rows: Sequence[ComparisonRow] | None = None) -> FittedTable:
    """One line for each optimizer, best first; fits 80 columns.

    Args:
        rows: those to show. None: a line an optimizer, its searches together where it has several.
    """
    rows = rows or view.optimizers or view.rows
    test = next((row.test_metric for row in rows if row.test_metric), "test")
    columns = ("optimizer", view.metric, test, "n", "trials", "pruned", "failed", "search epochs", "train (step) s")
    table = FittedTable(*columns, wrapped=["n", "failed", "search epochs", "train (step) s"])
    for row in rows:
        table.add_row(
            row.label,
            reached(row),
            spread(row.test),
            n_runs(row.validation),
            str(row.n_complete + row.n_pruned + row.n_failed),
            str(row.n_pruned),
            f"{row.n_failed}" if not row.n_diverged else f"{row.n_failed}, {row.n_diverged} diverged",
            f"{row.n_epochs}" + (f", {duration(row.search_gpu_s)} of GPU" if row.search_gpu_s else ""),
            f"{row.train_s:.1f} ({row.optimizer_s:.1f})",
        )
    return table


def recipes(view: ComparisonView) -> FittedTable:
    """One line for each search whose best trial has a training recipe of its own."""
    table = FittedTable("optimizer", "recipe of its best trial", wrapped=["recipe of its best trial"])
    for row in view.rows:
        if row.training:
            table.add_row(row.label, settings(row.training))
    return table


def n_runs(validation: SpreadView) -> str:
    """The number of confirm runs, with those that failed: a mean of survivors alone would mislead."""
    n, n_failed = validation.n, validation.n_failed
    return f"{n_failed} of {n + n_failed} failed" if n_failed else str(n or "")


def studies(view: StudiesComparisonView) -> FittedTable:
    """One line for each optimizer, a column for each study: validation, seeds and settings of its best trial."""
    names = [study.name for study in view.studies]
    table = FittedTable("optimizer", *names, wrapped=names)
    for label in dict.fromkeys(row.label for study in view.studies for row in study.rows):
        cells = []
        for study in view.studies:
            row = next((row for row in study.rows if row.label == label and row.trial is not None), None)
            if row is None:
                cells.append(_NOTHING)
                continue
            value = reached(row)
            seeds = f", n={n_runs(row.validation)}" if row.validation.n else ""
            first = " (best)" if label == study.best else ""
            cells.append(f"{value}{seeds}{first}: {settings(row.chosen)}")
        table.add_row(label, *cells)
    return table


def differences(view: StudiesComparisonView) -> FittedTable:
    """One line for each field in which the definitions differ."""
    names = [study.name for study in view.studies]
    table = FittedTable("field", *names, wrapped=names)
    for one in view.differences:
        table.add_row(one.field, *(_NOTHING if value is None else _text(value) for value in one.values))
    return table


def pairs(view: ComparisonView | StudiesComparisonView) -> FittedTable:
    """A line for every two optimizers: what their confirm runs show."""
    table = FittedTable("optimizers", "difference", "p (adjusted)", "verdict", wrapped=["optimizers", "verdict"])
    for pair in view.pairs:
        table.add_row(f"{pair.a} − {pair.b}", number(pair.difference), number(pair.p_adjusted), pair.sentence)
    return table


def best_of_n(view: ComparisonView) -> FittedTable:
    """The median of the best of 1, 2, 4, … trials of each optimizer, and its band for all n together."""
    rows = [row for row in view.optimizers or view.rows if row.best_of_n.median]
    most = max((len(row.best_of_n.median) for row in rows), default=0)
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= most]
    table = FittedTable("best of", *map(str, counts), wrapped=list(map(str, counts)))
    for row in rows:
        table.add_row(row.label, *(_banded(row.best_of_n, n) for n in counts))
    return table


def _banded(found: BestOfNView, n: int) -> str:
    if n > len(found.median):
        return ""
    return f"{number(found.median[n - 1])} ({number(found.low[n - 1])} to {number(found.high[n - 1])})"


def time_to_target(view: ComparisonView) -> FittedTable:
    """When the runs of each optimizer's best trial met the target: the share by each time, with its band."""
    shares = "share of runs by seconds of training"
    table = FittedTable("to target", "met it", shares, wrapped=[shares])
    for row in view.rows:
        if row.target is not None:
            of = row.target.reached
            steps = zip(of.times, of.share, of.low, of.high, strict=True)
            shown = ", ".join(f"{time:.3g} s {share:.0%} ({low:.0%} to {high:.0%})" for time, share, low, high in steps)
            table.add_row(row.label, f"{row.target.n_reached} of {row.target.n}", shown or _NOTHING)
    return table


def profile_scores(view: ProfilesView) -> FittedTable:
    """One line for each optimizer of a comparison across tasks; without the scores that nobody has."""
    scores = {
        "score by time": [one.by_time for one in view.optimizers],
        "score by value": [one.by_value for one in view.optimizers],
    }
    shown = {name: of for name, of in scores.items() if any(of)}
    table = FittedTable("optimizer", *shown, "mean rank", "group", wrapped=[])
    group = group_numbers(view)
    for i, one in enumerate(view.optimizers):
        areas = [_NOTHING if (profile := of[i]) is None else f"{profile.area:.4f}" for of in shown.values()]
        mean = _NOTHING if one.mean_rank is None else f"{one.mean_rank:.2f}"
        table.add_row(one.name, *areas, mean, group.get(one.name, _NOTHING))
    return table


def group_numbers(view: ProfilesView) -> dict[str, str]:
    """By optimizer, the numbers of the groups that it is in; two without a common one are shown to be different."""
    numbers: dict[str, list[str]] = {}
    for n, names in enumerate(view.ranks.groups, start=1):
        for name in names:
            numbers.setdefault(name, []).append(str(n))
    return {name: ", ".join(of) for name, of in numbers.items()}


def profile_tasks(view: ProfilesView) -> FittedTable:
    """One line for each task of a comparison across tasks."""
    table = FittedTable("task", "metric", "target", "studies", "notes", wrapped=("task", "studies", "notes"))
    for task in view.tasks:
        by_time = task.without_time and f"not by time: {task.without_time}"
        by_value = task.without_value and f"not by value: {task.without_value}"
        notes = "; ".join(note for note in (by_time, by_value, task.note) if note)
        metric = task.metric or task.direction
        table.add_row(task_title(task), metric, number(task.target), ", ".join(task.studies), notes)
    return table


def task_title(task: ProfileTaskView) -> str:
    """Task, model, epochs, data and recipe, as far as they are known."""
    parts = [
        task.model,
        None if task.epochs is None else f"{task.epochs} epochs",
        task.data and f"data {task.data}",
        task.init_from and f"from {task.init_from}",
        task.recipe and f"recipe {task.recipe[:8]}",
    ]
    return ", ".join([task.task, *(part for part in parts if part)])


def left_out(view: ProfilesView) -> FittedTable:
    """One line for each reason why a comparison across tasks leaves something out."""
    table = FittedTable("left out", "", "why", wrapped=["", "why"])
    for (kind, reason), names in left_out_by_reason(view).items():
        table.add_row(kind, "; ".join(names), reason)
    return table


def left_out_by_reason(view: ProfilesView) -> dict[tuple[str, str], list[str]]:
    """By kind and reason, the names of what a comparison across tasks leaves out."""
    names: dict[tuple[str, str], list[str]] = {}
    for one in view.left_out:
        names.setdefault((one.kind, one.reason), []).append(one.name)
    return names


def importance(views: Iterable[ImportanceView]) -> FittedTable:
    """One line for each optimizer's search: its parameters, the most important first."""
    table = FittedTable("optimizer", "method", "trials", "share of each parameter")
    for view in views:
        shares = ", ".join(_share(name, share, view.intervals.get(name)) for name, share in view.shares.items())
        table.add_row(view.label, view.method or "", str(view.n_trials), shares or view.reason or "")
    return table


def _share(name: str, share: float, interval: tuple[float, float] | None) -> str:
    """A share with its interval: lr 80% (71 to 84%)."""
    return f"{name} {share:.0%}" + (f" ({100 * interval[0]:.0f} to {interval[1]:.0%})" if interval else "")


def scale(view: ScaleView) -> FittedTable:
    """One line for each optimizer and fitted parameter: its best value at each size, and the predicted one."""
    return _filled(*scale_cells(view))


def scale_cells(view: ScaleView) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of `scale`; a question mark follows the best trial's value where the trials show no minimum."""
    sizes = [f"{view.field} {size:g}" for size in view.values]
    rows = []
    for curve in view.curves:
        for fit in curve.fits:
            best = {one.size: f"{one.value:.3g}{' ?' if one.is_best_trial else ''}" for one in fit.best}
            predicted = _NOTHING if fit.predicted is None else f"{fit.predicted:.3g} ({fit.low:.2g} to {fit.high:.2g})"
            found = _NOTHING
            if curve.sweep is not None and curve.sweep.parameter == fit.parameter:
                found = f"{curve.sweep.best:.3g}{' ?' if curve.sweep.low is None else ''}"
            rows.append(
                [curve.label, fit.parameter, *(best.get(one, _NOTHING) for one in view.values), predicted, found]
            )
    return ["optimizer", "parameter", *sizes, f"predicted at {view.predict:g}", f"found at {view.predict:g}"], rows


def scale_in_words(view: ScaleView) -> list[str]:
    """The lines, what verified them, and the speed-ups of a study's ladder."""
    lines = []
    for curve in view.curves:
        lines += [f"{curve.label}: {fit.sentence}" for fit in curve.fits]
        if curve.sweep is not None:
            lines.append(f"{curve.label}: {curve.sweep.sentence}")
        if curve.speedups:
            each = ", ".join(f"{speedup_in_words(one)} at {one.size:g}" for one in curve.speedups)
            lines.append(f"{curve.label}: to the final {view.metric} of {view.against} in epochs: {each}")
    return lines


def speedup_in_words(one: SpeedupView) -> str:
    """× 1.32 (1.28 to 1.4), or that it was never reached."""
    if one.speedup is None:
        return "never"
    low = "never" if one.low is None else f"{one.low:.2f}"
    return f"× {one.speedup:.2f}" + (f" ({low} to {one.high:.2f})" if one.n > 1 else "")


def sensitivity(view: SensitivityView) -> FittedTable:
    """One line for each search: the range of the parameter in which the result is nearly as good as at its best."""
    table = FittedTable("optimizer", f"chosen {view.parameter}", "from", "to", "factor", "mean loss")
    for curve in view.curves:
        table.add_row(curve.label, *good_range(curve))
    return table


def good_range(curve: SensitivityCurveView) -> list[str]:
    """The chosen value, both ends of its range, the range's width as a factor, and the mean loss over all values."""
    ends = [_range_end(curve.low, "≤ "), _range_end(curve.high, "≥ ")]
    open_ended = any(end is not None and end.is_open for end in (curve.low, curve.high))
    width = _NOTHING if curve.width is None else f"{'≥ ' if open_ended else ''}× {curve.width:.2g}"
    return [number(curve.chosen), *ends, width, number(curve.deviation)]


def _range_end(end: RangeEndView | None, beyond: str) -> str:
    """One end of a range: 0.031, × 0.31."""
    if end is None:
        return _NOTHING
    factor = "" if end.factor is None else f", × {end.factor:.2g}"
    return f"{beyond if end.is_open else ''}{end.at:.2g}{factor}"


def pareto(view: ParetoView) -> FittedTable:
    """One line for each trial on the front of its optimizer."""
    return _filled(*front_rows(view))


def front_of(view: BestView) -> FittedTable:
    """One line for each trial on the front of the best settings' search."""
    table = FittedTable("trial", *(one.metric for one in view.objectives), "front of all", "settings")
    for one in view.front:
        table.add_row(*_on_front(one))
    return table


def front_rows(view: ParetoView) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the trials on each optimizer's front, best metric first."""
    head = ["optimizer", "trial", *(one.metric for one in view.objectives), "front of all", "settings"]
    return head, [[of.label, *_on_front(one)] for of in view.fronts for one in of.trials if one.on_front]


def _on_front(one: ParetoTrialView) -> list[str]:
    values = map(number, one.values)
    return [f"{one.label}/{one.trial}", *values, "yes" if one.leads else "", settings(one.chosen)]


def hypervolumes(view: ParetoView) -> str:
    """The hypervolume of each optimizer's front, and what it is a share of."""
    if view.hypervolume is None:
        return "There is no hypervolume: it needs two complete trials that differ in every objective."
    shares = ", ".join(f"{one.label} {number(one.hypervolume)}" for one in view.fronts)
    corners = [
        ", ".join(f"{of.metric} {number(value)}" for of, value in zip(view.objectives, values, strict=True))
        for values in (view.ideal, view.reference)
    ]
    return (
        f"Hypervolume: {shares}; all together {number(view.hypervolume)}. It is the share of the box between the best "
        f"values of all trials ({corners[0]}) and the reference, the worst ones ({corners[1]}), that a front dominates."
    )


def tolerance(view: SensitivityView) -> str:
    """What the ranges of a sensitivity are, in words."""
    limit = f"{100 * view.within:g} %" if view.margin is None else f"{view.margin:g}"
    return f"{view.parameter} for which {view.metric} is within {limit} of its best, from runs around the chosen value"


def best(views: Iterable[BestView]) -> FittedTable:
    """One line for each optimizer: its best settings."""
    columns = ("optimizer", "validation", "test", "evidence", "from", "settings")
    table = FittedTable(*columns, wrapped=["evidence", "from", "settings"])
    for view in views:
        begun = f", begun from {view.init_from}" if view.init_from else ""
        table.add_row(
            view.optimizer,
            reached(view),
            spread(view.test),
            view.evidence,
            f"{view.study} {view.label}/{view.trial}{begun}",
            settings(view.chosen),
        )
    return table


def candidates(view: RecommendationView) -> FittedTable:
    """One line for each optimizer that a recommendation was chosen from, the recommended one first."""
    from admeta.client.models import chance

    columns = ("optimizer", "validation", "probability", "difference", "evidence", "from", "settings")
    table = FittedTable(*columns, wrapped=["evidence", "from", "settings"])
    for one in view.candidates:
        interval = "" if one.low is None else f" ({number(one.low)} to {number(one.high)})"
        table.add_row(
            one.optimizer,
            _NOTHING if one.validation is None else spread(one.validation),
            _NOTHING if one.probability is None else chance(one.probability),
            _NOTHING if one.difference is None else f"{one.difference:+.4g}{interval}",
            one.evidence,
            one.study or _NOTHING,
            settings(one.settings),
        )
    return table


def task_list(tasks: Iterable[TaskView]) -> FittedTable:
    """One line for each task."""
    table = FittedTable("task", "models", "metrics", "what it is", wrapped=["models", "metrics", "what it is"])
    for task in tasks:
        metrics = ", ".join(f"{name} ({direction})" for name, direction in task.metrics.items())
        models = ", ".join(task.models[:_FEW])
        more = f" and {len(task.models) - _FEW} more" if len(task.models) > _FEW else ""
        table.add_row(task.name, models + more, metrics, task.description)
    return table


def task_settings(task: TaskView) -> FittedTable:
    """One line for each setting: the fields of a study's `task`."""
    table = FittedTable("setting", "default", "what it is", wrapped=["default", "what it is"])
    models = f"one of {', '.join(task.models)}"
    for name, field in task.config_schema.get("properties", {}).items():
        what = field.get("description") or (models if name == "model" else "")
        table.add_row(name, _text(field.get("default")), what)
    return table


def optimizer_list(optimizers: Iterable[OptimizerView]) -> FittedTable:
    """One line for each optimizer."""
    texts = ("searched by default", "fixed by default", "what it is")
    table = FittedTable("optimizer", *texts, wrapped=texts)
    for optimizer in optimizers:
        space = ", ".join(searched_in(name, parameter) for name, parameter in optimizer.default_space.items())
        table.add_row(optimizer.name, space, settings(optimizer.fixed), optimizer.description)
    return table


def parameters(optimizer: OptimizerView) -> FittedTable:
    """One line for each parameter of one optimizer."""
    table = FittedTable("parameter", "default", "default space", "rule", "what it is", wrapped=["rule", "what it is"])
    for parameter in optimizer.parameters:
        space = optimizer.default_space.get(parameter.name)
        searched = searched_in("", space) if space else ""
        table.add_row(parameter.name, _text(parameter.default), searched, parameter.rule, parameter.doc)
    for name, doc in optimizer.derived.items():
        table.add_row(name, "", "", "for `when` only", doc)
    return table


def token_list(tokens: Iterable[TokenView]) -> FittedTable:
    """One line for each token."""
    table = FittedTable("id", "name", "scope", "begins with", "valid", "created", "expires", "last used")
    for token in tokens:
        works = "yes" if token.active else "revoked" if token.revoked_at else "expired"
        times = (token.created_at, token.expires_at, token.last_used_at)
        shown = ["" if time is None else moment(time) for time in times]
        table.add_row(token.id, token.name, token.scope, token.prefix, works, *shown)
    return table


def paper_table_list(views: Iterable[PaperTableView]) -> FittedTable:
    """A line for each table of the paper."""
    table = FittedTable("table", "no.", "numbers", "ours", "caption", "studies", wrapped=["caption", "studies"])
    for view in views:
        counts = (str(view.number), str(view.n_cells), str(view.n_ours))
        table.add_row(view.name, *counts, view.caption, ", ".join(view.studies))
    return table


def paper_cells(view: PaperTableCellsView) -> FittedTable:
    """A table of the paper in its rows and columns; a cell is the paper's number / ours."""
    (_, *heads), rows = paper_rows(view)
    return _filled(["paper / ours", *heads], rows, wrapped=heads)


def paper_rows(view: PaperTableCellsView) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of a table of the paper; in percent where the paper's is, ours with its n."""
    rows = [[head_text(head), *map(_cell, cells)] for head, cells in zip(view.rows, view.cells, strict=True)]
    return ["", *map(head_text, view.columns)], rows


def paper_study_list(studies: Iterable[PaperStudyView]) -> FittedTable:
    """One line for each study."""
    table = FittedTable("study", "table", "task", "model", "runs", "optimizers")
    for study in studies:
        optimizers = ", ".join(study.optimizers)
        table.add_row(study.name, study.table, study.task, study.model, str(study.n_runs), optimizers)
    return table


def paper_study(view: PaperStudyView) -> FittedTable:
    """One study of the paper, one line for each property."""
    table = FittedTable("", view.name)
    facts = {
        "submitted as": view.study,
        "table": view.table,
        "task": f"{view.task}, {view.model}",
        "optimizers": ", ".join(view.optimizers),
        "runs": str(view.n_runs),
        "after": view.after or "",
        "notes": view.notes,
    }
    for name, text in facts.items():
        if text:
            table.add_row(name, text)
    return table


def n_finished(search: SearchView) -> int:
    """Trials of the search stage that have ended, in whatever way."""
    return search.n_complete + search.n_pruned + search.n_failed


def trials_used(search: SearchView) -> str:
    """Trials that have ended of those planned, 12/20; of a budget that counts their cost: 12 trials, 90/400 epochs."""
    spent = []
    if search.max_epochs is not None:
        spent.append(f"{search.n_epochs}/{search.max_epochs} epochs")
    if search.max_gpu_hours is not None:
        spent.append(f"{search.gpu_hours:.3g}/{search.max_gpu_hours:g} GPU hours")
    n = n_finished(search)
    return ", ".join([f"{n} trials", *spent]) if spent else f"{n}/{search.n_trials}"


def all_failed(study: StudyView) -> list[str]:
    """Labels of the searches whose finished trials all failed: they have no result."""
    return [search.label for search in study.searches if search.n_failed and search.n_failed == n_finished(search)]


def number(value: float | None) -> str:
    """Four significant digits; a dash where there is none."""
    return _NOTHING if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 1:02:03, or 2:03."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rough_duration(seconds: float) -> str:
    """Seconds in the largest unit of which there is at least one: 40 s, 12 min, 3 h, 5 d."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def moment(time: datetime) -> str:
    """A time in this machine's time zone, to the minute."""
    return f"{time.astimezone():%Y-%m-%d %H:%M}"


def spread(view: SpreadView) -> str:
    """Mean ± standard deviation."""
    if view.mean is None:
        return _NOTHING
    return number(view.mean) if view.std is None else f"{view.mean:.4f} ± {view.std:.4f}"


def reached(view: BestView | ComparisonRow | ComparedRowView) -> str:
    """What confirm runs reached on the validation data; where there are none, the search's own run."""
    return number(view.search_value) if view.validation.mean is None else spread(view.validation)


def settings(values: Mapping[str, Any] | None) -> str:
    """Parameters on one line, the most important first: lr=0.01 lambd=0.1 betas=[0.9, 0.999]."""
    known = values or {}
    order = [name for name in _FIRST if name in known] + [name for name in known if name not in _FIRST]
    return " ".join(f"{name}={_text(known[name])}" for name in order)


def searched_in(name: str, parameter: Mapping[str, Any]) -> str:
    """A parameter with the values that a search takes: lr [0.0001, 0.1] log."""
    prefix = f"{name} " if name else ""
    if "choices" in parameter:
        return prefix + "{" + ", ".join(_text(choice) for choice in parameter["choices"]) + "}"
    scale = " log" if parameter.get("log") else ""
    return f"{prefix}[{_text(parameter['low'])}, {_text(parameter['high'])}]{scale}"


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _filled(head: Sequence[str], rows: Iterable[Sequence[str]], *, wrapped: Sequence[str] | None = None) -> FittedTable:
    table = FittedTable(*head, wrapped=wrapped)
    for row in rows:
        table.add_row(*row)
    return table


def _cell(cell: PaperCellView) -> str:
    paper = _NOTHING if cell.paper is None else cell.paper.text
    return f"{paper} / {_NOTHING if cell.ours is None else cell.ours.text}"
