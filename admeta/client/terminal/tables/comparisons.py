"""Tables of comparisons: the optimizers of one study, or of several studies side by side, and what is significant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from admeta.client.formatting import NOTHING, duration, n_runs, number, reached, setting, settings, spread
from admeta.client.terminal import FittedTable

if TYPE_CHECKING:
    from admeta.client.models import (
        BestOfNView,
        ComparisonRow,
        ComparisonView,
        StudiesComparisonView,
    )


def optimizers(view: ComparisonView, *, rows: Sequence[ComparisonRow] | None = None) -> FittedTable:
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
            table.add_row(row.label, f"{row.target.n_reached} of {row.target.n}", shown or NOTHING)
    return table


def studies(view: StudiesComparisonView) -> FittedTable:
    """One line for each optimizer, a column for each study: validation, seeds and settings of its best trial."""
    names = [study.name for study in view.studies]
    table = FittedTable("optimizer", *names, wrapped=names)
    for label in dict.fromkeys(row.label for study in view.studies for row in study.rows):
        cells = []
        for study in view.studies:
            row = next((row for row in study.rows if row.label == label and row.trial is not None), None)
            if row is None:
                cells.append(NOTHING)
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
        table.add_row(one.field, *(NOTHING if value is None else setting(value) for value in one.values))
    return table
