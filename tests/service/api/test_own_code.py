"""Studies that name code: what the operator allows, and what the definition refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Quotas, Settings
from tests.service.fakes import ADDRESS, FakeSupervisor, definition

RUN = "my_module:train"


@pytest.fixture
def open_api(settings: Settings) -> Iterator[TestClient]:
    app = create_app(replace(settings, quotas=Quotas(allow_imports=("my_module",))), supervisor=FakeSupervisor())
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as client:
        yield client


def own(**changes: Any) -> dict[str, Any]:
    """A study of own code."""
    return definition(**{"task": {"name": "python", "run": RUN, "epochs": 3}, "objective": None, **changes})


def refusals(api: TestClient, study: dict[str, Any]) -> dict[str, str]:
    answer = api.post("/v1/studies", json=study)
    assert answer.status_code == 422, answer.text
    return {field["field"]: field["rule"] for field in answer.json()["fields"]}


def test_code_that_the_operator_does_not_allow_is_refused(api: TestClient) -> None:
    found = refusals(api, own())
    assert list(found) == ["task.run"]
    assert (
        "'my_module:train' is outside the packages that this service imports for studies, which are: torch.optim, "
        in (found["task.run"])
    )
    assert "admeta serve --allow-imports" in found["task.run"]


def test_a_clone_and_a_page_are_refused_too(api: TestClient, open_api: TestClient) -> None:
    assert open_api.post("/v1/studies", json=own()).status_code == 201
    changes = {"task": {"run": "other:train"}}
    clone = open_api.post("/v1/studies/first/clone", json={"name": "b", "changes": changes})
    assert clone.status_code == 422
    page = api.post(
        "/submit/check",
        data={"definition": f"name: a\ntask: {{name: python, run: '{RUN}'}}\noptimizers: [adamw]"},
        headers={"origin": ADDRESS},
    )
    assert "is outside the packages" in page.text


def test_a_study_of_allowed_code_is_taken(open_api: TestClient) -> None:
    answer = open_api.post("/v1/studies", json=own())
    assert answer.status_code == 201
    study = answer.json()
    assert (study["task"], study["model"]) == ("python", RUN)
    assert study["definition"]["objective"] == {"metric": "val_loss", "direction": "minimize"}
    again = open_api.post("/v1/studies", json={**study["definition"]})
    assert again.status_code == 200


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        ({"task": {"name": "python"}}, "task.run", "required"),
        ({"task": {"name": "python", "run": "my_module"}}, "task.run", "is not an import path"),
        ({"task": {"name": "python", "run": "my_module:a.b"}}, "task.run", "is not an import path"),
        ({"task": {"name": "python", "run": RUN, "precision": "bf16"}}, "task", "precision = bf16 is for the engine"),
        ({"task": {"name": "python", "run": RUN, "setings": {}}}, "task.setings", "settings"),
        ({"objective": {"metric": "word_error_rate"}}, "objective.direction", "required"),
        ({"objective": {"metric": "test_loss", "direction": "minimize"}}, "objective.metric", "validation selects"),
        ({"objective": {"metric": "a b", "direction": "minimize"}}, "objective.metric", "letters, digits"),
    ],
)
def test_what_a_definition_refuses(open_api: TestClient, changes: dict[str, Any], field: str, rule: str) -> None:
    found = refusals(open_api, own(**changes))
    assert list(found) == [field]
    assert rule in found[field]


def test_any_metric_may_be_the_objective(open_api: TestClient) -> None:
    objective = {"metric": "word_error_rate", "direction": "minimize"}
    study = open_api.post("/v1/studies", json=own(objective=objective)).json()
    assert study["definition"]["objective"] == objective
    assert not [warning for warning in study["warnings"] if "direction" in warning]
    assert open_api.get("/v1/studies/first/comparison").status_code == 200
    assert open_api.get(f"/studies/{study['id']}").status_code == 200
    assert "test_word_error_rate" in open_api.get("/v1/studies/first/export").text
    best = open_api.get("/v1/best", params={"task": "python", "optimizer": "adamw", "metric": "word_error_rate"})
    assert (best.status_code, best.json()["error"]) == (404, "no_result")


def test_optimizers_by_import_path_are_allowed_by_package(api: TestClient) -> None:
    lr = {"lr": {"type": "float", "low": 1e-4, "high": 1e-2}}
    roles = {"others": {"name": "other_package:Mine", "space": lr}}
    optimizers = [
        {"name": "torch.optim:NAdam", "space": lr},
        {"name": "my_module:Mine", "space": lr},
        {"name": "pytorch_optimizer:Lion", "space": lr, "roles": roles},
        {"name": "torch.optimized:NAdam", "space": lr, "label": "near"},
        {"name": "torch:Tensor", "space": lr},
    ]
    found = refusals(api, definition(optimizers=optimizers))
    assert sorted(found) == [
        "optimizers.1.name", "optimizers.2.roles.others.name", "optimizers.3.name", "optimizers.4.name",
    ]  # fmt: skip
    assert all("is outside the packages" in rule for rule in found.values())
    taken = api.post("/v1/studies", json=definition(optimizers=optimizers[:1]))
    assert taken.status_code == 201
    assert taken.json()["searches"][0]["label"] == "NAdam"
    best = api.get("/v1/best", params={"task": "synthetic", "optimizer": "torch.optim:NAdam"})
    assert (best.status_code, best.json()["error"]) == (404, "no_result")


@pytest.mark.parametrize("name", ["torch.optim:LBFGS", "a:b:c", "a:", "soap+muon", "+", "%2B".join(["adamw"] * 4000)])
def test_a_path_that_names_no_optimizer_is_not_found(api: TestClient, name: str) -> None:
    answer = api.get(f"/v1/optimizers/{name}")
    assert (answer.status_code, answer.json()["error"]) == (404, "unknown_optimizer")
