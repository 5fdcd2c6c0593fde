"""The study definition: its defaults, and what bad input gets: the field, the value and the rule."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

import admeta.registry
from admeta.registry import OPTIMIZERS
from search.definition import StudyDefinition
from search.samplers import GpSampler, TpeSampler
from search.space import from_registry

FLOAT = {"type": "float", "low": 0.01, "high": 0.1}
SMALLEST: dict[str, Any] = {"name": "a", "task": {"name": "digits"}, "optimizers": [{"name": "admetar"}]}


def parse(**changes: Any) -> StudyDefinition:
    return StudyDefinition.model_validate({**SMALLEST, **changes})


def optimizer(**changes: Any) -> dict[str, Any]:
    return {"optimizers": [{"name": "admetar", **changes}]}


def space(**parameters: Any) -> dict[str, Any]:
    return optimizer(space=parameters)


def field_of(location: tuple[int | str, ...]) -> str:
    """The user's path: pydantic adds the tag of a union's member."""
    return ".".join(str(part) for part in location if part not in ("float", "int", "categorical", "path", "TrialRef"))


CASES = [
    # what is changed, the field at fault, a part of the rule
    ({"task": {"name": "digit"}}, "task.name", "Did you mean 'digits'?"),
    ({"task": {"name": "digits", "model": "convnett"}}, "task.model", "Did you mean 'convnet'?"),
    ({"task": 3}, "task", "or an object with at least"),
    (optimizer(name="admetarr"), "optimizers.0.name", "did you mean 'admetar'?"),
    ({"optimizers": []}, "optimizers", "at least 1"),
    ({"optimizers": [{"name": "sgdm"}, {"name": "sgdm"}]}, "optimizers.1", "'sgdm' is listed twice"),
    (optimizer(label=""), "optimizers.0.label", "pattern"),
    ({"sampler": {"name": "tpee"}}, "sampler.name", "did you mean 'tpe'? known: cmaes, gp, grid, qmc, random, tpe"),
    ({"sampler": {"name": "tpe", "seed": -1}}, "sampler.tpe.seed", "greater than or equal to 0"),
    ({"sampler": {"name": "tpe", "seed": True}}, "sampler.tpe.seed", "valid integer"),
    ({"sampler": {"name": "grid"}}, "optimizers.0.space", "a grid needs a step or choices"),
    ({"pruner": {"name": "ashaa"}}, "pruner.name", "did you mean 'asha'?"),
    (space(lamda=FLOAT), "optimizers.0.space.lamda", "Did you mean 'lambd'?"),
    (space(lr={**FLOAT, "high": 0.01}), "optimizers.0.space.lr", "low = 0.01 must be less than high = 0.01"),
    (space(lr={**FLOAT, "low": 0, "log": True}), "optimizers.0.space.lr", "greater than 0 on a log scale"),
    (space(lr={**FLOAT, "low": math.nan}), "optimizers.0.space.lr.low", "finite"),
    (space(lr={**FLOAT, "high": math.inf}), "optimizers.0.space.lr.high", "finite"),
    (space(k={"type": "categorical", "choices": [1, 1.0, True]}), "optimizers.0.space.k.choices", "are equal"),
    (space(k={"type": "categorical", "choices": []}), "optimizers.0.space.k.choices", "at least 1"),
    (space(lambd={**FLOAT, "high": 1.0}), "optimizers.0.space.lambd", "(0, 1)"),
    (space(lambd={**FLOAT, "low": 0.0}), "optimizers.0.space.lambd", "(0, 1)"),
    (space(), "optimizers.0.space", "is empty"),
    (space(lr={**FLOAT, "when": {"k": 5}}), "optimizers.0.space", "depends on 'k', which is not in the space"),
    (optimizer(space="papr"), "optimizers.0.space", "did you mean 'paper'?"),
    (optimizer(fixed={"lambd": 2}), "optimizers.0.fixed.lambd", "(0, 1)"),
    (optimizer(fixed={"eps": math.inf}), "optimizers.0.fixed.eps", "finite"),
    (optimizer(fixed={"eps": 10**309}), "optimizers.0.fixed.eps", "finite"),  # beyond a float
    (optimizer(space={"lr": FLOAT}, fixed={"lr": 0.1}), "optimizers.0.fixed.lr", "in both 'space' and 'fixed'"),
    ({"objective": {"metric": "val_acc"}}, "objective.metric", "did you mean 'val_accuracy'?"),
    ({"objective": {"direction": "up"}}, "objective.direction", "'maximize' or 'minimize'"),
    ({"budget": {"trials_per_optimizer": 0}}, "budget.trials_per_optimizer", "greater than or equal to 1"),
    ({"budget": {"trials_per_optimizer": True}}, "budget.trials_per_optimizer", "valid integer"),
    ({"budget": {"trials_per_optimizer": 10**9}}, "budget.trials_per_optimizer", "less than or equal to 100000"),
    ({"budget": {"target": math.nan}}, "budget.target", "finite"),
    ({"budget": {"max_hours": 0}}, "budget.max_hours", "greater than 0"),
    ({"confirm": {"seeds": [0, 0]}}, "confirm.seeds", "are not all different"),
    ({"confirm": {"seeds": [100]}}, "training_seed", "also a confirm seed"),
    ({"resources": {"gpus": 1.5}}, "resources.gpus", "at most 1 or a whole number"),
    ({"resources": {"gpus": 3}}, "resources.gpus", "a batch of 64 cannot be split evenly over 3 cards"),
    ({"name": ""}, "name", "pattern"),
    ({"name": "x" * 101}, "name", "pattern"),
    ({"name": "a b"}, "name", "pattern"),
    ({"nmae": "a"}, "nmae", "not permitted"),
]


@pytest.mark.parametrize(("changes", "field", "rule"), CASES, ids=[str(case[0])[:60] for case in CASES])
def test_a_broken_rule_names_the_field(changes: dict[str, Any], field: str, rule: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse(**changes)
    errors = caught.value.errors()
    assert field in [field_of(error["loc"]) for error in errors]
    assert any(rule in error["msg"] for error in errors)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "parameters",
    [
        {"k": {"type": "int", "low": 1, "high": 10**12}},
        {"lr": {**FLOAT, "step": 1e-9}},
        {name: {"type": "categorical", "choices": [i / 1000 for i in range(1, 900)]} for name in ("lr", "eps")},
    ],
    ids=["int", "step", "product"],
)
def test_a_grid_too_large_is_refused_without_building_it(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="at most 100,000"):
        parse(sampler={"name": "grid"}, **space(**parameters))


def test_the_smallest_definition_has_everything_resolved() -> None:
    definition = parse()
    search = definition.optimizers[0]
    info = admeta.registry.get("admetar")
    assert search.label == "admetar"
    assert set(search.space) == set(info.default_space)
    assert search.fixed == info.fixed
    assert (definition.objective.metric, definition.objective.direction) == ("val_accuracy", "maximize")
    assert isinstance(definition.sampler, TpeSampler)


def test_a_pretrained_model_is_searched_in_the_finetuning_space() -> None:
    task = {"name": "cola", "model": "tiny"}
    optimizers = [{"name": "adamw"}, {"name": "admetar", "space": None}, {"name": "sgdm", "space": "default"}]
    definition = parse(task=task, optimizers=optimizers)
    for search, space in zip(definition.optimizers, ("finetune_space", "finetune_space", "default_space"), strict=True):
        info = admeta.registry.get(search.name)
        assert search.space == from_registry(getattr(info, space))
        assert search.fixed == (info.fixed if space == "default_space" else info.finetune_fixed)
    assert definition.objective.metric == "val_mcc"
    assert StudyDefinition.model_validate(definition.to_json()) == definition


def test_a_name_stands_for_the_object_with_that_name() -> None:
    short = {
        "name": "x",
        "task": "digits",
        "optimizers": ["adamw", {"name": "sgdm"}],
        "sampler": "gp",
        "pruner": "none",
    }
    written_out = {
        "name": "x", "task": {"name": "digits"}, "optimizers": [{"name": "adamw"}, {"name": "sgdm"}],
        "sampler": {"name": "gp"}, "pruner": {"name": "none"},
    }  # fmt: skip
    assert StudyDefinition.model_validate(short) == StudyDefinition.model_validate(written_out)
    for wrong in ({"task": "digitz"}, {"optimizers": ["adamwx"]}, {"sampler": "gpp"}, {"pruner": "ashaa"}):
        with pytest.raises(ValidationError, match=r"(?i)did you mean"):
            StudyDefinition.model_validate({**short, **wrong})


def test_a_resolved_definition_parses_to_itself() -> None:
    definition = parse(**space(lr=FLOAT, dema={"type": "categorical", "choices": ["full", "off"]}))
    again = StudyDefinition.model_validate(json.loads(json.dumps(definition.to_json())))
    assert again == definition
    assert again.to_json() == definition.to_json()


@pytest.mark.parametrize("name", ["default", "finetune", "paper", "paper_finetune"])
def test_spaces_by_name(name: str) -> None:
    assert parse(**optimizer(space=name)).optimizers[0].space


def test_a_fixed_parameter_leaves_the_named_space() -> None:
    search = parse(**optimizer(space="paper", fixed={"lambd": 0.1})).optimizers[0]
    assert set(search.space) == {"lr"}
    assert search.fixed["lambd"] == 0.1


def test_a_searched_parameter_leaves_the_defaults_held_fixed() -> None:
    search = parse(**space(weight_decay=FLOAT)).optimizers[0]
    assert "weight_decay" not in search.fixed
    assert "eps" in search.fixed


def test_one_optimizer_twice_under_two_labels() -> None:
    definition = parse(
        optimizers=[{"name": "admetar"}, {"name": "admetar", "label": "no-dema", "fixed": {"dema": "off"}}]
    )
    assert [search.label for search in definition.optimizers] == ["admetar", "no-dema"]


def test_the_metric_brings_its_direction() -> None:
    assert parse(objective={"metric": "val_loss"}).objective.direction == "minimize"


def test_gp_says_it_starts_at_random() -> None:
    assert parse(sampler={"name": "gp"}).sampler == GpSampler(name="gp", n_startup_trials=10)


def test_reading_a_definition_loads_neither_torch_nor_optuna() -> None:
    import subprocess
    import sys

    program = (
        "import sys; from search.definition import StudyDefinition as D;"
        "D.model_validate({'name': 'a', 'task': {'name': 'digits'}, 'optimizers': [{'name': 'sgd'}]});"
        "print([m for m in ('torch', 'optuna', 'ray', 'sklearn') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("origin", "fields"),
    [
        ("../weights.pt", ["task.init_from"]),
        ({"study": "a", "optimizer": "b", "trial": -1}, ["task.init_from.trial"]),
        ({"study": "a"}, ["task.init_from.optimizer", "task.init_from.trial"]),
        (5, ["task.init_from"]),
    ],
)
def test_an_origin_is_blamed_as_what_it_is(origin: object, fields: list[str]) -> None:
    """A path for leaving the data folder, and not for being no object as well."""
    with pytest.raises(ValidationError) as caught:
        parse(task={"name": "digits", "init_from": origin})
    assert [field_of(error["loc"]) for error in caught.value.errors()] == fields


STEPS = {"type": "float", "low": 0.1, "high": 0.5, "step": 0.1}


@pytest.mark.parametrize(
    ("parameters", "first", "rule"),
    [
        ({"lr": STEPS}, {"lr": 0.15}, "must be 0.1 plus a multiple of step = 0.1"),
        ({"lr": STEPS}, {"lr": 0.6}, "must be from 0.1 to 0.5"),
        ({"lr": STEPS}, {"lr": True}, "must be a number"),
        ({"lr": FLOAT, "k": {"type": "int", "low": 2, "high": 12, "step": 5}}, {"k": 4}, "multiple of step = 5"),
        ({"lr": FLOAT, "k": {"type": "int", "low": 2, "high": 12}}, {"k": 2.5}, "multiple of step = 1"),
        ({"lr": {"type": "categorical", "choices": [0.1, 0.2]}}, {"lr": 0.3}, "must be one of the choices 0.1, 0.2"),
        ({"lr": FLOAT}, {"k": 5}, "is not a parameter of 'space', which has lr"),
        (
            {"dema": {"type": "categorical", "choices": ["full", "off"]}, "lambd": {**FLOAT, "when": {"dema": "full"}}},
            {"dema": "off", "lambd": 0.1},
            "is only drawn when dema = 'full', and here dema = 'off'",
        ),
    ],
)
@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_a_first_trial_must_be_one_that_the_space_can_draw(
    parameters: dict[str, Any], first: dict[str, Any], rule: str, sampler: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        parse(optimizers=[{"name": "admetar", "space": parameters, "first": [first]}], sampler={"name": sampler})
    (error,) = caught.value.errors()
    assert error["loc"][:4] == ("optimizers", 0, "first", 0)
    assert rule in error["msg"]


def test_a_first_trial_on_the_grid_is_stored_as_the_grid_has_it() -> None:
    from search.space import fit

    search = parse(optimizers=[{"name": "admetar", "space": {"lr": STEPS}, "first": [{"lr": 3 * 0.1}]}]).optimizers[0]
    assert search.first == [{"lr": 3 * 0.1}]
    assert fit(search.first[0], search.space) == {"lr": 0.3}


def test_the_runs_of_a_definition_know_of_grids() -> None:
    """Two configurations under a budget of 100,000: two trials, and the better one with three seeds."""
    grid = {"lr": {"type": "categorical", "choices": [0.1, 0.01]}}
    definition = parse(
        optimizers=[{"name": "sgd", "space": grid}],
        sampler={"name": "grid"},
        budget={"trials_per_optimizer": 100_000},
        confirm={"top_k": 1, "seeds": [0, 1, 2]},
    )
    assert definition.n_runs == 5
    both = definition.model_copy(update={"confirm": definition.confirm.model_copy(update={"top_k": 9})})
    assert both.n_runs == 2 + 2 * 3
    assert parse(confirm={"top_k": 0}, budget={"trials_per_optimizer": 7}).n_runs == 7


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"fixed": {"momentum": 0.0}}, ["fixed.momentum", "fixed.nesterov"]),
        ({"fixed": {"dampening": 0.1}}, ["fixed.dampening", "fixed.nesterov"]),
        ({"space": {"momentum": {"type": "float", "low": 0.0, "high": 0.9}}}, ["space.momentum", "fixed.nesterov"]),
        (
            {"space": {"dampening": {"type": "categorical", "choices": [0.0, 0.5]}}},
            ["space.dampening", "fixed.nesterov"],
        ),
        (
            {"space": {"nesterov": {"type": "categorical", "choices": [True, False]}}, "fixed": {"momentum": 0.0}},
            ["fixed.momentum", "space.nesterov"],
        ),
        ({"fixed": {"momentum": 0.0, "nesterov": False}}, []),
        ({"space": {"momentum": {"type": "float", "low": 0.1, "high": 0.9}}}, []),
        (
            {
                "space": {
                    "nesterov": {"type": "categorical", "choices": [True, False]},
                    "dampening": {"type": "float", "low": 0.0, "high": 0.9, "when": {"nesterov": False}},
                }
            },
            [],
        ),
    ],
)
def test_rules_between_parameters_hold_over_the_whole_space(changes: dict[str, Any], fields: list[str]) -> None:
    """Nesterov's form needs momentum and no dampening: torch's SGD refuses every trial of the others."""
    if not fields:
        parse(optimizers=[{"name": "sgdm", **changes}])
        return
    with pytest.raises(ValidationError) as caught:
        parse(optimizers=[{"name": "sgdm", **changes}])
    errors = caught.value.errors()
    assert [field_of(error["loc"]) for error in errors] == [f"optimizers.0.{field}" for field in fields]
    assert all("with nesterov = true" in error["msg"] for error in errors)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_what_a_definition_takes_torch_constructs(name: str) -> None:
    """The registry's rules are the constructors': every corner of every named space can be constructed."""
    from torch import nn

    from admeta.roles import create_for_model
    from search.placement import corners

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    for space in ("default", "finetune"):
        search = parse(optimizers=[{"name": name, "space": space}]).optimizers[0]
        for settings in corners(search):
            create_for_model(name, model, settings)


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        ({"searches": 2, "optimizers": [{"name": "sgd"}, {"name": "sgdm", "label": "sgd.2"}]}, "optimizers.1", "twice"),
        ({"searches": 10, "optimizers": [{"name": "sgd", "label": "s" * 98}]}, "optimizers.0", "100 characters"),
        ({"searches": 3, "confirm": {"seeds": [0, 102]}}, "training_seed", "102 is also a confirm seed"),
        ({"searches": 0}, "searches", "greater than or equal to 1"),
    ],
)
def test_what_repeated_searches_need(changes: dict[str, Any], field: str, rule: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse(**changes)
    (error,) = caught.value.errors()
    assert field_of(error["loc"]) == field
    assert rule in error["msg"]
