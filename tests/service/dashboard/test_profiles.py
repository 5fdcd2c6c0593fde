"""The page of optimizers across tasks, and GET /v1/profiles behind it."""

from __future__ import annotations

import csv
import io
import re

import pytest
from fastapi.testclient import TestClient

from admeta.client import Client, to_dataframe


def test_the_page_says_what_is_shown(pages: TestClient) -> None:
    text = pages.get("/profiles").text
    assert "2 optimizers on 2 tasks" in text
    assert "With 2 optimizers no order can be shown by fewer than 6 tasks." in text
    assert "adamw; admetar; admetas-no-lf (admetas)" in text  # left out
    assert 'aria-current="page">Across tasks' in text
    assert re.findall(r'data-of="(\w+)"', text) == ["by_time", "by_value"]


def test_the_filters_are_in_the_address(pages: TestClient) -> None:
    text = pages.get("/profiles?task=digits&tag=&time=steps&optimizer=admetar&optimizer=sgdm").text
    query = "task=digits&amp;optimizer=admetar&amp;optimizer=sgdm&amp;time=steps"
    assert f'data-source="/v1/profiles?{query}"' in text
    assert re.findall(r'value="(\w+)" checked', text) == ["admetar", "sgdm"]
    assert "<option selected>steps" in text
    assert "2 optimizers on 1 task<" in text
    assert "no profile by time" in pages.get("/profiles?study=cifar10-resnet110").text
    assert "Nothing to compare with these filters" in pages.get("/profiles?task=rte&tag=").text


def test_the_results_as_csv(pages: TestClient) -> None:
    rows = list(csv.DictReader(io.StringIO(pages.get("/profiles.csv?study=digits-four").text)))
    assert [row["optimizer"] for row in rows if row["rank"] == "1.0"] == ["admetar"]
    assert len(rows) == 4


def test_nothing_measured_says_what_to_do(api: TestClient) -> None:
    assert "Submit a study of two optimizers" in api.get("/profiles").text


@pytest.mark.parametrize(
    ("query", "status", "error", "part"),
    [
        ("study=nothing", 404, "study_not_found", "'nothing'"),
        ("optimizer=a&optimizer=b", 404, "no_result", "has an optimizer 'a'"),
        ("optimizer=admetar", 422, "invalid_query", "two optimizers or more"),
        ("recipe=0000", 404, "no_result", "begins with '0000'"),
        ("recipe=xyz", 422, "invalid_query", "recipe.0"),
        ("task=nothing", 422, "unknown_task", "'nothing'"),
        ("time=hours", 422, "invalid_query", "seconds"),
        ("model=x", 422, "invalid_query", "unknown parameter"),
    ],
)
def test_what_is_refused(pages: TestClient, query: str, status: int, error: str, part: str) -> None:
    answer = pages.get(f"/v1/profiles?{query}", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert part in answer.json()["detail"]
    shown = pages.get(f"/profiles?{query}")
    assert shown.status_code == status
    assert shown.headers["content-type"].startswith("text/html")


def test_by_the_client(address: str) -> None:
    pytest.importorskip("pandas")
    with Client(address) as client:
        found = client.profiles(studies=["digits-four"], optimizers=["admetar", "sgdm", "adamw"], time="steps")
    table = to_dataframe(found.results).set_index("optimizer")
    assert table["rank"].to_dict() == {"admetar": 1, "sgdm": 2, "adamw": 3}
    assert found.ranks.groups == [["admetar", "sgdm", "adamw"]]
    assert found.optimizers[0].by_time is not None
