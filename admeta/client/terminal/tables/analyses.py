"""Tables of what is computed from one study: importance, scale, sensitivity and Pareto fronts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from admeta.client.formatting import NOTHING, number, settings
from admeta.client.terminal import FittedTable

if TYPE_CHECKING:
    from admeta.client.models import (
        BestView,
        ImportanceView,
        ParetoTrialView,
        ParetoView,
        RangeEndView,
        ScaleView,
        SensitivityCurveView,
        SensitivityView,
        SpeedupView,
    )


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
    head, rows = scale_rows(view)
    return FittedTable(*head, rows=rows)


def scale_rows(view: ScaleView) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of `scale`; a question mark follows the best trial's value where the trials show no minimum."""
    sizes = [f"{view.field} {size:g}" for size in view.values]
    rows = []
    for curve in view.curves:
        for fit in curve.fits:
            best = {one.size: f"{one.value:.3g}{' ?' if one.is_best_trial else ''}" for one in fit.best}
            predicted = NOTHING if fit.predicted is None else f"{fit.predicted:.3g} ({fit.low:.2g} to {fit.high:.2g})"
            found = NOTHING
            if curve.sweep is not None and curve.sweep.parameter == fit.parameter:
                found = f"{curve.sweep.best:.3g}{' ?' if curve.sweep.low is None else ''}"
            rows.append(
                [curve.label, fit.parameter, *(best.get(one, NOTHING) for one in view.values), predicted, found]
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
    head, rows = sensitivity_rows(view)
    return FittedTable(*head, rows=rows)


def sensitivity_rows(view: SensitivityView) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of `sensitivity`."""
    head = ["optimizer", f"chosen {view.parameter}", "from", "to", "factor", "mean loss"]
    return head, [[curve.label, *good_range(curve)] for curve in view.curves]


def good_range(curve: SensitivityCurveView) -> list[str]:
    """The chosen value, both ends of its range, the range's width as a factor, and the mean loss over all values."""
    ends = [_range_end(curve.low, "≤ "), _range_end(curve.high, "≥ ")]
    open_ended = any(end is not None and end.is_open for end in (curve.low, curve.high))
    width = NOTHING if curve.width is None else f"{'≥ ' if open_ended else ''}× {curve.width:.2g}"
    return [number(curve.chosen), *ends, width, number(curve.deviation)]


def _range_end(end: RangeEndView | None, beyond: str) -> str:
    """One end of a range: 0.031, × 0.31."""
    if end is None:
        return NOTHING
    factor = "" if end.factor is None else f", × {end.factor:.2g}"
    return f"{beyond if end.is_open else ''}{end.at:.2g}{factor}"


def tolerance(view: SensitivityView) -> str:
    """What the ranges of a sensitivity are, in words."""
    limit = f"{100 * view.within:g} %" if view.margin is None else f"{view.margin:g}"
    return f"{view.parameter} for which {view.metric} is within {limit} of its best, from runs around the chosen value"


def pareto(view: ParetoView) -> FittedTable:
    """One line for each trial on the front of its optimizer."""
    head, rows = front_rows(view)
    return FittedTable(*head, rows=rows)


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
