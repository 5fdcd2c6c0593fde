"""What bad input gets: 422 that names the field, the value and the rule; and no study left behind."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.service.fakes import definition

FLOAT = {"type": "float", "low": 0.01, "high": 0.1}


def space(**parameters: Any) -> dict[str, Any]:
    return {"optimizers": [{"name": "admetar", "space": parameters}]}


CASES: list[tuple[dict[str, Any], str, Any, str]] = [
    # what is changed, the field, its value (... any), a part of the rule
    ({"task": {"name": "synthetik"}}, "task.name", "synthetik", "Did you mean 'synthetic'?"),
    ({"task": {"name": "synthetic", "model": "quadratik"}}, "task.model", "quadratik", "Did you mean 'quadratic'?"),
    ({"task": {"name": "synthetic", "epoch": 3}}, "task.epoch", 3, "did you mean 'epochs'?"),
    ({"task": {"name": "synthetic", "epochs": 0}}, "task.epochs", 0, "must be greater than or equal to 1"),
    ({"task": {}}, "task.name", None, "known tasks"),
    ({"task": ["synthetic"]}, "task", ["synthetic"], "must be a task's name, or an object"),
    ({"optimizers": [{"name": "admeta"}]}, "optimizers.0.name", "admeta", "did you mean 'admeta"),
    ({"optimizers": []}, "optimizers", [], "at least 1"),
    ({"optimizers": [{}]}, "optimizers.0.name", None, "is required"),
    ({"optimizers": [{"name": "sgdm"}, {"name": "sgdm"}]}, ..., ..., "listed twice"),
    ({"optimizers": [{"name": "sgdm", "label": "a/b"}]}, "optimizers.0.label", "a/b", "letters, digits"),
    ({"sampler": {"name": "tpee"}}, "sampler.name", "tpee", "did you mean 'tpe'?"),
    ({"sampler": {"name": "tpe", "sed": 1}}, "sampler.sed", 1, "did you mean 'seed'?"),
    ({"sampler": ["tpe"]}, "sampler", ["tpe"], "must be an object"),
    ({"sampler": "tpee"}, "sampler.name", "tpee", "did you mean 'tpe'?"),
    ({"optimizers": ["admetarr"]}, "optimizers.0.name", "admetarr", "did you mean 'admetar'?"),
    ({"sampler": {"name": "grid"}}, ..., ..., "grid needs a step or choices"),
    ({"pruner": {"name": "ash"}}, "pruner.name", "ash", "did you mean 'asha'?"),
    (space(lamda=FLOAT), "optimizers.0.space.lamda", FLOAT, "Did you mean 'lambd'?"),
    (space(lr={**FLOAT, "low": 0.2}), "optimizers.0.space.lr", ..., "low = 0.2 must be less than high = 0.1"),
    (space(lr={**FLOAT, "low": 0, "log": True}), "optimizers.0.space.lr", ..., "greater than 0 on a log scale"),
    (space(lr={**FLOAT, "type": "flot"}), "optimizers.0.space.lr.type", "flot", "did you mean 'float'?"),
    (space(lr={"low": 1, "high": 2}), "optimizers.0.space.lr.type", None, "is required"),
    (space(lr={**FLOAT, "hi": 1}), "optimizers.0.space.lr.hi", 1, "unknown field"),
    (space(lr={"type": "categorical", "choices": []}), "optimizers.0.space.lr.choices", [], "at least 1"),
    (space(k={"type": "categorical", "choices": [1, 1.0]}), "optimizers.0.space.k.choices", [1, 1.0], "are equal"),
    (space(k={"type": "categorical", "choices": [1, True]}), "optimizers.0.space.k.choices", ..., "are equal"),
    (space(lambd={**FLOAT, "high": 1.0}), "optimizers.0.space.lambd", ..., "(0, 1)"),
    (space(lambd={**FLOAT, "low": 0.0}), "optimizers.0.space.lambd", ..., "(0, 1)"),
    (space(), "optimizers.0.space", {}, "is empty"),
    (space(lr={**FLOAT, "when": {"k": 5}}), "optimizers.0.space", ..., "depends on 'k'"),
    ({"optimizers": [{"name": "admetar", "space": "papr"}]}, "optimizers.0.space", "papr", "did you mean 'paper'?"),
    ({"optimizers": [{"name": "admetar", "fixed": {"lambd": 1.5}}]}, "optimizers.0.fixed.lambd", 1.5, "(0, 1)"),
    (
        {"optimizers": [{"name": "sgdm", "space": {"lr": FLOAT}, "fixed": {"lr": 0.1}}]},
        "optimizers.0.fixed.lr",
        0.1,
        "in both 'space' and 'fixed'",
    ),
    ({"recipe": {"schedule.warmpu": FLOAT}}, "recipe.schedule.warmpu", FLOAT, "did you mean 'schedule.warmup'?"),
    ({"recipe": {"schedule.warmup": {**FLOAT, "hgh": 1}}}, "recipe.schedule.warmup.hgh", 1, "did you mean 'high'?"),
    ({"recipe": {"schedule.warmup": {**FLOAT, "high": 1.5}}}, "recipe.schedule.warmup", ..., "must be less than 1"),
    (
        {"optimizers": [{"name": "sgdm", "recipe": {"schedule.warmup": 0.1}}]},
        "optimizers.0.recipe.schedule.warmup",
        0.1,
        "must be a parameter",
    ),
    ({"budget": {"trials_per_optimizer": 0}}, "budget.trials_per_optimizer", 0, "greater than or equal to 1"),
    ({"budget": {"trials_per_optimizer": -3}}, "budget.trials_per_optimizer", -3, "greater than or equal to 1"),
    ({"budget": {"max_hours": 0}}, "budget.max_hours", 0, "greater than 0"),
    ({"objectives": ["flops"]}, "objectives.0.metric", "flops", "is neither a metric"),
    ({"objectives": ["train_s", "train_s"]}, "objectives.1.metric", "train_s", "is an objective already"),
    ({"resources": {"gpus": "two"}}, "resources.gpus", "two", "must be a valid number or 'auto'"),
    ({"name": ""}, "name", "", "1 to 100 letters, digits"),
    ({"name": "a b"}, "name", "a b", "1 to 100 letters, digits"),
    ({"name": "x" * 101}, "name", "x" * 101, "1 to 100 letters, digits"),
    ({"name": "digits\n"}, "name", "digits\n", "1 to 100 letters, digits"),
    ({"name": "../up"}, "name", "../up", "1 to 100 letters, digits"),
    ({"optimizer": []}, "optimizer", [], "did you mean 'optimizers'?"),
    ({"objective": {"metric": "val_scor"}}, ..., ..., "did you mean 'val_score'?"),
    ({"confirm": {"seeds": [1, 1]}}, "confirm.seeds", [1, 1], "not all different"),
    ({"resources": {"gpus": 1.5}}, "resources.gpus", 1.5, "at most 1 or a whole number"),
    ({"max_concurrent_trials": 0}, "max_concurrent_trials", 0, "greater than or equal to 1"),
]


@pytest.mark.parametrize(("changes", "field", "value", "rule"), CASES, ids=[str(case[0])[:70] for case in CASES])
def test_a_broken_rule_is_named(
    shared_api: TestClient, changes: dict[str, Any], field: Any, value: Any, rule: str
) -> None:
    response = shared_api.post("/v1/studies", json=definition(**changes))

    assert response.status_code == 422, response.text
    answer = response.json()
    assert answer["error"] == "invalid_definition"
    assert answer["hint"]
    fault = next((f for f in answer["fields"] if rule in f["rule"]), None)
    assert fault is not None, answer["fields"]
    assert field is ... or fault["field"] == field
    assert value is ... or fault.get("value") == value
    assert fault["field"] in answer["detail"]
    assert rule in answer["detail"]
    assert shared_api.get("/v1/studies").json()["items"] == []


@pytest.mark.parametrize("name", ["task", "optimizers", "name"])
def test_missing_fields_are_named(shared_api: TestClient, name: str) -> None:
    body = definition()
    del body[name]
    fields = shared_api.post("/v1/studies", json=body).json()["fields"]
    assert [field["field"] for field in fields] == [name]


RAW_NUMBERS = [
    ("NaN", "nan", "finite"),
    ("Infinity", "inf", "finite"),
    ("-Infinity", "-inf", "finite"),
    ("1e999", "inf", "finite"),
    ("1" * 5000, "1" * 119 + "…", "64 bits"),
    ("9223372036854775808", "9223372036854775808", "64 bits"),
]


@pytest.mark.parametrize(("token", "value", "rule"), RAW_NUMBERS, ids=[t[:12] for t, _, _ in RAW_NUMBERS])
@pytest.mark.parametrize("place", ["low", "choice", "seed", "fixed", "objective"])
def test_numbers_that_json_or_sql_cannot_hold(
    shared_api: TestClient, token: str, value: str, rule: str, place: str
) -> None:
    bodies = {
        "low": ('"optimizers": [{"name": "sgdm", "space": {"lr": {"type": "float", "low": %s, "high": 1}}}]',
                "optimizers.0.space.lr.low"),
        "choice": ('"optimizers": [{"name": "sgdm", "space": {"lr": {"type": "categorical", "choices": [0.1, %s]}}}]',
                   "optimizers.0.space.lr.choices.1"),
        "seed": ('"sampler": {"name": "tpe", "seed": %s}', "sampler.seed"),
        "fixed": ('"optimizers": [{"name": "sgdm", "fixed": {"momentum": [%s]}}]', "optimizers.0.fixed.momentum.0"),
        "objective": ('"budget": {"target": %s}', "budget.target"),
    }  # fmt: skip
    part, field = bodies[place]
    body = '{"name": "x", "task": {"name": "synthetic"}, ' + part % token + "}"
    response = shared_api.post("/v1/studies", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422, response.text
    (fault,) = response.json()["fields"]
    assert (fault["field"], fault["value"]) == (field, value)
    assert rule in fault["rule"]


@pytest.mark.parametrize("text", ["\\u0000", "a\\ud800b", "\\udfff"])
@pytest.mark.parametrize("place", ['"description": "%s"', '"%s": 1', '"optimizers": [{"name": "%s"}]'])
def test_text_that_a_database_cannot_hold(shared_api: TestClient, text: str, place: str) -> None:
    body = '{"name": "x", "task": {"name": "synthetic"}, ' + place % text + "}"
    response = shared_api.post("/v1/studies", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422, response.text
    assert "Unicode" in response.json()["detail"]


def test_a_wide_definition_is_answered_with_few_faults(shared_api: TestClient) -> None:
    response = shared_api.post("/v1/studies", json=definition(optimizers=[{"name": f"o{i}"} for i in range(90)]))
    assert response.status_code == 422
    assert len(response.json()["fields"]) == 20
