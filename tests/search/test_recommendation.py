"""What hours are best spent on, and the plan that spends them."""

from __future__ import annotations

import math
from statistics import stdev
from typing import Any

import pytest

from search.definition import StudyDefinition
from search.recommendation import (
    MAX_SEEDS,
    MAX_TRIALS,
    SAME_WITH_EACH_SEED,
    Candidate,
    Choice,
    Cost,
    choose,
    gain_of_search,
    in_order,
    likely,
    plan,
    sureness,
)
from search.states import Direction, Spend

UP, DOWN = Direction.MAXIMIZE, Direction.MINIMIZE
FLAT = [0.8] * 20
RISING = [0.5 + 0.01 * i for i in range(20)]
COST = Cost(training_hours=0.1, trial_hours=0.05)


def candidate(name: str, mean: float, std: float = 0.01, n: int = 3, **more: Any) -> Candidate:
    """Of a study of its own, with this mean and standard deviation."""
    spread = [i - (n - 1) / 2 for i in range(n)]
    unit = stdev(spread) if n > 1 else 1.0
    values = {(name, i): mean + std * one / unit for i, one in enumerate(spread)}
    return Candidate(optimizer=name, values=values, **{"search_values": FLAT, **more})


def decide(*candidates: Candidate, hours: float = 10.0, cost: Cost | None = COST) -> Choice:
    ranked = in_order(candidates, UP)
    return choose(ranked, sureness(ranked, UP), UP, cost=cost, hours=hours)


def test_settings_of_one_study_are_paired_by_seed_where_the_seed_matters() -> None:
    """Two points of spread that all have in common say nothing of which is the best."""
    seeds = (-0.02, 0.0, 0.02, 0.01, -0.01)
    means = {"a": 0.904, "b": 0.9, "c": 0.88}
    noise = {"a": (1, -1, 0, 1, -1), "b": (-1, 1, 1, 0, -1), "c": (0, 1, -1, -1, 1)}

    def known(study: str | None) -> list[Candidate]:
        return [
            Candidate(
                optimizer=name,
                values={(study or name, i): means[name] + one + 0.001 * noise[name][i] for i, one in enumerate(seeds)},
                search_values=FLAT,
            )
            for name in means
        ]

    paired, apart = sureness(known("one"), UP), sureness(known(None), UP)
    assert paired is not None
    assert apart is not None
    assert paired.chances["a"] > 0.98
    assert apart.chances["a"] < 0.75
    assert paired.against["b"].high < 0 < apart.against["b"].high
    assert paired.std == apart.std  # of seeds, not of what is left around their means


def test_the_best_mean_comes_first_and_failed_runs_last() -> None:
    found = in_order([candidate("a", 0.8), candidate("b", 0.9, n_failed=1), candidate("c", 0.85)], UP)
    assert [one.optimizer for one in found] == ["c", "a", "b"]
    assert in_order([candidate("a", 0.8), candidate("c", 0.85)], DOWN)[0].optimizer == "a"


def test_how_sure_it_is_follows_from_the_spread_between_seeds() -> None:
    far = sureness([candidate("a", 0.90), candidate("b", 0.80)], UP)
    near = sureness([candidate("a", 0.901), candidate("b", 0.90)], UP)
    assert far is not None
    assert near is not None
    assert far.chances["a"] > 0.99
    assert 0.5 < near.chances["a"] < 0.65
    assert sum(near.chances.values()) == pytest.approx(1)
    assert near.against["b"].low < near.against["b"].difference < near.against["b"].high
    assert near.gain_of_seeds(0) == 0.0
    assert 0 < near.gain_of_seeds(2) < near.gain_of_seeds(20) < 0.01
    assert far.gain_of_seeds(20) < 1e-4
    assert sureness([candidate("a", 0.9, n=1)], UP) is None
    failed = sureness([candidate("a", 0.90), candidate("b", 0.80), candidate("c", 1.0, n_failed=1)], UP)
    assert failed is not None
    assert "c" not in failed.chances


def test_the_chances_are_calibrated() -> None:
    """Of two settings with true means from a wide prior, the one called best with probability p is it in a share p."""
    import numpy as np

    rng = np.random.default_rng(0)
    said, held = [], []
    for _ in range(400):
        true = rng.normal(0, 0.01, size=2)
        runs = rng.normal(true[:, None], 0.01, size=(2, 3))
        pair = [candidate(name, one.mean(), one.std(ddof=1)) for name, one in zip("ab", runs, strict=True)]
        sure = sureness(pair, UP)
        assert sure is not None
        best = max(sure.chances, key=sure.chances.__getitem__)
        said.append(sure.chances[best])
        held.append(best == "ab"[int(true.argmax())])
    assert abs(np.mean(said) - np.mean(held)) < 0.06  # two standard errors and a little


def test_search_gains_by_doublings() -> None:
    one = candidate("a", 0.9, search_values=RISING)
    assert gain_of_search(one, UP, n_more=20) == pytest.approx(0.1)
    assert gain_of_search(one, UP, n_more=60) == pytest.approx(0.2)
    assert gain_of_search(one, DOWN, n_more=20) == 0.0
    assert gain_of_search(candidate("a", 0.9, search_values=[0.1, None, 0.2]), UP, n_more=20) is None
    assert gain_of_search(candidate("a", 0.9, search_values=[None] * 8), UP, n_more=20) is None
    assert gain_of_search(candidate("a", 0.9, search_values=[0.1, None, None, None]), UP, n_more=20) == 0.0


def test_hours_go_to_what_gains_most() -> None:
    near = candidate("b", 0.899)
    assert decide(candidate("a", 0.9, search_values=RISING), near).spend is Spend.SEARCH
    assert decide(candidate("a", 0.9), near).spend is Spend.SEEDS
    assert decide(candidate("a", 0.9), candidate("b", 0.5)).spend is Spend.NOTHING
    assert decide(candidate("a", 0.9)).spend is Spend.NOTHING  # one candidate whose search gains nothing more
    assert decide(candidate("a", 0.9, search_values=[0.9]), near).spend is Spend.SEARCH
    assert decide().spend is Spend.SEARCH
    assert decide(candidate("a", 0.9, n=1)).spend is Spend.SEEDS
    assert decide(candidate("a", 0.9, n=1, search_values=RISING)).spend is Spend.SEARCH
    few = decide(candidate("a", 0.9, search_values=RISING), hours=0.05)
    assert few == Choice(spend=Spend.NOTHING, why="0.05 hours are less than the 0.1 hours of one training")
    assert decide(hours=0.0).spend is Spend.NOTHING


def test_where_no_seed_changes_anything_none_is_paid_for() -> None:
    flat, rising = (candidate("a", 0.9, std=0.0, search_values=of) for of in (FLAT, RISING))
    assert decide(flat) == Choice(spend=Spend.NOTHING, why=f"{SAME_WITH_EACH_SEED}, and its search gained no more")
    assert decide(rising).spend is Spend.SEARCH


def test_unlikely_candidates_are_not_planned() -> None:
    ranked = [
        candidate("a", 0.9),
        candidate("b", 0.899),
        candidate("c", 0.5),
        *(candidate(f"{i}", 0.898) for i in range(5)),
    ]
    ranked = in_order(ranked, UP)
    names = likely(ranked, sureness(ranked, UP))
    assert names[:2] == ["a", "b"]
    assert len(names) == 4
    assert "c" not in names


OPTIMIZERS = [{"name": "adamw"}, {"name": "sgdm", "fixed": {"momentum": 0.8}}, {"name": "adam"}]


@pytest.mark.parametrize("spend", [Spend.SEARCH, Spend.SEEDS])
@pytest.mark.parametrize("hours", [0.3, 0.45, 0.7, 1.0, 2.0, 5.0, 50.0, 5000.0])
@pytest.mark.parametrize("cost", [COST, Cost(training_hours=0.1, trial_hours=0.1), None])
def test_a_plan_is_a_valid_study_that_fits_the_hours(spend: Spend, hours: float, cost: Cost | None) -> None:
    first = [{"lr": 0.01}, {"lr": 0.02}, {"lr": 0.001}]
    found = plan(spend, OPTIMIZERS, name="a-plan", task={"name": "digits"}, cost=cost, hours=hours, first=first)
    if found is None:
        assert hours < 0.4
        return
    definition = StudyDefinition.model_validate(found.definition)
    assert definition.budget.gpu_hours is not None
    assert definition.budget.gpu_hours <= hours
    k = len(definition.optimizers)
    assert 1 <= k <= 3
    n_seeds = definition.n_confirm_runs_of(definition.optimizers[0])
    assert n_seeds <= MAX_SEEDS
    assert (definition.budget.trials_per_optimizer or 0) <= MAX_TRIALS
    if cost is not None:
        trial = cost.trial_hours if spend is Spend.SEARCH else cost.training_hours
        at_most = k * ((definition.budget.trials_per_optimizer or 0) * trial + n_seeds * cost.training_hours)
        assert at_most <= hours + 1e-9
        assert found.hours == pytest.approx(at_most)
        if spend is Spend.SEARCH:  # confirm runs are made when the search's hours are spent, too
            assert definition.budget.gpu_hours + k * n_seeds * cost.training_hours <= hours + 1e-9
    if spend is Spend.SEEDS:
        assert [one.first for one in definition.optimizers] == [[one] for one in first[:k]]
        assert not any(one.first for one in definition.optimizers if len(one.first) != 1)
    else:
        assert definition.warm_start is not None
        assert definition.warm_start.scope == "everything"
    again = StudyDefinition.model_validate(definition.to_json())
    assert again == definition


def test_more_hours_never_plan_less() -> None:
    sizes = []
    for hours in (0.5, 1.0, 2.0, 4.0, 8.0):
        found = plan(Spend.SEARCH, OPTIMIZERS, name="p", task={"name": "digits"}, cost=COST, hours=hours)
        assert found is not None
        assert found.hours is not None
        sizes.append(found.hours)
    assert sizes == sorted(sizes)
    assert all(math.isfinite(size) for size in sizes)
