"""POST /v1/recommend and the page on it."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from admeta.client import studyfile
from search.definition import StudyDefinition

JSON = {"Accept": "application/json"}


def test_a_recommendation_is_from_the_studies_of_the_task(pages: TestClient) -> None:
    found = pages.post("/v1/recommend", json={"task": "digits", "gpu_hours": 1.0}, headers=JSON).json()
    best = pages.get("/v1/best", params={"task": "digits", "optimizer": found["optimizer"]}, headers=JSON).json()
    assert found["source"] == "recipe"
    assert found["settings"] == best["settings"]
    assert found["candidates"][0]["validation"] == best["validation"]
    assert sum(one["probability"] or 0 for one in found["candidates"]) == pytest.approx(1)
    if found["plan"] is not None:
        checked = StudyDefinition.model_validate(found["plan"])
        assert checked.budget.gpu_hours is not None
        assert checked.budget.gpu_hours <= 1.0


@pytest.mark.parametrize(
    ("body", "error", "part"),
    [
        ({}, "invalid_query", "task"),
        ({"task": "nothing"}, "unknown_task", "'nothing'"),
        ({"task": "digits", "model": "resnet9000"}, "invalid_query", "resnet9000"),
        ({"task": "digits", "gpu_hours": -1}, "invalid_query", "gpu_hours"),
        ({"task": "digits", "gpu_hours": 1e300}, "invalid_query", "gpu_hours"),
        ({"task": "digits", "gpu_hours": "much"}, "invalid_query", "gpu_hours"),
        ({"task": "digits", "hours": 1}, "invalid_query", "hours"),
        ({"task": ["digits"]}, "invalid_query", "task"),
        ({"task": "image_folder", "model": None}, "invalid_query", "task.data_dir"),
        ({"task": {"name": "digits", "epochs": 0}}, "invalid_query", "task.epochs"),
        ({"task": {}}, "unknown_task", "''"),
    ],
)
def test_what_is_refused(pages: TestClient, body: dict[str, Any], error: str, part: str) -> None:
    answer = pages.post("/v1/recommend", json=body, headers=JSON)
    assert (answer.status_code, answer.json()["error"]) == (422, error)
    assert part in answer.text
    assert answer.json()["hint"]


@pytest.mark.parametrize(
    "task", ["digits", "cifar10", "cifar100", "cola", "gpt", "synthetic", "fsdd", "mrpc", "squad_v1"]
)
def test_every_task_has_an_answer(pages: TestClient, task: str) -> None:
    for hours in (0, 0.001, 1, 1000):
        answer = pages.post("/v1/recommend", json={"task": task, "gpu_hours": hours}, headers=JSON)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["plan"] is None) == (found["spend"] == "nothing")


def test_the_page_asks_and_answers(pages: TestClient) -> None:
    empty = pages.get("/recommend").text
    assert 'aria-current="page">Recommend' in empty
    assert 'name="gpu_hours"' in empty
    assert "<option>python" not in empty  # whose function the form cannot give
    assert "admeta recommend --task NAME --set FIELD=VALUE" in empty
    text = pages.get("/recommend?task=cifar100&model=&gpu_hours=2").text
    assert "<option selected>cifar100" in text
    assert "other recipes" in text
    plan = html.unescape(re.findall(r"<textarea[^>]*>(.*?)</textarea>", text, re.DOTALL)[0])
    StudyDefinition.model_validate(studyfile.parse(plan, source="the page"))
    assert '<form method="post" action="/submit">' in text
    assert "Now: " in pages.get("/recommend?task=digits&gpu_hours=0").text
    assert pages.get("/recommend?task=nothing").status_code == 422
    assert pages.get("/recommend?task=digits&gpu_hours=much").status_code == 422


def test_hours_that_are_left_empty_are_the_default_ones(pages: TestClient) -> None:
    empty = pages.get("/recommend", params={"task": "digits", "model": "", "gpu_hours": ""})
    assert empty.status_code == 200
    assert re.search(r'name="gpu_hours"[^>]*value="1.0"', empty.text)
    assert pages.get("/recommend", params={"task": "digits", "gpu_hours": "much"}).status_code == 422
