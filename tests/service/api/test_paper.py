"""The paper over REST: its tables with ours beside, its studies, and studies that begin with its best settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fastapi.testclient import TestClient

from search.definition import StudyDefinition
from search.paper import tables
from search.paper.comparison import paper_studies
from tests.service.fakes import definition

CIFAR: dict[str, Any] = {
    "task": {"name": "cifar10", "model": "resnet110"},
    "optimizers": [{"name": "admetar"}, {"name": "sgdm"}],
    "budget": {"trials_per_optimizer": 1},
}


def test_the_tables_are_the_papers(shared_api: TestClient) -> None:
    found = shared_api.get("/v1/paper/tables").json()
    assert [table["name"] for table in found] == list(tables.result_tables())
    studies = [name for table in found for name in table["studies"]]
    assert studies == list(paper_studies())
    assert all(table["n_ours"] == 0 for table in found)
    for table in found:
        view = shared_api.get(f"/v1/paper/tables/{table['name']}").json()
        layout = tables.result_tables()[table["name"]]
        numbers = [cell["paper"] for row in view["cells"] for cell in row if cell["paper"] is not None]
        assert len(numbers) == table["n_cells"] == len(tables.results(table=table["name"]))
        assert [row.tokens() for row in layout.rows] == [
            [cell["paper"]["text"] if cell["paper"] else "-" for cell in row] for row in view["cells"]
        ]


def test_an_unknown_table_or_study_is_told_with_the_known(shared_api: TestClient) -> None:
    for path, error, known in (
        ("tables/cifr", "paper_table_not_found", "known: cifar, glue"),
        ("studies/cola-bert", "paper_study_not_found", "did you mean 'cola-bert-base'?"),
    ):
        answer = shared_api.get(f"/v1/paper/{path}")
        assert answer.status_code == 404
        assert answer.json()["error"] == error
        assert known in answer.json()["detail"]
    assert shared_api.get("/v1/paper/studies/cola-bert-base?form=tiny").status_code == 422


def test_every_study_can_be_submitted_as_it_is_answered(api: TestClient) -> None:
    listed = api.get("/v1/paper/studies").json()
    assert [study["name"] for study in listed] == list(paper_studies())
    assert {study["name"]: study["after"] for study in listed if study["after"]} == {
        "cifar10-finetune": "cifar10-finetune-start"
    }
    for study in listed:
        assert study["definition"] is None
        for form in ("full", "smoke"):
            one = api.get(f"/v1/paper/studies/{study['name']}?form={form}").json()
            answer = api.post("/v1/studies", json=one["definition"])
            assert answer.status_code == 201
            assert answer.json()["name"] == one["study"] == f"paper-{study['name']}{'-smoke' * (form == 'smoke')}"
            assert api.post("/v1/studies", json=one["definition"]).status_code == 200
            n_runs = [search["n_trials"] + search["n_confirm_runs"] for search in answer.json()["searches"]]
            assert one["n_runs"] == sum(n_runs)


def test_a_study_begins_with_the_papers_best_on_request(api: TestClient) -> None:
    answer = api.post("/v1/studies?space=paper-best", json={**definition("seeded"), **CIFAR})
    assert answer.status_code == 201
    stored = StudyDefinition.model_validate(answer.json()["definition"])
    assert [search.first for search in stored.optimizers] == [[{"lr": 0.05, "lambd": 0.1}], [{"lr": 0.1}]]
    assert api.post("/v1/studies?space=paper-best", json={**definition("seeded"), **CIFAR}).status_code == 200
    assert api.post("/v1/studies", json=answer.json()["definition"]).status_code == 200
    assert api.post("/v1/studies", json={**definition("seeded"), **CIFAR}).status_code == 409


def test_a_space_of_ones_own_stays_and_begins_with_the_papers_best(api: TestClient) -> None:
    space = {"lr": {"type": "float", "low": 0.01, "high": 0.2}}
    own = {**CIFAR, "optimizers": [{"name": "sgdm", "space": space}, {"name": "admetar", "space": "paper"}]}
    found = api.post("/v1/studies?space=paper-best", json={**definition("own"), **own}).json()["definition"]
    assert [search["first"] for search in found["optimizers"]] == [[{"lr": 0.1}], [{"lr": 0.05, "lambd": 0.1}]]
    assert math.isclose(found["optimizers"][0]["space"]["lr"]["low"], 0.01)
    finetune = api.post("/v1/studies?space=finetune", json={**definition("finetune"), **own}).json()["definition"]
    assert finetune["optimizers"][0]["first"] == []
    assert finetune["optimizers"][0]["space"]["lr"]["low"] == 0.01


@pytest.mark.parametrize(
    ("space", "changes", "field", "rule"),
    [
        ("paper-best", {"task": {"name": "cifar10", "model": "resnet20"}}, "optimizers.0.space", "are resnet110,"),
        ("paper-best", {"optimizers": [{"name": "adamw"}]}, "optimizers.0.space", "it has settings of sgd, sgdm, adam"),
        ("papr", {}, "optimizers.0.space", "did you mean 'paper'?"),
    ],
)
def test_a_space_that_there_is_not(
    shared_api: TestClient, space: str, changes: dict[str, Any], field: str, rule: str
) -> None:
    answer = shared_api.post(f"/v1/studies?space={space}", json={**definition("refused"), **CIFAR, **changes})
    assert answer.status_code == 422
    assert rule in {found["field"]: found["rule"] for found in answer.json()["fields"]}[field]


def test_a_key_is_for_one_space(api: TestClient) -> None:
    key = {"Idempotency-Key": "once"}
    body = {**definition("keyed"), **CIFAR}
    assert api.post("/v1/studies?space=paper-best", json=body, headers=key).status_code == 201
    again = api.post("/v1/studies?space=paper-best", json=body, headers=key)
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (201, "true")
    assert api.post("/v1/studies", json=body, headers=key).status_code == 422
