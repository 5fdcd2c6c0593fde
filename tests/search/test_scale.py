"""Ladders of sizes: what a definition accepts, what is predicted, and the trials that verify it after any restart."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from search.advice import warnings_for
from search.assignment import Assignment
from search.definition import StudyDefinition
from search.prediction import LEAST_SCATTER, Optimum, fit_line, fits_of, optima, results_of, sweep_of
from search.states import RunState, Stage
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for

WIDTHS = [32, 64, 128]


def define(**changes: Any) -> StudyDefinition:
    """A ladder of gpt's width; nothing is trained in these tests."""
    base: dict[str, Any] = {
        "name": "ladder",
        "task": {"name": "gpt", "model": "micro", "epochs": 2},
        "optimizers": [{"name": "adamw", "space": {"lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}}}],
        "sampler": {"name": "qmc", "seed": 0},
        "pruner": {"name": "none"},
        "budget": {"trials_per_optimizer": 8},
        "confirm": {"top_k": 0},
        "scale": {"field": "width", "values": WIDTHS, "predict": 256, "verify": 5},
    }
    return StudyDefinition.model_validate({**base, **changes})


def best_lr(width: float) -> float:
    return float(0.01 * (width / 64) ** -0.5)


def loss(assignment: Assignment, epoch: int) -> float:
    """Least where lr follows a power of the width; smaller in wider models."""
    width = assignment.task["width"]
    away = math.log(assignment.settings["lr"] / best_lr(width))
    return 3 - 0.1 * math.log(width) - 0.1 * epoch + 0.02 * away**2 + (0.005 * away**3 if away > 0 else 0.0)


def test_every_size_is_a_search_of_its_own() -> None:
    definition = define()
    planned = definition.planned_searches()
    assert [one.optimizer.label for one in planned] == [f"adamw.width{width}" for width in (*WIDTHS, 256)]
    assert [one.of for one in planned] == ["adamw"] * 4
    assert [one.optimizer.fixed["recipe.width"] for one in planned] == [32, 64, 128, 256]
    assert [definition.n_trials_of(one.optimizer) for one in planned] == [8, 8, 8, 5]
    assert definition.n_runs == 29
    assert StudyDefinition.model_validate(definition.to_json()) == definition


def test_the_prediction_is_verified_and_its_settings_are_near_the_best() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    cluster = Cluster(coordinator_for(store, study, slots=3), loss)
    cluster.run()
    labels = [assignment.label for assignment in cluster.started]
    assert Counter(labels) == {**{f"adamw.width{width}": 8 for width in WIDTHS}, "adamw.width256": 5}
    assert set(labels[-5:]) == {"adamw.width256"}  # after all that it follows from
    verified = [one for one in cluster.started if one.label == "adamw.width256"]
    assert all(one.task["width"] == 256 for one in verified)
    predicted, *around = [one.settings["lr"] for one in verified]
    assert predicted == pytest.approx(best_lr(256), rel=0.1)
    assert [lr / predicted for lr in around] == pytest.approx([0.5, 2, 0.25, 4], rel=1e-3)


@pytest.mark.parametrize("kill_after", range(1, 26, 3))
def test_a_new_driver_verifies_the_same_prediction(kill_after: int) -> None:
    store = MemoryStore()
    study = store.add_study(define(confirm={"top_k": 1, "seeds": [0]}))
    first = Cluster(coordinator_for(store, study, slots=3), loss)
    for number in first.rounds():
        if number == kill_after:
            break
    second = Cluster(coordinator_for(store, study, owner="second", slots=3), loss)
    second.run()
    runs = store.runs(study.id)
    assert Counter(run.stage for run in runs) == {Stage.SEARCH: 29, Stage.CONFIRM: 4}
    assert all(run.state is RunState.COMPLETE for run in runs)
    last = store.searches(study.id)[-1]
    lrs = sorted(run.params["lr"] for run in runs if run.search_id == last.id and run.stage is Stage.SEARCH)
    assert [lr / lrs[2] for lr in lrs] == pytest.approx([0.25, 0.5, 1, 2, 4], rel=1e-3)


def test_without_results_at_three_sizes_nothing_is_predicted() -> None:
    store = MemoryStore()
    study = store.add_study(define())

    def failing(assignment: Assignment, epoch: int) -> float | None:
        return None if assignment.task["width"] == 64 else loss(assignment, epoch)

    coordinator = coordinator_for(store, study, slots=3)
    Cluster(coordinator, failing).run()
    last = store.searches(study.id)[-1]
    assert not [run for run in store.runs(study.id) if run.search_id == last.id]
    assert "adamw.width256: fewer than 3 sizes have a complete trial" in (coordinator.completion_reason() or "")


def test_a_prediction_that_may_be_anywhere_is_not_verified() -> None:
    store = MemoryStore()
    study = store.add_study(define())
    coordinator = coordinator_for(store, study, slots=3)
    cluster = Cluster(coordinator, lambda assignment, epoch: -assignment.settings["lr"])  # best at the end of the range
    cluster.run()
    assert "adamw.width256" not in {one.label for one in cluster.started}
    assert "is wider than the range that was searched" in (coordinator.completion_reason() or "")


@pytest.mark.parametrize("kill_after", [None, 2, 4, 6, 8])
def test_what_an_extended_ladder_predicts_is_verified_too(kill_after: int | None) -> None:
    store = MemoryStore()
    study = store.add_study(define())
    Cluster(coordinator_for(store, study, slots=3), loss).run()
    n_before = len(store.runs(study.id))
    study = store.extend(study.id, define(budget={"trials_per_optimizer": 12}))
    again = Cluster(coordinator_for(store, study, owner="second", slots=3), loss)
    for number in again.rounds():
        if number == kill_after:
            break
    if kill_after is not None:
        Cluster(coordinator_for(store, study, owner="third", slots=3), loss).run()
    last = store.searches(study.id)[-1]
    runs = store.runs(study.id)
    assert len(runs) == n_before + 3 * 4 + 5
    lrs = [run.params["lr"] for run in runs if run.search_id == last.id]
    assert [lr / lrs[5] for lr in lrs[5:]] == pytest.approx([1, 0.5, 2, 0.25, 4], rel=1e-3)
    scale = define().scale
    assert scale is not None
    optimizer = study.definition.optimizers[0]
    results = {size: results_of([run for run in runs if run.search_id == search.id])
               for size, search in zip(scale.sizes, store.searches(study.id), strict=True)}  # fmt: skip
    sweep = sweep_of(optimizer, scale, results, study.definition.objective.direction)
    assert sweep is not None
    assert sweep.predicted == lrs[5]


def test_trials_that_verify_are_not_stopped_early() -> None:
    store = MemoryStore()
    study = store.add_study(
        define(pruner={"name": "asha", "min_epochs": 1, "reduction_factor": 2}, budget={"trials_per_optimizer": 24})
    )
    Cluster(coordinator_for(store, study, slots=1), loss).run()
    last = store.searches(study.id)[-1]
    assert [run.state for run in store.runs(study.id) if run.search_id == last.id] == [RunState.COMPLETE] * 5


@pytest.mark.parametrize(
    ("changes", "at", "words"),
    [
        ({"scale": {"field": "breadth", "values": WIDTHS, "predict": 256}}, "scale.field", "is not a field of task"),
        ({"scale": {"field": "epochs", "values": WIDTHS, "predict": 256}}, "scale.field", "the same for all trials"),
        ({"scale": {"field": "width", "values": [32, 64], "predict": 256}}, "scale.values", "needs 3 or more"),
        ({"scale": {"field": "width", "values": [32, 64, 64], "predict": 256}}, "scale.values", "not all different"),
        ({"scale": {"field": "width", "values": [32, 64, 96], "predict": 64}}, "scale.predict", "is among 'values'"),
        ({"scale": {"field": "width", "values": [32, 64, 100], "predict": 256}}, "scale.values.2", "no multiple of 32"),
        ({"scale": {"field": "width", "values": WIDTHS, "predict": 256, "verify": 4}}, "scale.verify", "must be odd"),
        (
            {"scale": {"field": "width", "values": WIDTHS, "predict": 10**400}},
            "scale.predict.constrained-int",
            "less than or equal",
        ),
        ({"searches": 2}, "scale", "cannot be combined with 'searches'"),
        ({"baseline": "defaults"}, "scale", "cannot be combined with 'baseline'"),
        ({"optimizers": [{"name": "adamw", "fixed": {"recipe.width": 64}}]}, "optimizers.0", "sets width for itself"),
        (
            {
                "optimizers": [
                    {"name": "adamw", "space": {"amsgrad": {"type": "categorical", "choices": [True, False]}}}
                ]
            },
            "optimizers.0.space",
            "no parameter that is a real number",
        ),
        (
            {"task": {"name": "gpt", "model": "micro", "parametrization": "mup"}, "optimizers": ["soap"]},
            "optimizers.0.name",
            "soap has no known rule",
        ),
    ],
)
def test_what_cannot_be_a_ladder_is_refused(changes: dict[str, Any], at: str, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        define(**changes)
    found = {".".join(map(str, one["loc"])): one["msg"] for one in refused.value.errors()}
    assert at in found, found
    assert words in found[at]


def test_what_hides_a_minimum_is_warned_of() -> None:
    assert not [one for one in warnings_for(define()) if one.startswith("scale")]
    pruned, near = (one for one in warnings_for(define(pruner="asha", sampler="tpe")) if one.startswith("scale"))
    assert "the pruner asha stops trials" in pruned
    assert "the sampler tpe stays near" in near


def test_the_fit_finds_the_law_of_several_parameters() -> None:
    """lr as a power of the width, lambd constant, within 10 %; the interval holds the truth."""
    rng = np.random.default_rng(0)
    sizes = []
    for width in (64, 128, 256, 512):
        x = rng.uniform([math.log(1e-4), math.log(0.02)], [math.log(0.1), math.log(0.4)], size=(24, 2))
        away = x - [math.log(best_lr(width)), math.log(0.1)]
        sizes.append((x, 0.02 * (away**2).sum(axis=1) + 0.002 * rng.standard_normal(24)))
    found, degrees = optima(sizes, [math.log(1000), math.log(20)])
    at = [math.log(width) for width in (64, 128, 256, 512)]
    lr, lambd = (
        fit_line(at, [of[i] for of in found], to=math.log(1024), degrees=degrees, least=LEAST_SCATTER) for i in (0, 1)
    )
    assert lr is not None
    assert lambd is not None
    assert lr.slope == pytest.approx(-0.5, abs=0.1)
    assert lr.slope_low < -0.5 < lr.slope_high
    assert math.exp(lr.predicted) == pytest.approx(best_lr(1024), rel=0.1)
    assert lr.low < math.log(best_lr(1024)) < lr.high
    assert math.exp(lambd.predicted) == pytest.approx(0.1, rel=0.1)


def test_what_shows_no_minimum_is_as_unsure_as_the_range() -> None:
    """Losses that fall to the end of the range: the best trial's value, and nothing of the next size is claimed."""
    x = np.linspace(0.0, 3.0, 7)[:, None]
    found, degrees = optima([(x, -x[:, 0])] * 3, [3.0])
    assert all(one.is_best_trial and one.at == 3.0 and one.error == pytest.approx(3 / 12**0.5) for (one,) in found)
    line = fit_line([4.0, 5.0, 6.0], [of[0] for of in found], to=7.0, degrees=degrees, least=LEAST_SCATTER)
    assert line is not None
    assert line.high - line.low > 4


@pytest.mark.parametrize("cost", [0.99, -97.31])
def test_equal_costs_show_no_minimum(cost: float) -> None:
    """As of trials that are all perfect: what rounding leaves of the costs has a minimum anywhere."""
    rng = np.random.default_rng(0)
    sizes = [(rng.uniform(0.0, 6.9, (20, 1)), np.full(20, cost)) for _ in range(30)]
    found, _ = optima(sizes, [6.9])
    assert all(one.is_best_trial for (one,) in found)


def test_costs_of_any_size_have_the_same_minimum() -> None:
    x = np.linspace(0.0, 6.9, 12)[:, None]
    cost = (x[:, 0] - 3) ** 2 + np.where(x[:, 0] > 3, 0.1, 0) * (x[:, 0] - 3) ** 3
    for factor in (1e-250, 1.0, 1e300):
        found, degrees = optima([(x, factor * cost)] * 3, [6.9])
        assert degrees > 0
        assert [one.at for (one,) in found] == pytest.approx([3.0] * 3, abs=0.1)
        assert not any(one.is_best_trial for (one,) in found)


def test_scatter_about_the_line_widens_the_interval() -> None:
    def optimum(at: float) -> Optimum:
        return Optimum(at=at, error=0.01, n=9, is_best_trial=False)

    straight, bent = (
        fit_line([1.0, 2.0, 3.0, 4.0], [*map(optimum, at)], to=5.0, degrees=20, least=LEAST_SCATTER)
        for at in ([1.0, 2.0, 3.0, 4.0], [1.0, 2.8, 2.2, 4.0])
    )
    assert straight is not None
    assert bent is not None
    assert straight.excess < 1 < bent.excess
    assert bent.high - bent.low > 4 * (straight.high - straight.low)


def test_sizes_without_a_complete_trial_are_left_out() -> None:
    definition = define()
    scale = definition.scale
    assert scale is not None
    assert fits_of(definition.optimizers[0], scale, {}, definition.objective.direction) == []
