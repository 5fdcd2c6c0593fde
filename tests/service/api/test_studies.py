"""Studies over REST: submit, read, list, cancel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.settings import Settings
from tests.service.fakes import definition


def test_submit_then_read_by_id_and_by_name(api: TestClient) -> None:
    response = api.post("/v1/studies", json=definition())
    assert response.status_code == 201, response.text
    study = response.json()
    assert response.headers["Location"] == f"/v1/studies/{study['id']}"
    assert (study["name"], study["state"], study["metric"], study["direction"]) == (
        "first",
        "QUEUED",
        "val_score",
        "maximize",
    )
    assert [(s["label"], s["n_trials"], s["stage"]) for s in study["searches"]] == [
        ("admetar", 4, "search"),
        ("sgdm", 4, "search"),
    ]
    by_id = api.get(f"/v1/studies/{study['id']}").json()
    assert by_id == api.get("/v1/studies/first").json()
    assert by_id["definition"]["optimizers"][1]["space"].keys() >= {"lr"}


def test_the_answer_to_a_submission_says_what_the_study_can_show(api: TestClient) -> None:
    found = api.post("/v1/studies", json=definition()).json()["detectable"]
    assert found["difference"] > 0
    assert found["std"] is None
    assert "no earlier study of this recipe" in found["sentence"]
    assert api.get("/v1/studies/first").json()["detectable"] is None


def test_the_same_definition_again_is_the_same_study(api: TestClient) -> None:
    first = api.post("/v1/studies", json=definition()).json()
    again = api.post("/v1/studies", json=dict(reversed(definition().items())))
    assert again.status_code == 200
    assert again.json()["id"] == first["id"]
    assert len(api.get("/v1/studies").json()["items"]) == 1


def test_the_resolved_definition_submitted_again_is_the_same_study(api: TestClient) -> None:
    first = api.post("/v1/studies", json=definition()).json()
    resolved = api.get("/v1/studies/first").json()["definition"]
    again = api.post("/v1/studies", json=resolved)
    assert (again.status_code, again.json()["id"]) == (200, first["id"])


def test_another_definition_under_the_same_name_gets_409(api: TestClient) -> None:
    api.post("/v1/studies", json=definition())
    response = api.post("/v1/studies", json=definition(budget={"trials_per_optimizer": 5}))
    assert response.status_code == 409
    assert response.json()["error"] == "study_conflict"
    assert "'first' exists with another definition" in response.json()["detail"]


@pytest.mark.parametrize(
    "method_and_path", ["GET ", "GET /trials", "GET /comparison", "POST /cancel", "GET /trials/sgdm/0", "DELETE "]
)
@pytest.mark.parametrize(
    "study", ["unknown", "0123456789ab", "a%00b", "%ff", "x" * 600, "a%20b", "%F0%9F%92%A5", "'; --"]
)
def test_an_unknown_study_gets_404_with_a_hint(shared_api: TestClient, method_and_path: str, study: str) -> None:
    method, _, path = method_and_path.partition(" ")
    response = shared_api.request(method, f"/v1/studies/{study}{path}")
    assert response.status_code == 404, response.text
    assert response.json()["error"] == "study_not_found"
    assert "/v1/studies" in response.json()["hint"]


def test_cancel_once(api: TestClient) -> None:
    api.post("/v1/studies", json=definition())
    cancelled = api.post("/v1/studies/first/cancel")
    assert cancelled.status_code == 200
    assert cancelled.json()["state"] == "CANCELLED"
    again = api.post("/v1/studies/first/cancel")
    assert again.status_code == 409
    assert "'first' is CANCELLED" in again.json()["detail"]


def test_extend(api: TestClient) -> None:
    """Totals, so that the same request again changes nothing, an added optimizer included."""
    api.post("/v1/studies", json=definition())
    asked = {"trials": 6, "seeds": 4, "optimizers": ["adamw"], "limits": {"max_hours": 1.5}}
    refused = api.post("/v1/studies/first/extend", json=asked)
    assert (refused.status_code, refused.json()["error"]) == (409, "study_conflict")
    api.post("/v1/studies/first/cancel")
    made = api.post("/v1/studies/first/extend", json=asked)
    assert made.status_code == 200
    assert (made.json()["state"], len(made.json()["searches"])) == ("QUEUED", 3)
    assert made.json()["definition"]["budget"]["max_hours"] == 1.5
    (entry,) = made.json()["extensions"]
    assert (entry["by"], entry["request"]) == (None, asked)
    assert api.post("/v1/studies/first/extend", json=asked).json() == made.json()
    api.post("/v1/studies/first/cancel")
    assert len(api.post("/v1/studies/first/extend", json=asked).json()["extensions"]) == 2  # to go on with it


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"trials": 3}, 422, "trials"),
        ({"trials_of": {"sgd": 9}}, 422, "trials_of.sgd"),
        ({"seeds": 0}, 422, "seeds"),
        ({"limits": {"hours": 3}}, 422, "limits.hours"),
        ({"limits": {"max_hours": -1}}, 422, "budget.max_hours"),
        ({"optimizers": ["sgdm"]}, 422, "optimizers.2"),
        ({"optimizers": ["nope"]}, 422, "optimizers.2.name"),
        ({"optimizers": [3]}, 422, "optimizers.0"),
        ({"limits": {"max_hours": "2"}}, 422, "limits.max_hours"),
        ({"trials": "40"}, 422, "trials"),
        ({"n_trials": 40}, 422, "n_trials"),
        ({"trials": 100_000}, 422, "budget.trials_per_optimizer"),
    ],
)
def test_an_extension_keeps_the_rules(shared_api: TestClient, body: dict[str, object], status: int, field: str) -> None:
    shared_api.post("/v1/studies", json=definition("over"))
    shared_api.post("/v1/studies/over/cancel")
    response = shared_api.post("/v1/studies/over/extend", json=body)
    assert response.status_code == status
    assert [one["field"] for one in response.json()["fields"]] == [field]
    assert shared_api.get("/v1/studies/over").json()["extensions"] == []


def test_clone_with_changes(api: TestClient) -> None:
    first = api.post("/v1/studies", json=definition()).json()
    changes = {"budget": {"trials_per_optimizer": 9}, "confirm": None, "name": "ignored"}
    body = {"name": "second", "changes": changes}
    made = api.post("/v1/studies/first/clone", json=body)
    assert made.status_code == 201, made.text
    second = made.json()
    assert made.headers["Location"] == f"/v1/studies/{second['id']}"
    expected = {**first["definition"], "name": "second"}
    expected["budget"] = {**expected["budget"], "trials_per_optimizer": 9}
    assert second["definition"] == expected
    assert (second["state"], second["searches"][0]["n_trials"]) == ("QUEUED", 9)
    assert api.post("/v1/studies/first/clone", json=body).status_code == 200
    assert api.post(f"/v1/studies/{first['id']}/clone", json={"name": "third"}).status_code == 201


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"name": "first", "changes": {"priority": 3}}, 409, None),
        ({}, 422, "name"),
        ({"name": "b", "chnages": {}}, 422, "chnages"),
        ({"name": "b", "changes": []}, 422, "changes"),
        ({"name": "a b"}, 422, "name"),
        ({"name": "b", "changes": {"task": {"epochs": 0}}}, 422, "task.epochs"),
        ({"name": "b", "changes": {"optimizers": None}}, 422, "optimizers"),
    ],
)
def test_a_clone_keeps_the_rules(api: TestClient, body: dict[str, object], status: int, field: str | None) -> None:
    api.post("/v1/studies", json=definition())
    response = api.post("/v1/studies/first/clone", json=body)
    assert response.status_code == status, response.text
    assert [fault["field"] for fault in response.json().get("fields", [])] == ([field] if field else [])
    assert len(api.get("/v1/studies").json()["items"]) == 1


def test_delete_once_it_has_ended(api: TestClient, settings: Settings) -> None:
    study_id = api.post("/v1/studies", json=definition()).json()["id"]
    api.post("/v1/studies", json=definition("second"))
    refused = api.delete("/v1/studies/first")
    assert (refused.status_code, refused.json()["error"]) == (409, "study_conflict")
    assert "'first' is QUEUED" in refused.json()["detail"]
    api.post("/v1/studies/first/cancel")
    kept = Path(settings.storage) / "0123456789ab"
    for folder in (Path(settings.storage) / study_id / "sgdm", kept):
        folder.mkdir(parents=True)
        (folder / "checkpoint").touch()
    deleted = api.delete("/v1/studies/first")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert [folder.name for folder in Path(settings.storage).iterdir()] == [kept.name]
    assert api.delete("/v1/studies/first").status_code == 404
    assert [study["name"] for study in api.get("/v1/studies").json()["items"]] == ["second"]
    told = api.get("/v1/events", params={"after": 0, "follow": False}).text
    assert told.count("event: study.deleted") == 1


def test_pause_and_resume(api: TestClient) -> None:
    api.post("/v1/studies", json=definition())
    assert api.post("/v1/studies/first/pause").json()["state"] == "PAUSED"
    assert api.post("/v1/studies/first/pause").status_code == 409
    assert api.post("/v1/studies/first/resume").json()["state"] == "QUEUED"
    assert api.post("/v1/studies/first/resume").status_code == 409


def test_notes_and_tags_change_in_any_state(api: TestClient) -> None:
    api.post("/v1/studies", json=definition())
    changed = api.patch("/v1/studies/first", json={"notes": "lr too high", "tags": ["b", "a", "b"]})
    assert (changed.status_code, changed.json()["notes"], changed.json()["tags"]) == (200, "lr too high", ["a", "b"])
    api.post("/v1/studies/first/cancel")
    assert api.patch("/v1/studies/first", json={"tags": []}).json()["notes"] == "lr too high"
    assert api.get("/v1/studies/first").json()["tags"] == []
    assert api.patch("/v1/studies/nope", json={}).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tags": ["two words"]}, "tags.0"),
        ({"tags": "a"}, "tags"),
        ({"notes": 1}, "notes"),
        ({"notes": "x" * 10_001}, "notes"),
        ({"tags": ["a"] * 21}, "tags"),
        ({"name": "other"}, "name"),
    ],
)
def test_a_change_that_breaks_a_rule_names_its_field(shared_api: TestClient, body: dict[str, Any], field: str) -> None:
    shared_api.post("/v1/studies", json=definition())
    answer = shared_api.patch("/v1/studies/first", json=body)
    assert (answer.status_code, [one["field"] for one in answer.json()["fields"]]) == (422, [field])
    assert answer.json()["detail"]


def test_lists_are_filtered_and_paged(api: TestClient) -> None:
    for i in range(5):
        api.post("/v1/studies", json=definition(f"study-{i}"))
    api.post("/v1/studies/study-1/cancel")
    names, cursor = [], None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = api.get("/v1/studies", params=query).json()
        assert len(page["items"]) <= 2
        names += [study["name"] for study in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert names == [f"study-{i}" for i in reversed(range(5))]

    def listed(**query: str) -> list[str]:
        return [study["name"] for study in api.get("/v1/studies", params=query).json()["items"]]

    assert listed(state="CANCELLED") == ["study-1"]
    assert len(listed(task="synthetic", optimizer="sgdm")) == 5
    assert listed(task="digits") == []
    assert listed(optimizer="adamw") == []


@pytest.mark.parametrize(
    ("path", "field", "rule"),
    [
        ("/v1/studies?limit=0", "limit", "greater than or equal to 1"),
        ("/v1/studies?limit=501", "limit", "less than or equal to 500"),
        ("/v1/studies?limit=" + "9" * 5000, "limit", "integer"),
        ("/v1/studies?limit=x", "limit", "integer"),
        ("/v1/studies?state=DONE", "state", "'QUEUED'"),
        ("/v1/studies?stat=QUEUED", "stat", "did you mean 'state'?"),
        ("/v1/studies/first/trials?order=worst", "order", "'best'"),
        ("/v1/studies/first/trials/sgdm/-1", "number", "greater than or equal to 0"),
        ("/v1/studies/first/trials/sgdm/" + "9" * 30, "number", "less than"),
        ("/v1/best?task=digits", "optimizer", "is required"),
        ("/v1/best?task=digits&optimizer=sgdm&recipe=X", "recipe", "must match the pattern '^[0-9a-f]+$'"),
        ("/v1/best?task=digits&optimizer=sgdm&modle=x", "modle", "did you mean 'model'?"),
    ],
)
def test_bad_queries_name_the_parameter(shared_api: TestClient, path: str, field: str, rule: str) -> None:
    response = shared_api.get(path)
    assert response.status_code == 422, response.text
    assert response.json()["error"] == "invalid_query"
    (fault,) = response.json()["fields"]
    assert fault["field"] == field
    assert rule in fault["rule"]
    if rule == "is required":
        assert response.json()["detail"] == "optimizer is required"
        assert "value" not in fault


@pytest.mark.parametrize("cursor", ["x", "%00", "AAAA", "e30=", "W10=", "💥", "x" * 500, "bnVsbA=="])
@pytest.mark.parametrize("path", ["/v1/studies", "/v1/studies/first/trials"])
def test_a_made_up_cursor_gets_422(shared_api: TestClient, path: str, cursor: str) -> None:
    shared_api.post("/v1/studies", json=definition())
    response = shared_api.get(path, params={"cursor": cursor})
    assert response.status_code == 422, response.text
    assert response.json()["error"] == "invalid_cursor"


def test_weird_filters_find_nothing(api: TestClient) -> None:
    for text in ("\0", "💥", "' OR 1=1 --", "%"):
        response = api.get("/v1/studies", params={"task": text})
        assert (response.status_code, response.json()["items"]) == (200, []), response.text


def test_trials_and_comparison_of_a_study_that_has_not_begun(api: TestClient) -> None:
    api.post("/v1/studies", json=definition())
    assert api.get("/v1/studies/first/trials").json() == {"items": [], "next_cursor": None}
    comparison = api.get("/v1/studies/first/comparison").json()
    assert comparison["complete"] is False
    assert [row["label"] for row in comparison["rows"]] == ["admetar", "sgdm"]
    missing = api.get("/v1/studies/first/trials/sgdm/3")
    assert missing.status_code == 404
    assert "trial" in missing.json()["detail"]
    assert api.get("/v1/studies/first/trials/adamw/0").status_code == 404
