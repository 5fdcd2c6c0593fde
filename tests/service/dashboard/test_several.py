"""Studies side by side: chosen in the list, shown on one page."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from admeta.client.models import StudiesComparisonView
from service.app import create_app
from service.database import SqlStore
from service.database.engine import make_engine
from service.settings import Settings
from tests.service.dashboard.test_address import seen
from tests.service.dashboard.test_browser import drawn, until, visit
from tests.service.database.test_several import HIGH, LOW, confirmed
from tests.service.fakes import ADDRESS, FakeSupervisor


def test_the_page_tells_verdicts_and_differences(settings: Settings) -> None:
    engine = make_engine(settings.database_url)
    store = SqlStore(engine)
    confirmed(store, "first", HIGH, LOW)
    confirmed(store, "second", LOW, LOW, sampler={"name": "random"})
    engine.dispose()
    with TestClient(create_app(settings, supervisor=FakeSupervisor()), base_url=ADDRESS) as client:
        text = client.get("/compare?study=first&study=second").text
        view = StudiesComparisonView.model_validate(client.get("/v1/comparison?study=first&study=second").json())
        rows = client.get("/compare/curves.csv?study=first&study=second").text.splitlines()
    assert "first/admetar is better than second/admetar by 0.06" in text
    assert "0.9800 ± 0.0100" in text
    assert "<code>sampler.name</code>" in text
    assert view.no_verdicts is None
    assert rows[0] == "label,runs,epoch,low,median,high"


def test_what_cannot_be_compared_is_told(pages: TestClient) -> None:
    text = pages.get("/compare?study=digits-four&study=cifar10-resnet110").text
    assert "not of one recipe (task with its settings, data and objective): task, model" in text
    assert " is better than " not in text
    for studies in (
        "",
        "?study=running",
        "?study=running&study=running",
        "?" + "&".join(f"study={i}" for i in range(9)),
    ):
        answer = pages.get(f"/compare{studies}")
        assert answer.status_code == 422
        assert "by the boxes before their names" in answer.text
    assert pages.get("/compare?study=running&study=absent").status_code == 404
    assert pages.get("/v1/comparison?study=running").status_code == 422


def test_a_study_is_not_compared_with_itself(pages: TestClient) -> None:
    study = pages.get("/v1/studies/running").json()["id"]
    for place in ("/compare", "/compare/curves.json", "/v1/comparison"):
        for other in ("running", study):
            answer = pages.get(f"{place}?study=running&study={other}", headers={"Accept": "application/json"})
            assert (answer.status_code, answer.json()["error"]) == (422, "studies_to_compare")
            assert answer.json()["detail"].startswith("1 studies are chosen")


def test_what_is_chosen_stays_where_a_filter_hides_it(pages: TestClient) -> None:
    ids = {name: pages.get(f"/v1/studies/{name}").json()["id"] for name in ("running", "digits-four")}
    text = pages.get(f"/?q=four&study={ids['running']}&study={ids['digits-four']}&study=gone").text
    assert re.findall(r'value="(\w+)" aria-label="Compare ([\w-]+)" checked', text) == [
        (ids["running"], "running"),
        (ids["digits-four"], "digits-four"),
    ]


def test_the_curves_are_those_of_the_best(pages: TestClient) -> None:
    of = "study=digits-four&study=running"
    found = pages.get(f"/compare/curves.json?{of}").json()
    alone = pages.get("/studies/digits-four/curves.json").json()
    assert [(one["label"], one["n_runs"]) for one in found["series"]] == [("digits-four", 3), ("running", 1)]
    assert found["series"][0]["median"][:12] == alone["series"][0]["median"]
    assert found["metric"] == "val_accuracy"
    loss = pages.get(f"/compare/curves.json?{of}&metric=val_loss&axis=seconds").json()
    assert (loss["metric"], loss["axis"]) == ("val_loss", "seconds")
    accuracy = pages.get(f"/compare/curves.json?{of}&axis=seconds").json()["series"][0]["median"]
    wanted = [None if value is None else pytest.approx(2 * (1 - value)) for value in accuracy]  # as the tests fill it
    assert loss["series"][0]["median"] == wanted


@pytest.mark.browser
def test_studies_are_chosen_in_the_list(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/") as page:
        page.get_by_label("Compare digits-four").check()
        page.get_by_label("Compare running").check()
        page.reload()
        assert page.get_by_label("Compare running").is_checked()
        page.get_by_label("Optimizer").select_option("sgdm")
        page.wait_for_url("**optimizer=sgdm**")
        page.get_by_role("button", name="Compare the chosen").click()
        page.get_by_role("heading", name="2 studies side by side").wait_for()
        assert len(parse_qs(urlsplit(page.url).query)["study"]) == 2
        drawn(page)
        series = page.evaluate("document.querySelector('.plot').plot.series.map((one) => [one.label, one.class])")
        assert [label for label, kind in series[1:] if kind != "edge"] == ["running (1)", "digits-four (3)"]


@pytest.mark.browser
def test_studies_are_chosen_through_several_filters(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/") as page:
        page.get_by_label("Compare running").check()
        page.get_by_label("Name").fill("four")
        page.wait_for_url("**q=four**")
        page.locator(".study h2", has_text="running").wait_for(state="detached")
        page.get_by_label("Compare digits-four").check()
        assert page.get_by_label("Compare running").is_checked()
        page.get_by_role("button", name="Compare the chosen").click()
        page.get_by_role("heading", name="2 studies side by side").wait_for()


@pytest.mark.browser
def test_what_is_chosen_on_the_page_stays(browser: Any, address: str) -> None:
    def choose(page: Any) -> None:
        page.locator("[name=axis]").select_option("seconds")
        page.locator("[name=metric]").select_option("val_loss")
        until(page, "document.querySelector('.plot').plot.axes[1].label === 'val_loss'")
        page.locator(".u-legend th", has_text="running").click()

    def look(page: Any) -> list[Any]:
        page.locator(".u-legend .u-off", has_text="running").wait_for()
        return page.evaluate(
            "(({ plot }) => [plot.axes[0].label, plot.axes[1].label])(document.querySelector('.plot'))"
        )

    found, query = seen(browser, f"{address}/compare?study=digits-four&study=running", choose, look)
    assert found == ["seconds", "val_loss"]
    assert query.startswith("study=digits-four&study=running&")
