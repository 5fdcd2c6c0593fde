"""A training recipe that a study searches: what a definition may say of it, and that each run trains with its own."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from search import placement
from search.assignment import Assignment
from search.definition import StudyDefinition
from search.edge import Searched, edges
from search.recipe import recipe_of
from search.space import fit
from search.states import Stage, StudyState
from tasks.errors import ConfigError
from tasks.registry import parse_config
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define

LR = {"type": "float", "low": 1e-3, "high": 1e-1, "log": True}
WARMUP = {"type": "float", "low": 0.0, "high": 0.2}
BATCHES = {"type": "categorical", "choices": [32, 64, 128]}
NAMES = {"type": "categorical", "choices": ["constant", "cosine"]}


def digits(*optimizers: Any, **changes: Any) -> StudyDefinition:
    raw = {"name": "any", "task": "digits", "optimizers": list(optimizers) or ["adamw", "sgdm"], **changes}
    found = StudyDefinition.model_validate(raw)
    assert StudyDefinition.model_validate(found.to_json()) == found  # what is stored gives the same study
    return found


def faults(*optimizers: Any, **changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        digits(*optimizers, **changes)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in caught.value.errors())


def choices(*values: Any, **others: Any) -> dict[str, Any]:
    return {"type": "categorical", "choices": list(values), **others}


def test_a_studys_recipe_is_in_the_space_of_each_optimizer() -> None:
    found = digits(recipe={"batch_size": BATCHES, "schedule.name": NAMES})
    for one in found.optimizers:
        assert {"lr", "recipe.batch_size", "recipe.schedule.name"} <= one.space.keys()


def test_an_optimizers_own_recipe_is_its_alone() -> None:
    own = {"name": "adamw", "space": {}, "recipe": {"grad_clip": choices(None, 1.0)}}
    first, second = digits(own, "sgdm", recipe={"batch_size": BATCHES}).optimizers
    assert first.space.keys() == {"recipe.batch_size", "recipe.grad_clip"}
    assert "recipe.grad_clip" not in second.space


def test_a_condition_on_a_field_of_the_recipe_means_that_field() -> None:
    final = {"type": "float", "low": 0.0, "high": 0.3, "when": {"schedule.name": "cosine"}}
    (found,) = digits("adamw", recipe={"schedule.name": NAMES, "schedule.final": final}).optimizers
    assert found.space["recipe.schedule.final"].when == {"recipe.schedule.name": "cosine"}


@pytest.mark.parametrize(
    ("recipe", "rule"),
    [
        ({"batch_sise": BATCHES}, "recipe.batch_sise: is not a field of task 'digits'; did you mean 'batch_size'?"),
        ({"schedule.warmpu": WARMUP}, "did you mean 'schedule.warmup'?"),
        ({"epochs": choices(5, 10)}, "recipe.epochs: is the same for all trials of a study"),
        ({"model": choices("mlp", "linear")}, "recipe.model: is the same for all trials"),
        (
            {"batch_size": choices(0, 64)},
            "recipe.batch_size: can be batch_size = 0 here: must be greater than or equal",
        ),
        ({"batch_size": {"type": "float", "low": 8, "high": 64}}, "batch_size = 8.0 here: must be a valid integer"),
        ({"augment": choices("none", "mixup")}, "must be 'none', 'flip' or 'crop_flip'"),
        ({"schedule.warmup": {**WARMUP, "high": 1.0}}, "can be schedule.warmup = 1.0 here: must be less than 1"),
        (
            {"schedule.name": NAMES, "schedule.final": {**WARMUP, "high": 0.3}},
            "final = 0.3 is for linear and cosine, but the schedule's name is 'constant'.*draw it only where it",
        ),
        (
            {"schedule.name": choices("cosine", "multistep"), "schedule.warmup": {**WARMUP, "high": 0.6}},
            "milestone 0.5 is in the warm-up",
        ),
        ({"schedule": choices("cosine", "linear"), "schedule.warmup": WARMUP}, "is a field of 'schedule', which is"),
        ({"schedule": {"warmup": WARMUP}}, "recipe.schedule: must be a parameter.*is named with a dot"),
        ({"batch_size": 64}, "a constant belongs under 'task'"),
        ({"batch_size": {"type": "int", "low": 8}}, "recipe.batch_size.int.high: Field required"),
        ([], "recipe: Input should be a valid dictionary"),
    ],
)
def test_what_is_refused(recipe: Any, rule: str) -> None:
    assert re.search(rule, faults(recipe=recipe)), faults(recipe=recipe)


def test_one_optimizers_error_is_placed_there() -> None:
    assert faults("sgdm", {"name": "adamw", "recipe": {"grad_clip": choices(-1.0)}}).startswith("optimizers.1.")
    assert "optimizers.0.fixed.recipe.batch_size" in faults({"name": "adamw", "fixed": {"recipe.batch_size": -2}})
    twice = faults({"name": "adamw", "recipe": {"batch_size": BATCHES}}, recipe={"batch_size": BATCHES})
    assert twice.startswith("optimizers.0.recipe.batch_size: is searched for all optimizers")


def test_a_whole_schedule_may_be_a_choice() -> None:
    found = digits("adamw", recipe={"schedule": choices("cosine", {"name": "linear", "final": 0.1, "warmup": 0.1})})
    assert found.optimizers[0].space["recipe.schedule"].end_points()[0] == "cosine"


def test_every_choice_is_checked_where_there_are_more_combinations_than_are() -> None:
    many = {"batch_size": choices(*range(1, 900), 0), "pad": choices(*range(40)), "schedule.warmup": WARMUP}
    assert "batch_size = 0" in faults("adamw", recipe=many)


def test_cards_divide_every_batch() -> None:
    steps = {"type": "int", "low": 32, "high": 64, "step": 8}
    assert digits(recipe={"batch_size": steps}, resources={"gpus": 4})
    assert "a batch of 32 cannot be split evenly over 3 cards" in faults(
        recipe={"batch_size": BATCHES}, resources={"gpus": 3}
    )
    assert "a batch of 5 " in faults(recipe={"batch_size": {**steps, "step": 5}}, resources={"gpus": 4})


def test_defaults_train_with_the_task_itself() -> None:
    found = digits("adamw", recipe={"batch_size": BATCHES}, baseline="defaults").baselines()[0].optimizer
    assert not [name for name in found.fixed if name.startswith("recipe.")]


def test_named_spaces_are_searched_beside_a_recipe() -> None:
    recipe = {"batch_size": BATCHES}
    named, best = digits(
        {"name": "adamw", "space": "finetune"},
        {"name": "admetar", "space": "paper-best"},
        task={"name": "cifar10", "model": "resnet110"},
        recipe=recipe,
    ).optimizers
    assert named.space.keys() == {"lr", "recipe.batch_size"}
    assert "recipe.batch_size" in best.space
    (first,) = best.first
    assert "recipe.batch_size" not in first  # the paper has no other, so it is drawn
    space = {"lr": LR, "lambd": {**LR, "high": 0.5}, "recipe.batch_size": BATCHES}
    by_hand = {"name": "admetar", "space": space, "first": "paper-best"}
    (stated,) = digits(by_hand, task={"name": "cifar10", "model": "resnet110"}).optimizers
    assert stated.first == [first]


def test_which_fields_are_searched_is_part_of_the_recipe_that_makes_studies_comparable() -> None:
    plain, searched = digits(), digits(recipe={"batch_size": BATCHES})
    assert recipe_of(plain) != recipe_of(searched)
    assert recipe_of(searched) == recipe_of(digits("lion", recipe={"batch_size": choices(16, 32)}))
    assert recipe_of(searched) != recipe_of(digits(recipe={"grad_clip": choices(1.0)}))
    assert recipe_of(searched) == recipe_of(digits({"name": "adamw", "fixed": {"recipe.batch_size": 32}}))


# Runs -----------------------------------------------------------------------------------------------------------------


def study(**changes: Any) -> StudyDefinition:
    recipe = {"schedule.warmup": WARMUP, "schedule.name": choices("constant", "cosine", "linear")}
    optimizers = [{"name": "adamw", "space": {"lr": LR}}, {"name": "sgdm", "space": {"lr": LR}}]
    return define(**{"optimizers": optimizers, "recipe": recipe, "confirm": {"top_k": 1, "seeds": [0, 1]}, **changes})


def by_warmup(assignment: Assignment, epoch: int) -> float:
    return epoch + float(assignment.task["schedule"]["warmup"])


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "qmc", "random"])
def test_every_sampler_draws_recipes(sampler: str) -> None:
    store = MemoryStore()
    cluster = Cluster(coordinator_for(store, store.add_study(study(sampler={"name": sampler, "seed": 3}))), by_warmup)
    cluster.run()
    searched = [one for one in cluster.finished if one.stage is Stage.SEARCH]
    assert len({one.task["schedule"]["warmup"] for one in searched}) >= 4
    for one in cluster.finished:
        assert one.settings.keys() >= {"lr"}
        assert not [name for name in one.settings if "recipe" in name]
        assert parse_config(one.task).model_dump(mode="json")["epochs"] == 3  # the same number of samples for all


def test_a_grid_has_every_recipe_once() -> None:
    recipe = {"schedule.warmup": choices(0.0, 0.1), "schedule.name": choices("constant", "cosine")}
    optimizers = [{"name": "adamw", "space": {"lr": choices(0.01, 0.1)}}]
    store = MemoryStore()
    raw = study(sampler="grid", recipe=recipe, optimizers=optimizers, budget={"trials_per_optimizer": 50})
    cluster = Cluster(coordinator_for(store, store.add_study(raw)), by_warmup)
    cluster.run()
    drawn = [
        (*one.task["schedule"].values(), one.settings["lr"]) for one in cluster.finished if one.stage is Stage.SEARCH
    ]
    assert len({str(one) for one in drawn}) == len(drawn) == 8


def test_confirm_runs_train_with_the_chosen_recipe() -> None:
    store = MemoryStore()
    cluster = Cluster(coordinator_for(store, store.add_study(study())), by_warmup)
    cluster.run()
    for label in ("adamw", "sgdm"):
        mine = [one for one in cluster.finished if one.label == label]
        best = max((one for one in mine if one.stage is Stage.SEARCH), key=lambda one: by_warmup(one, 0))
        confirmed = [one for one in mine if one.stage is Stage.CONFIRM]
        assert len(confirmed) == 2
        assert all(one.task == best.task for one in confirmed)


@pytest.mark.parametrize("kill_after", [1, 2, 4, 7])
def test_after_a_kill_each_run_goes_on_with_the_recipe_it_had(kill_after: int) -> None:
    store = MemoryStore()
    record = store.add_study(study(searches=2))
    first = Cluster(coordinator_for(store, record), by_warmup)
    for number in first.rounds():
        if number == kill_after:
            break
    second = Cluster(coordinator_for(store, record, owner="second"), by_warmup)
    second.run()
    trained = defaultdict(list)
    for one in (*first.started, *second.started):
        trained[one.run_id].append((one.task, one.settings))
    assert any(len(of) > 1 for of in trained.values())
    assert all(each == of[0] for of in trained.values() for each in of)
    assert len([run for run in store.runs(record.id) if run.stage is Stage.SEARCH]) == 4 * 4


def test_equal_settings_with_another_recipe_are_another_configuration() -> None:
    first = [{"lr": 0.01, "recipe.schedule.warmup": warmup, "recipe.schedule.name": "cosine"} for warmup in (0.0, 0.1)]
    optimizers = [{"name": "adamw", "space": {"lr": LR}, "first": first}]
    store = MemoryStore()
    raw = study(optimizers=optimizers, budget={"trials_per_optimizer": 2}, confirm={"top_k": 0})
    cluster = Cluster(coordinator_for(store, store.add_study(raw)), by_warmup)
    cluster.run()
    assert [one.task["schedule"]["warmup"] for one in cluster.finished] == [0.0, 0.1]


def test_another_schedule_leaves_out_what_only_the_tasks_own_has() -> None:
    task = {
        "name": "synthetic",
        "model": "idle",
        "epochs": 3,
        "schedule": {"name": "cosine", "final": 0.1, "warmup": 0.1},
    }
    store = MemoryStore()
    cluster = Cluster(
        coordinator_for(
            store, store.add_study(study(task=task, recipe={"schedule.name": choices("constant", "linear")}))
        ),
        by_warmup,
    )
    cluster.run()
    found = {one.task["schedule"]["name"]: parse_config(one.task).schedule for one in cluster.finished}
    assert (found["constant"].final, found["constant"].warmup) == (0.0, 0.1)
    assert found["linear"].final == 0.1


def test_a_warm_start_takes_over_the_recipe() -> None:
    store = MemoryStore()
    earlier = store.add_study(study(name="earlier"))
    Cluster(coordinator_for(store, earlier), by_warmup).run()
    store.studies[earlier.id] = replace(earlier, state=StudyState.COMPLETED)
    best = [run.params for run in store.runs(earlier.id) if run.stage is Stage.CONFIRM and run.seed == 0]
    raw = study(name="later", warm_start={}, budget={"trials_per_optimizer": 10})
    cluster = Cluster(coordinator_for(store, store.add_study(raw)), by_warmup)
    next(iter(cluster.rounds()))
    for params, one in zip(best, cluster.started[:2], strict=True):
        assert one.settings["lr"] == params["lr"]
        assert one.task["schedule"]["warmup"] == params["recipe.schedule.warmup"]


# What else reads the space --------------------------------------------------------------------------------------------


def test_an_edge_of_the_recipe_is_found_and_widened() -> None:
    found = digits("adamw", recipe={"schedule.warmup": WARMUP})
    values = [0.2 * i / 19 for i in range(20)]
    trials = [({"lr": 0.01, "recipe.schedule.warmup": value}, value) for value in values]
    (edge,) = edges(found, [Searched(label="adamw", best=trials[-1][0], trials=trials)])
    assert edge.change == "optimizers.0.space.recipe.schedule.warmup.high=0.3"
    assert fit(trials[0][0], found.optimizers[0].space) == trials[0][0]


def test_cards_are_packed_for_the_largest_batch() -> None:
    found = digits("adamw", {"name": "sgdm", "recipe": {"batch_size": BATCHES}})
    assert placement.with_largest_batch(found)["batch_size"] == 128
    assert placement.with_largest_batch(digits())["batch_size"] == 64
    assert not [name for name in placement.typical_settings(found.optimizers[1]) if "recipe" in name]


def test_data_too_small_for_a_recipe_fail_before_the_first_trial() -> None:
    found = digits("adamw", recipe={"batch_size": choices(64, 2048), "accumulation": choices(1, 2)})
    task = found.task.model_dump(mode="json")
    recipes = placement._recipes(found.optimizers)
    with pytest.raises(ConfigError, match=r"batch_size × accumulation is .*, more than the 1197 training samples"):
        placement._check(task, [], None, (), "val_accuracy", recipes)
    fits = placement._recipes(digits("adamw", recipe={"batch_size": BATCHES}).optimizers)
    assert fits == [{"batch_size": 64}, {"batch_size": 32}, {"batch_size": 128}]
    placement._check(task, [], None, (), "val_accuracy", fits)
