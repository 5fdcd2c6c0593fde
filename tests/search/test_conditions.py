"""Conditions between parameters: what a definition may say, and that every sampler keeps to it."""

from __future__ import annotations

import json
import logging
import math
import random
from dataclasses import replace
from typing import Any

import optuna
import pytest
from pydantic import ValidationError

from admeta.spaces import Condition
from admeta.theory import dema_gain
from search.advice import warnings_for
from search.definition import StudyDefinition
from search.optimizer_search import OptimizerSearch
from search.placement import corners, typical_settings
from search.states import Stage, StudyState
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define

LR = {"type": "float", "low": 1e-3, "high": 1.0, "log": True}
LAMBD = {"type": "float", "low": 0.02, "high": 0.9, "log": True}
GAIN = "lr * steady_gain <= 1"
GRID = {
    "lr": {"type": "categorical", "choices": [0.01, 0.1, 1.0]},
    "lambd": {"type": "categorical", "choices": [0.1, 0.5, 0.9]},
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def searched(**changes: Any) -> OptimizerSearch:
    return OptimizerSearch.model_validate({"name": "admetar", "space": {"lr": LR, "lambd": LAMBD}, **changes})


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a + b * 2 <= 7", True),
        ("(a + b) * 2 < 7", False),
        ("-a ** 2 == -9 and not b > 2", True),
        ("1 < b < a < 4", True),
        ("a < b or a / b > 1.4", True),
        ("a != 3", False),
        ("others.lr * 10 >= 1", True),
        ("a / (b - 2) > 0", False),  # by 0
        ("a ** 9 ** 9 ** 9 > 0", False),  # overflows
        ("(b - a) ** 0.5 < 9", False),  # no real number
        ("(b - a) ** 0.5 != 9", False),
        ("not (b - a) ** 0.5 > 9", False),
        ("a * 1e200 * 1e200 > 1", False),  # overflows without an error in Python
        ("not a * 1e200 * 1e200 > 1", False),
    ],
)
def test_a_condition_is_computed_as_written(text: str, holds: bool) -> None:
    assert Condition(text).holds({"a": 3.0, "b": 2.0, "others.lr": 0.1}) is holds


def test_the_names_of_a_condition() -> None:
    assert Condition("lr * others.lr < 1 and lr > recipe.batch_size").names == ("lr", "others.lr", "recipe.batch_size")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("lr * stedy_gain <= 3", "did you mean 'steady_gain'"),
        ("lr <= dema", "'dema' can be 'full', which is no number"),
        ("lr <= rectify", "'rectify' can be True, which is no number"),
        ("lr +", "cannot be read"),
        ("", "cannot be read"),
        ("lr\x00 < 1", "cannot be read"),
        ("\ud800 < 1", "characters that are no text"),
        ("lr", "compares nothing"),
        ("1 < 2", "names no parameter"),
        ("lr < 1e999", "too large a number"),
        ("__import__('os').system('true') < 1", "is not allowed"),
        ("lr.__class__.__name__ < 1", "is no parameter of admetar"),
        ("(lambda: 1)() < lr", "is not allowed"),
        ("[lr for lr in (1,)] < lr", "is not allowed"),
        ("lr in (1, 2)", "is not allowed"),
        ("lr < 'a'", "is not allowed"),
        ("lr < True", "is not allowed"),
        ("(lr < 1) + 1 < 2", "is not allowed"),
        ("lr << 99 < 1", "is not allowed"),
        ("lr < " + "9" * 200, "has 205 characters; at most 200"),
        ("(" * 99 + "lr", "cannot be read"),
        ("lr < 0.001", "only 0 % of the space meets 'lr < 0.001'"),
    ],
)
def test_what_a_condition_must_not_be(text: str, rule: str) -> None:
    with pytest.raises(ValidationError) as error:
        searched(when=text)
    assert error.value.errors()[0]["loc"][0] == "when"
    assert rule in error.value.errors()[0]["msg"]


def test_a_condition_may_stand_inside_the_space_and_is_stored_beside_it() -> None:
    inside = {"name": "admetar", "space": {"lr": LR, "lambd": LAMBD, "when": GAIN}}
    study = define(optimizers=[inside], name="inside")
    assert study.optimizers[0] == searched(when=[GAIN]) == searched(when=GAIN)
    assert StudyDefinition.model_validate(study.to_json()) == study
    assert define(optimizers=[{**inside, "when": "lr < 0.5"}]).optimizers[0].when == [GAIN, "lr < 0.5"]
    with pytest.raises(ValidationError, match="at most 3 items"):
        searched(when=["lr < 0.5"] * 4)


def test_the_steady_gain_is_that_of_the_filter() -> None:
    search = searched(when=GAIN)
    for lambd in (0.02, 0.5, 0.9):
        assert search.meets({"lr": 0.999 / dema_gain(lambd), "lambd": lambd})
        assert not search.meets({"lr": 1.001 / dema_gain(lambd), "lambd": lambd})
    off = searched(when=GAIN, fixed={"dema": "off"})
    assert off.meets({"lr": 1.0, "lambd": 0.9})
    with pytest.raises(ValidationError, match="only 0 %"):
        searched(when=GAIN, fixed={"dema": "released"})


def test_what_is_not_drawn_has_its_constant_value_or_its_default() -> None:
    search = searched(space={"lr": LR}, fixed={"lambd": 0.5}, when=GAIN)
    assert search.meets({"lr": 0.09})  # the gain is 11
    assert not search.meets({"lr": 0.1})
    assert searched(space={"lr": LR}, when=["lr >= weight_decay"]).meets({"lr": 0.1})


SAMPLERS: list[dict[str, Any]] = [
    {"name": "tpe"},
    {"name": "gp", "n_startup_trials": 4},
    {"name": "cmaes"},
    {"name": "qmc"},
    {"name": "random"},
]
CONDITIONAL = {
    "dema": {"type": "categorical", "choices": ["full", "off"]},
    "lr": LR,
    "lambd": {**LAMBD, "when": {"dema": "full"}},
}


def run(
    sampler: dict[str, Any],
    space: dict[str, Any],
    *,
    n_trials: int,
    when: str = GAIN,
    stop: int | None = None,
    **changes: Any,
) -> list[dict[str, Any]]:
    """The settings that were tried, by a driver that dies after `stop` rounds and the next one."""
    store = MemoryStore()
    study = store.add_study(
        define(
            task={"name": "synthetic", "model": "idle", "epochs": 1},
            optimizers=[{"name": "admetar", "space": space, "when": when, **changes}],
            sampler=sampler,
            budget={"trials_per_optimizer": n_trials},
            confirm={"top_k": 0},
        )
    )
    for n_rounds in Cluster(coordinator_for(store, study, slots=2)).rounds():
        if n_rounds == stop:
            break
    if stop is not None:
        Cluster(coordinator_for(store, study, slots=2, owner="second")).run()
    (spec,) = study.definition.optimizers
    runs = [run for run in store.runs(study.id) if run.stage is Stage.SEARCH]
    assert all(spec.meets(run.params) for run in runs)
    return [dict(run.params) for run in sorted(runs, key=lambda run: run.trial_number)]


@pytest.mark.parametrize("space", [{"lr": LR, "lambd": LAMBD}, CONDITIONAL], ids=["together", "conditional"])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler["name"])
def test_every_sampler_keeps_to_the_condition(sampler: dict[str, Any], space: dict[str, Any]) -> None:
    """By two drivers, and where settings of the first trial are given."""
    n_trials = 6 if sampler["name"] == "gp" else 24
    tried = run(sampler, space, n_trials=n_trials, stop=2, first=[{"lr": 0.12}])
    assert len({json.dumps(params) for params in tried}) == len(tried) == n_trials
    assert tried[0]["lr"] == 0.12


def test_random_draws_are_uniform_where_the_condition_holds() -> None:
    """The same shares of both halves as of plain draws that meet it."""
    search, plain, rng = searched(when="lr * lambd <= 0.02"), searched(), random.Random(1)
    tried = run({"name": "random"}, {"lr": LR, "lambd": LAMBD}, n_trials=300, when="lr * lambd <= 0.02")
    drawn = [plain.draw_meeting(rng, {}, at_most=1) for _ in range(20_000)]
    met = [one for one in drawn if one is not None and search.meets(one)]
    for name, middle in (("lr", 10**-1.8), ("lambd", 0.08)):
        share = sum(params[name] < middle for params in met) / len(met)
        seen = sum(params[name] < middle for params in tried) / len(tried)
        assert abs(seen - share) < 4 * math.sqrt(share * (1 - share) / len(tried))
    assert search.share_met() == pytest.approx(len(met) / len(drawn), abs=0.15)


def test_the_points_of_a_sequence_are_the_ones_that_meet_the_condition() -> None:
    """Those of the same sequence without a condition, in their order."""
    space = {"lr": LR, "lambd": LAMBD}
    all_points = run({"name": "qmc"}, space, n_trials=40, when="lr > 0.0001")
    search = searched(when=GAIN)
    met = [params for params in all_points if search.meets(params)]
    assert run({"name": "qmc"}, space, n_trials=len(met)) == met


def test_a_grid_leaves_points_out_and_counts_the_others() -> None:
    """Gains of 6.6, 11 and 51."""
    study = define(optimizers=[{"name": "admetar", "space": GRID, "when": GAIN}], sampler="grid")
    (spec,) = study.optimizers
    assert study.n_trials_of(spec) == 4 == spec.n_configurations
    assert define(optimizers=[{"name": "admetar", "space": GRID}], sampler="grid", budget={}).n_runs == 9 + 2
    assert define(optimizers=[{"name": "admetar", "space": GRID, "when": GAIN}], sampler="grid", budget={}).n_runs == 6
    tried = run({"name": "grid"}, GRID, n_trials=20)
    assert sorted((p["lr"], p["lambd"]) for p in tried) == [(0.01, 0.1), (0.01, 0.5), (0.01, 0.9), (0.1, 0.1)]


def test_a_baseline_keeps_nothing_of_the_space_that_its_search_has() -> None:
    search = searched(space={"lr": {"type": "categorical", "choices": [0.01, 0.02, 0.03]}}, when="lr < 0.025")
    assert search.n_configurations == 2
    baseline = search.at_defaults()
    assert (baseline.n_configurations, baseline.configurations) == (1, [{}])
    assert baseline.draw_meeting(random.Random(0), {}, at_most=1) == {}


def test_a_finite_space_is_tried_whole_before_anything_is_repeated() -> None:
    tried = run({"name": "tpe"}, GRID, n_trials=6)
    assert len({json.dumps(params) for params in tried[:4]}) == 4


def test_a_grid_too_large_to_list_under_a_condition_is_refused() -> None:
    space = {name: {**of, "log": False, "step": 0.001} for name, of in (("lr", LR), ("lambd", LAMBD))}
    with pytest.raises(ValidationError, match="at most 10,000 can be listed"):
        define(
            optimizers=[{"name": "admetar", "space": {**space, "lambd": {**LAMBD, "log": False, "step": 0.01}},
                         "when": GAIN}],
            sampler="grid",
        )  # fmt: skip


def test_a_first_trial_is_possible_where_some_draw_of_the_others_meets_the_condition() -> None:
    search = searched(when="lr * steady_gain <= 0.1")
    assert search.can_begin_with({"lambd": 0.39})
    assert not search.can_begin_with({"lambd": 0.39, "lr": 0.1})
    assert not search.can_begin_with({"lr": 0.1})


def test_first_trials_outside_are_refused_with_the_place() -> None:
    with pytest.raises(ValidationError, match="no trial that begins so meets 'lr \\* steady_gain <= 1'") as error:
        searched(when=GAIN, first=[{"lr": 0.01}, {"lr": 0.5, "lambd": 0.5}])
    assert error.value.errors()[0]["loc"] == ("first", 1)


def test_baselines_and_small_shares_are_told() -> None:
    changes = {"space": {"lr": LR, "lambd": LAMBD}, "when": "lr * steady_gain <= 0.012"}
    study = define(optimizers=[{"name": "admetar", **changes}], baseline="defaults")
    told = "\n".join(warnings_for(study))
    assert "admetar.defaults: the default settings {'lr': 0.01, 'lambd': 0.1} do not meet 'when' of admetar" in told
    assert "% of the space meets its 'when'" in told
    assert "when" not in "\n".join(warnings_for(define(optimizers=[{"name": "admetar"}], baseline="defaults")))


def test_a_warm_start_takes_nothing_over_that_the_condition_excludes(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    space = {"lr": LR, "lambd": LAMBD}
    first = [{"lr": 1.0, "lambd": 0.9}]
    early = {"name": "admetar", "space": space, "first": first}
    earlier = store.add_study(define(name="earlier", optimizers=[early], budget={"trials_per_optimizer": 1}))
    Cluster(coordinator_for(store, earlier)).run()
    store.studies[earlier.id] = replace(earlier, state=StudyState.COMPLETED)
    later = store.add_study(
        define(name="later", optimizers=[{"name": "admetar", "space": space, "when": GAIN}], warm_start={})
    )
    with caplog.at_level(logging.INFO):
        Cluster(coordinator_for(store, later)).run()
    (spec,) = later.definition.optimizers
    assert all(spec.meets(run.params) for run in store.runs(later.id))
    assert "is not taken over: it does not meet" in caplog.text


def test_settings_for_a_check_meet_the_condition() -> None:
    search = searched(when="lr * steady_gain <= 0.05")
    assert not search.meets({"lr": 0.0316, "lambd": 0.134})  # the middle
    assert search.meets(typical_settings(search))
    assert all(search.meets(settings) for settings in corners(search))
