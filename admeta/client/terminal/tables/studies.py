"""Tables of studies and of one study's searches, trials, runs, attempts and learning curves."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from admeta.client.formatting import moment, number, rough_duration, settings, sources
from admeta.client.terminal import FittedTable

if TYPE_CHECKING:
    from admeta.client.models import (
        AttemptView,
        PointView,
        SearchView,
        StudyRunView,
        StudyView,
        TrialView,
    )


def study_list(studies: Iterable[StudyView]) -> FittedTable:
    """One line for each study."""
    table = FittedTable("study", "state", "task", "model", "optimizers", "trials", "age", wrapped=["optimizers"])
    now = datetime.now(UTC)
    for study in studies:
        finished = sum(search.n_finished for search in study.searches)
        planned = sum(search.n_trials for search in study.searches)
        labels = ", ".join(search.label for search in study.searches)
        age = rough_duration((now - study.created_at).total_seconds())
        table.add_row(study.name, study.state, study.task, study.model or "", labels, f"{finished}/{planned}", age)
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


def run_list(runs: Iterable[StudyRunView]) -> FittedTable:
    """One line for each run."""
    table = FittedTable(
        "run", "trial", "stage", "seed", "state", "value", "epoch", "seconds", "attempt", "device", "why"
    )
    for run in runs:
        last = run.attempts[-1] if run.attempts else None
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
            _place(last) if last else "",
            ": ".join(part for part in (run.failure, _last_line(run.error)[:80]) if part),
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
            _place(view),
            _last_line(view.error),
        )
    return table


def _place(attempt: AttemptView) -> str:
    return " ".join(part for part in (attempt.node, attempt.device) if part)


def _last_line(error: str | None) -> str:
    return (error or "").strip().split("\n")[-1]


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


def trials_used(search: SearchView) -> str:
    """Trials that have ended of those planned, 12/20; of a budget that counts their cost: 12 trials, 90/400 epochs."""
    spent = []
    if search.max_epochs is not None:
        spent.append(f"{search.n_epochs}/{search.max_epochs} epochs")
    if search.max_gpu_hours is not None:
        spent.append(f"{search.gpu_hours:.3g}/{search.max_gpu_hours:g} GPU hours")
    n = search.n_finished
    return ", ".join([f"{n} trials", *spent]) if spent else f"{n}/{search.n_trials}"


def all_failed(study: StudyView) -> list[str]:
    """Labels of the searches whose finished trials all failed: they have no result."""
    return [search.label for search in study.searches if search.n_failed and search.n_failed == search.n_finished]
