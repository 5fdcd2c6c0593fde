"""Plots of answers: what is drawn where matplotlib is installed, and the error where it is not."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

from admeta.client.models import (
    ComparisonView,
    ObjectiveView,
    ParetoFrontView,
    ParetoTrialView,
    ParetoView,
    PointView,
    SensitivityCurveView,
    SensitivityPointView,
    SensitivityView,
    TrialView,
)
from admeta.client.plots import plot_curve

POINTS = [
    PointView(epoch=epoch, step=10 * epoch, value=value, metrics={"val_loss": loss}, lr=0.1)
    for epoch, value, loss in ((1, 0.5, 1.0), (2, None, None), (3, 0.75, 0.5))
]


class Axes:
    """Records what is drawn."""

    def __init__(self) -> None:
        self.drawn: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self.drawn.append((name, args, options))


def trial(curve: list[PointView] | None) -> TrialView:
    return TrialView(
        number=3,
        label="sgdm",
        optimizer="sgdm",
        state="COMPLETE",
        value=0.75,
        params={},
        settings={},
        runs=[],
        curve=curve,
    )


def test_a_curve() -> None:
    ax = Axes()
    assert trial(POINTS).plot(ax) is ax
    name, (epochs, values), options = ax.drawn[0]
    assert (name, epochs, options) == ("plot", [1, 2, 3], {"label": "sgdm/3"})
    assert (values[0], math.isnan(values[1]), values[2]) == (0.5, True, 0.75)
    loss = Axes()
    plot_curve(POINTS, loss, metric="val_loss")
    assert loss.drawn[0][1][1][2] == 0.5
    assert ("set_ylabel", ("val_loss",), {}) in loss.drawn


def test_what_cannot_be_drawn_is_told() -> None:
    with pytest.raises(ValueError, match="metric = 'loss'; the points have val_loss"):
        plot_curve(POINTS, Axes(), metric="loss")
    with pytest.raises(ValueError, match=r"read it with client\.trial"):
        trial(None).plot(Axes())


def test_a_comparison() -> None:
    nothing = {"mean": None, "std": None, "n": 0, "n_failed": 0}
    rate = {"count": 0, "n": 0, "rate": None, "low": None, "high": None}
    row = {
        "optimizer": "sgdm", "trial": 0, "settings": {}, "test": nothing, "test_metric": None, "n_trials": 1,
        "n_complete": 1, "n_pruned": 0, "n_failed": 0, "n_diverged": 0, "divergence": rate, "target": None,
        "expected_best": [], "best_of_n": {"median": [], "low": [], "high": []}, "train_s": 1, "gpu_s": 0,
        "optimizer_s": 0,
    }  # fmt: skip
    view = ComparisonView.model_validate(
        {
            "study": "s", "task": "digits", "metric": "val_accuracy", "direction": "maximize", "complete": True,
            "pairs": [],
            "rows": [
                {**row, "label": "a", "rank": 1, "search_value": 0.9,
                 "validation": {"mean": 0.95, "std": 0.01, "n": 3, "n_failed": 0}},
                {**row, "label": "b", "rank": 2, "search_value": 0.8, "validation": nothing},
                {**row, "label": "c", "rank": None, "search_value": None, "validation": nothing},
            ],
        }
    )  # fmt: skip
    ax = Axes()
    assert view.plot(ax) is ax
    marks = [(args, options["xerr"], options["mfc"]) for name, args, options in ax.drawn if name == "errorbar"]
    assert marks == [((0.8, 0), None, "none"), ((0.95, 1), 0.01, None)]
    assert ("set_yticks", (range(2), ["b", "a"]), {}) in ax.drawn


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot_curve(POINTS)


def sensitivity() -> SensitivityView:
    """Three values of lr; the largest diverged."""
    points = [
        SensitivityPointView(value=value, mean=mean, std=std, n=2, n_diverged=mean is None)
        for value, mean, std in ((0.1, 0.5, 0.02), (1.0, 0.4, 0.01), (10.0, None, None))
    ]
    numbers = dict.fromkeys(("best", "best_at", "tolerance", "low", "high", "width", "deviation", "reason", "note"))
    one = SensitivityCurveView(
        label="sgdm", optimizer="sgdm", trial=0, chosen=1.0, log=True, points=points, sentence="", **numbers
    )
    return SensitivityView(
        study="s", metric="val_loss", direction="minimize", parameter="lr", within=0.01, margin=None, std=0.01,
        complete=True, curves=[one],
    )  # fmt: skip


def test_a_pareto_front() -> None:
    """The front as steps from the cheapest trial on, the dominated ones faint."""
    trials = [
        ParetoTrialView(label="a", trial=i, values=values, on_front=on, leads=on, settings=None)
        for i, (values, on) in enumerate([([0.9, 3.0], True), ([0.8, 2.0], True), ([0.7, 2.5], False)])
    ]
    view = ParetoView(
        study="s", searched=True, complete=True, ideal=[0.9, 2.0], reference=[0.7, 3.0], hypervolume=0.5,
        objectives=[ObjectiveView(metric=name, direction="") for name in ("f1", "train_s")],
        fronts=[ParetoFrontView(label="a", optimizer="a", hypervolume=0.5, trials=trials)],
    )  # fmt: skip
    ax = Axes()
    assert view.plot(ax) is ax
    drawn = {(name, *map(str, args)): options for name, args, options in ax.drawn}
    assert drawn["plot", "[2.5]", "[0.7]", "o"]["alpha"] < 0.5
    assert drawn["step", "[2.0, 3.0]", "[0.8, 0.9]", "o-"]["where"] == "post"
    assert ("set_xlabel", "train_s") in drawn


def test_a_sensitivity() -> None:
    ax = Axes()
    assert sensitivity().plot(ax) is ax
    drawn = {(name, *map(str, args)): options for name, args, options in ax.drawn}
    assert drawn["errorbar", "[0.1, 1.0]", "[0.5, 0.4]"]["yerr"] == [0.02, 0.01]
    assert ("plot", "[10.0]", "[0.5]", "x") in drawn  # diverged: at the worst result
    assert drawn["plot", "[1.0]", "[0.4]", "o"]["markersize"] == 10
    assert ("set_xscale", "log") in drawn


def test_matplotlib_draws_it() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    ax = trial(POINTS).plot()
    assert list(ax.lines[0].get_xdata()) == [1, 2, 3]
