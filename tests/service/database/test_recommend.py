"""What is recommended from a database's studies."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from sqlalchemy import Engine

from admeta.client.models import RecommendationView, RecommendRequest, StudyChanges
from search.definition import StudyDefinition
from search.recipe import recipe_of
from search.records import Point, RunOutcome
from search.states import FailureKind, RunState, Stage, StudyState
from service.database import SqlStore
from service.database.queries import recommendation
from service.database.studies import change_study
from tasks.engine.protocol import Cost
from tests.service.database.fill import complete, definition, leased, run


def asked(engine: Engine, *, hours: float = 10.0, task: str = "digits", model: str | None = None) -> RecommendationView:
    found = recommendation(engine, RecommendRequest(task=task, model=model, gpu_hours=hours))
    if found.plan is not None:
        text = yaml.safe_dump(found.plan)  # what is shown can be submitted
        StudyDefinition.model_validate(yaml.safe_load(text))
    return found


def measured(
    store: SqlStore, name: str, admetar: list[float], sgdm: list[float], *, gpu_s: float = 36.0, **changes: Any
) -> None:
    """A study with a search of five trials, the last one best, whose best trial was confirmed with these values."""
    lease, searches = leased(store, definition(name, **changes))
    for search, confirmed in zip(searches, (admetar, sgdm), strict=True):
        for number in range(5):
            cost = Cost(train_s=30.0, gpu_s=gpu_s)
            points = [Point(epoch=1, step=1, value=0.5, metrics={}, cost=cost)]
            value = confirmed[0] - 0.01 * (4 - number)
            run(store, lease, search, number, complete(value), params={"lr": 0.01 * (number + 1)}, points=points)
        for seed, value in enumerate(confirmed):
            run(store, lease, search, 4, complete(value), stage=Stage.CONFIRM, seed=seed, params={"lr": 0.05})
    store.set_study_state(lease, StudyState.COMPLETED)


def test_an_empty_database_gives_the_defaults_and_says_so(engine: Engine) -> None:
    found = asked(engine)
    assert (found.source, found.optimizer, found.probability) == ("defaults", "adamw", None)
    assert found.settings["lr"] == pytest.approx(0.001)
    assert found.how_sure == (
        "No study says which optimizer is better here; adamw is what most begin with, at the registry's defaults."
    )
    assert (found.spend, found.cost, found.plan_hours) == ("search", None, None)
    assert found.plan is not None
    assert found.plan["budget"]["gpu_hours"] == 7.0
    assert found.plan["confirm"]["top_k"] == 0  # confirm runs could cost more than the hours
    assert "30% of the hours are kept for seeds: ask again" in found.why
    assert asked(engine, hours=0.0).plan is None


def test_the_papers_settings_where_the_paper_has_some(engine: Engine) -> None:
    found = asked(engine, task="cifar10", model="resnet110")
    assert (found.source, found.optimizer) in {("paper", "adamw"), ("defaults", "adamw")}


@pytest.mark.parametrize(
    ("admetar", "sgdm", "told"),
    [
        ([0.9, 0.9], [0.8, 0.8], "admetar has the best value of 2 optimizers. How"),
        ([0.9, 0.9], [0.9, 0.9], "2 optimizers, and so has sgdm: the results do not decide between them. How"),
    ],
)
def test_confirmed_values_without_a_spread_are_not_called_single_runs(
    store: SqlStore, engine: Engine, admetar: list[float], sgdm: list[float], told: str
) -> None:
    measured(store, "flat", admetar, sgdm)
    found = asked(engine)
    assert (found.optimizer, found.probability) == ("admetar", None)
    assert told in found.how_sure
    assert "what was confirmed has the same value with each of its seeds" in found.how_sure


def test_the_best_of_the_recipe_with_its_probability_and_the_cost(store: SqlStore, engine: Engine) -> None:
    measured(store, "first", [0.90, 0.91, 0.92], [0.80, 0.81, 0.82])
    found = asked(engine)
    assert (found.source, found.optimizer, found.spend) == ("recipe", "admetar", "search")
    assert found.settings["lr"] == pytest.approx(0.05)
    assert found.probability is not None
    assert found.probability > 0.99
    assert [one.optimizer for one in found.candidates] == ["admetar", "sgdm"]
    assert found.candidates[1].difference == pytest.approx(-0.1)
    assert found.candidates[1].high is not None
    assert found.candidates[1].high < 0
    assert found.cost is not None
    assert (found.cost.epoch_s, found.cost.in_gpu_hours, found.cost.n_runs) == (36.0, True, 10)
    assert found.plan is not None
    assert [one["name"] for one in found.plan["optimizers"]] == ["admetar"]  # the other one is not likely the best
    assert found.plan_hours is not None
    assert found.plan_hours <= 10
    assert "AdmetaR(" in found.code


def test_equal_means_are_not_decided(store: SqlStore, engine: Engine) -> None:
    measured(store, "equal", [0.90, 0.91, 0.92], [0.90, 0.91, 0.92])
    found = asked(engine)
    assert found.candidates[1].difference == 0
    assert "The interval holds 0: the results do not decide between the two." in found.how_sure


def test_near_candidates_get_seeds_and_their_settings(store: SqlStore, engine: Engine) -> None:
    """Searches that gained nothing in their latter half, and means that seeds can tell apart."""
    lease, searches = leased(store, definition("near"))
    for search, mean in zip(searches, (0.900, 0.899), strict=True):
        for number in range(6):
            cost = Cost(train_s=36.0)
            points = [Point(epoch=1, step=1, value=0.5, metrics={}, cost=cost)]
            run(store, lease, search, number, complete(0.9 if number == 0 else 0.8), params={"lr": 0.05}, points=points)
        for seed in range(3):
            run(store, lease, search, 0, complete(mean + 0.01 * (seed - 1)), stage=Stage.CONFIRM, seed=seed)
    store.set_study_state(lease, StudyState.COMPLETED)
    found = asked(engine)
    assert found.spend == "seeds"
    assert found.cost is not None
    assert not found.cost.in_gpu_hours
    assert found.plan is not None
    assert [one["first"] for one in found.plan["optimizers"]] == [[{"lr": 0.05}], [{"lr": 0.05}]]
    assert found.plan["budget"]["trials_per_optimizer"] == 1
    assert found.plan["confirm"]["seeds"] == [3, 4, 5]  # the first three have told already
    assert asked(engine, hours=0.0001).spend == "nothing"


def test_the_plan_has_the_recipe_that_it_adds_to(store: SqlStore, engine: Engine) -> None:
    """Also where fields of the recipe were searched, of which the best trial has values of its own."""
    space = {
        "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "recipe.batch_size": {"type": "categorical", "choices": [16, 32]},
    }
    study = definition("sizes", optimizers=[{"name": "adamw", "space": space}, {"name": "sgdm", "space": space}])
    lease, searches = leased(store, study)
    for search in searches:
        for number in range(5):
            run(store, lease, search, number, complete(0.5), params={"lr": 0.01, "recipe.batch_size": 16})
        for seed in range(2):
            params = {"lr": 0.01, "recipe.batch_size": 16}
            run(store, lease, search, 0, complete(0.5 + seed / 10), stage=Stage.CONFIRM, seed=seed, params=params)
    store.set_study_state(lease, StudyState.COMPLETED)
    found = asked(engine)
    assert (found.spend, found.task_config["batch_size"]) == ("seeds", 16)
    assert found.plan is not None
    assert recipe_of(StudyDefinition.model_validate(found.plan)) == found.recipe


def test_seeds_for_settings_that_no_search_drew(store: SqlStore, engine: Engine) -> None:
    """Those of a baseline, which the space of its search does not hold."""
    space = {"lr": {"type": "float", "low": 0.03, "high": 0.05}}
    optimizers = [{"name": "adamw", "space": space}, {"name": "sgdm", "space": space, "fixed": {"momentum": 0.8}}]
    lease, (adamw, sgdm, defaults) = leased(store, definition("based", optimizers=optimizers, baseline=["sgdm"]))
    points = [Point(epoch=1, step=1, value=0.5, metrics={}, cost=Cost(train_s=36.0))]
    for search in (adamw, sgdm):
        for number in range(6):
            run(store, lease, search, number, complete(0.6), params={"lr": 0.04}, points=points)
    run(store, lease, defaults, 0, complete(0.9), params={}, points=points)
    for search, mean, params in ((adamw, 0.900, {"lr": 0.04}), (defaults, 0.899, {})):
        for seed in (0, 1, 7):
            value = complete(mean + 0.01 * (seed % 3 - 0.5))
            run(store, lease, search, 0, value, stage=Stage.CONFIRM, seed=seed, params=params)
    store.set_study_state(lease, StudyState.COMPLETED)
    found = asked(engine)
    assert found.spend == "seeds"
    assert found.plan is not None
    assert found.plan["confirm"]["seeds"] == [8, 9, 10]
    of_adamw, of_sgdm = found.plan["optimizers"]
    assert of_adamw["first"] == [{"lr": 0.04}]
    assert (of_sgdm["first"], of_sgdm["fixed"]["momentum"]) == ([{"lr": 0.001}], 0.8)
    assert of_sgdm["space"]["lr"]["choices"] == [0.001]


def test_alike_studies_speak_where_there_are_none_of_the_task(store: SqlStore, engine: Engine) -> None:
    measured(store, "one", [0.90, 0.91, 0.92], [0.80, 0.81, 0.82])
    found = asked(engine, task="cifar10")
    assert (found.source, found.optimizer, found.probability) == ("alike", "admetar", None)
    assert "admetar was best in 1 of 1 other recipes" in found.how_sure
    assert found.settings["lr"] == pytest.approx(0.04)  # amid the three best trials
    first = found.candidates[0]
    assert (first.settings, first.study) == (found.settings, "one")
    assert "a trial of study 'one' that the best of them lie around" in found.how_sure
    assert found.plan is not None
    assert [one["name"] for one in found.plan["optimizers"]] == ["admetar", "sgdm", "adamw"]


def test_failed_confirm_runs_are_not_recommended(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, sgdm) = leased(store, definition("failing"))
    failed = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged")
    for search, outcomes in ((admetar, [complete(0.95), failed]), (sgdm, [complete(0.8), complete(0.81)])):
        run(store, lease, search, 0, complete(0.9))
        for seed, outcome in enumerate(outcomes):
            run(store, lease, search, 0, outcome, stage=Stage.CONFIRM, seed=seed)
    store.set_study_state(lease, StudyState.COMPLETED)
    found = asked(engine)
    assert found.optimizer == "sgdm"
    assert [one.probability for one in found.candidates] == [1.0, None]
    assert found.how_sure.startswith("Nothing else is known that did not fail")


def test_a_task_of_which_all_confirm_runs_failed_has_no_result(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = leased(store, definition("failing"))
    run(store, lease, admetar, 0, complete(0.9))
    failed = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged")
    run(store, lease, admetar, 0, failed, stage=Stage.CONFIRM, seed=0)
    found = asked(engine)
    assert (found.source, found.optimizer, found.spend) == ("defaults", "adamw", "search")


def test_a_study_in_the_other_direction_does_not_count(store: SqlStore, engine: Engine) -> None:
    measured(store, "ordinary", [0.90, 0.91, 0.92], [0.80, 0.81, 0.82])
    worst = {"metric": "val_accuracy", "direction": "minimize"}
    measured(store, "worst", [0.10, 0.11, 0.12], [0.20, 0.21, 0.22], objective=worst)
    found = asked(engine)
    assert (found.direction, found.optimizer, found.candidates[0].study) == ("maximize", "admetar", "ordinary")


def test_a_void_study_does_not_count(store: SqlStore, engine: Engine) -> None:
    measured(store, "nothing-learned", [0.1, 0.1, 0.1], [0.1, 0.1, 0.1])
    change_study(engine, "nothing-learned", StudyChanges(tags=["void"]))
    assert asked(engine).source == "defaults"
    assert asked(engine, task="cifar10").candidates == []


def test_the_fields_that_are_asked_for_are_those_of_the_recipe(store: SqlStore, engine: Engine) -> None:
    """Such as `data_dir`: other data are another task."""
    task = {"name": "digits", "epochs": 2}
    measured(store, "small", [0.90, 0.91, 0.92], [0.80, 0.81, 0.82], task={**task, "batch_size": 16})
    measured(store, "large", [0.80, 0.81, 0.82], [0.90, 0.91, 0.92], task={**task, "batch_size": 64})

    def of(**fields: Any) -> RecommendationView:
        return recommendation(engine, RecommendRequest(task={"name": "digits", **fields}, gpu_hours=10.0))

    assert (of(batch_size=16).source, of(batch_size=16).optimizer) == ("recipe", "admetar")
    assert (of(batch_size=64).source, of(batch_size=64).optimizer) == ("recipe", "sgdm")
    found = of(batch_size=32)
    assert (found.source, found.task_config["batch_size"], found.cost) == ("alike", 32, None)
    longer = of(batch_size=16, epochs=20)
    assert (longer.source, longer.epochs) == ("alike", 20)
    assert longer.cost is not None
    assert longer.cost.training_hours == pytest.approx(20 * 36 / 3600)


@pytest.mark.parametrize("hours", [5e-324, 1e-310, 1e-5])
def test_less_than_a_second_is_nothing(engine: Engine, hours: float) -> None:
    found = asked(engine, hours=hours)
    assert (found.spend, found.plan, found.why) == ("nothing", None, f"{hours:.3g} hours are less than a second")


def test_single_runs_say_that_luck_is_not_known(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, sgdm) = leased(store, definition("single"))
    run(store, lease, admetar, 0, complete(0.9))
    run(store, lease, sgdm, 0, complete(0.8))
    found = asked(engine)
    assert (found.optimizer, found.probability) == ("admetar", None)
    assert "How much of that is luck is not known" in found.how_sure


def test_the_longest_recipe_that_the_hours_train(store: SqlStore, engine: Engine) -> None:
    task = definition().task.model_dump(mode="json")
    measured(store, "short", [0.8, 0.81, 0.82], [0.7, 0.71, 0.72], task={**task, "epochs": 2})
    measured(store, "long", [0.9, 0.91, 0.92], [0.8, 0.81, 0.82], task={**task, "epochs": 1000})
    assert asked(engine, hours=0.0).epochs == 1000
    assert asked(engine, hours=11.0).epochs == 1000
    assert asked(engine, hours=1.0).epochs == 2
