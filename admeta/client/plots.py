"""Answers as matplotlib figures, for notebooks. matplotlib is imported on first use; it is no requirement."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from admeta.client.models import ComparisonView, ParetoView, PointView, SensitivityView, TrialView


def plot_comparison(view: ComparisonView, ax: Any = None) -> Any:
    """Each optimizer's validation, best at the top: the mean with one standard deviation to either side.

    An optimizer without confirm runs is a hollow mark at the value of its search.

    Args:
        ax: matplotlib's Axes to draw on; None: new ones.

    Returns:
        The Axes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ax = _axes(ax)
    rows = [row for row in view.rows if row.rank is not None][::-1]
    for place, row in enumerate(rows):
        mean, std = row.validation.mean, row.validation.std
        filled = None if mean is not None else "none"
        ax.errorbar(row.search_value if mean is None else mean, place, xerr=std, fmt="o", capsize=4, mfc=filled)
    ax.set_yticks(range(len(rows)), [row.label for row in rows])
    ax.set_xlabel(view.metric)
    ax.set_title(view.study)
    return ax


def plot_sensitivity(view: SensitivityView, ax: Any = None) -> Any:
    """Each optimizer's result over the parameter: the mean, with one standard deviation where there are several seeds.

    The chosen value is a large mark, and a value at which a run diverged a cross at the worst result.

    Args, returns, raises: as for `plot_comparison`.
    """
    ax = _axes(ax)
    means = [point.mean for curve in view.curves for point in curve.points if point.mean is not None]
    worst = (min if view.direction == "maximize" else max)(means, default=0.0)
    for i, curve in enumerate(view.curves):
        color, there = f"C{i % 10}", [point for point in curve.points if point.mean is not None]
        x, y, std = ([getattr(point, name) for point in there] for name in ("value", "mean", "std"))
        ax.errorbar(x, y, yerr=[one or 0.0 for one in std], fmt="o-", capsize=3, color=color, label=curve.label)
        lost = [point.value for point in curve.points if point.mean is None]
        ax.plot(lost, [worst] * len(lost), "x", color=color)
        chosen = [point for point in there if point.value == curve.chosen]
        ax.plot([one.value for one in chosen], [one.mean for one in chosen], "o", color=color, markersize=10)
    if all(curve.log for curve in view.curves):
        ax.set_xscale("log")
    ax.set_xlabel(view.parameter)
    ax.set_ylabel(view.metric)
    ax.set_title(view.study)
    ax.legend()
    return ax


def plot_pareto(view: ParetoView, ax: Any = None) -> Any:
    """The complete trials by the metric against the second objective: each optimizer's front as a line, others faint.

    Args, returns, raises: as for `plot_comparison`.
    """
    ax = _axes(ax)
    for i, one in enumerate(view.fronts):
        color = f"C{i % 10}"
        front = sorted(trial.values[1::-1] for trial in one.trials if trial.on_front)
        others = [trial.values[1::-1] for trial in one.trials if not trial.on_front]
        ax.plot([x for x, _ in others], [y for _, y in others], "o", color=color, alpha=0.25)
        ax.step([x for x, _ in front], [y for _, y in front], "o-", where="post", color=color, label=one.label)
    ax.set_xlabel(view.objectives[1].metric)
    ax.set_ylabel(view.objectives[0].metric)
    ax.set_title(view.study)
    ax.legend()
    return ax


def plot_curve(
    points: Sequence[PointView], ax: Any = None, *, metric: str | None = None, label: str | None = None
) -> Any:
    """The evaluations of a run by epoch, as `client.curve(run)` gives them.

    Args:
        ax: as for `plot_comparison`.
        metric: a name of the points' metrics; None: the objective.
        label: the line's name in a legend.

    Returns:
        The Axes.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no point has the metric.
    """
    names = sorted({name for point in points for name in point.metrics})
    if metric is not None and metric not in names:
        raise ValueError(f"metric = {metric!r}; the points have {', '.join(names) or 'none'}.")
    ax = _axes(ax)
    ys = [point.value if metric is None else point.metrics.get(metric) for point in points]
    ax.plot([point.epoch for point in points], [float("nan") if y is None else y for y in ys], label=label)
    ax.set_xlabel("epoch")
    ax.set_ylabel(metric or "objective")
    return ax


def plot_trial(trial: TrialView, ax: Any = None, *, metric: str | None = None) -> Any:
    """The curve of a trial's search run; of `client.trial(…)`, since lists of trials have no curves.

    Returns, raises: as `plot_curve`; ValueError, too, for a trial without a curve.
    """
    name = f"{trial.label}/{trial.number}"
    if trial.curve is None:
        raise ValueError(f"trial {name} came without its curve; read it with client.trial(study, label, number).")
    return plot_curve(trial.curve, ax, metric=metric, label=name)


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        raise ImportError(f"plots need matplotlib ({error}). Install it: pip install matplotlib") from error
    return pyplot.subplots()[1]
