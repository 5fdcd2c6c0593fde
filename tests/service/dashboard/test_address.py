"""What is chosen on a page is in its address: it stays after a reload, after going back, and for another person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.service.dashboard.test_browser import drawn, until, visit

pytestmark = pytest.mark.browser
_HIDDEN = "[...document.querySelectorAll('.plot')].filter((box) => box.plot).map((box) => box.plot.series.slice(1)"
_HIDDEN += ".filter((one) => !one.show && one.class !== 'edge').map((one) => one.label))"


def seen(browser: Any, url: str, choose: Callable[[Any], None], look: Callable[[Any], Any]) -> tuple[Any, str]:
    """What a page shows after something was chosen, with its address.

    It must be the same when the page is reloaded, left and gone back to, and opened by its link in another browser.
    """
    with visit(browser, url) as page:
        drawn(page)
        choose(page)
        found, link = look(page), page.url
        page.reload()
        drawn(page)
        assert look(page) == found, "reloaded"
        page.get_by_role("link", name="Cluster").click()
        page.get_by_role("heading", name="Cluster", exact=True).wait_for()
        page.go_back()
        drawn(page)
        assert look(page) == found, "gone back"
    with visit(browser, link) as page:
        drawn(page)
        assert look(page) == found, "in another browser"
    return found, urlsplit(link).query


def values(*selectors: str) -> Callable[[Any], list[Any]]:
    return lambda page: [page.locator(one).input_value() for one in selectors]


def test_the_curves_of_a_study(browser: Any, address: str) -> None:
    form = "[data-chart=curves] "

    def choose(page: Any) -> None:
        page.locator(form + "[name=axis]").select_option("seconds")
        page.locator(form + "[name=metric]").select_option("val_loss")
        page.locator(form + "[name=log]").check()
        until(page, "document.querySelector('[data-chart=curves] .plot').plot.axes[1].label === 'val_loss'")
        page.locator(form + ".u-legend th", has_text="sgdm").click()

    def look(page: Any) -> list[Any]:
        page.locator(form + ".u-legend .u-off", has_text="sgdm").wait_for()
        drawn = page.evaluate(
            "(({ plot }) => [plot.axes[0].label, plot.axes[1].label, plot.scales.y.distr])"
            "(document.querySelector('[data-chart=curves] .plot'))"
        )
        return [*drawn, page.evaluate(_HIDDEN), *values(form + "[name=axis]", form + "[name=metric]")(page)]

    found, query = seen(browser, f"{address}/studies/digits-four", choose, look)
    hidden = [["sgdm (3)"], ["sgdm"], ["sgdm"], ["sgdm (3/3)"]]
    assert found == ["seconds", "val_loss", 3, hidden, "seconds", "val_loss"]
    assert parse_qs(query) == {
        "curves.axis": ["seconds"],
        "curves.metric": ["val_loss"],
        "curves.log": ["on"],
        "hide": ["sgdm"],
    }


def test_a_metric_that_is_not_there_is_the_objective(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four?curves.metric=gone") as page:
        drawn(page)
        metric = page.locator("[data-chart=curves] [name=metric]")
        assert (metric.input_value(), metric.locator("option").count()) == ("val_accuracy", 3)


def test_a_curve_is_shown_again(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four?hide=sgdm&hide=adamw&curves.axis=step") as page:
        page.locator("[data-chart=expected] .u-legend .u-off", has_text="sgdm").locator("th").click()
        page.locator("[data-chart=curves] [name=axis]").select_option("epoch")
        assert urlsplit(page.url).query == "hide=adamw"
        drawn(page)
        assert page.evaluate(_HIDDEN) == [["adamw (3)"], ["adamw"], ["adamw"], ["adamw (3/3)"]]
        page.locator("[data-chart=curves] .u-legend .u-off", has_text="adamw").wait_for()


def test_a_search(browser: Any, address: str) -> None:
    def choose(page: Any) -> None:
        page.locator("#trial-filters [name=state]").select_option("COMPLETE")
        page.locator("#trial-filters [name=where]").fill("lr < 0.01")
        page.locator("button.sort", has_text="lambd").click()
        page.locator("button.sort", has_text="lambd").click()
        page.locator("[data-part=scatter] [name=x]").select_option("lambd")
        page.locator("[data-part=scatter] [name=y]").select_option(label="value of val_accuracy")
        page.locator("[data-part=history] .u-legend th", has_text="pruned").click()

    def look(page: Any) -> list[Any]:
        page.locator("[data-part=scatter] svg", has_text="lambd").wait_for()
        return [
            page.locator("#trial-table tbody tr").all_inner_texts(),
            page.locator("#trial-table [aria-sort]").inner_text(),
            page.locator("#trial-table [aria-sort]").get_attribute("aria-sort"),
            page.evaluate(_HIDDEN),
            *values("[name=state]", "[name=where]", "[name=x]", "[name=y]")(page),
        ]

    found, query = seen(browser, f"{address}/studies/digits-four/searches/admetar", choose, look)
    assert 1 < len(found[0]) < 12
    assert found[1:] == ["lambd", "descending", [["pruned"]], "COMPLETE", "lr < 0.01", "lambd", ""]
    assert "sort=-lambd" in query


def test_a_trial(browser: Any, address: str) -> None:
    def choose(page: Any) -> None:
        page.locator("[data-chart=runs] [name=metric]").select_option("train_loss")
        page.locator("[data-log] [name=run]").select_option(index=2)
        page.locator("[data-chart=runs] .u-legend th", has_text="confirm, seed 0").click()

    def look(page: Any) -> list[Any]:
        page.locator("pre.log", has_text="epoch 12").wait_for()
        page.locator("[data-chart=runs] .u-legend .u-off").wait_for()
        chosen = page.locator("[data-log] [name=run]").evaluate("node => node.selectedIndex")
        names = page.locator("[data-chart=runs] [name=metric] option").all_inner_texts()
        return [chosen, sorted(names), page.evaluate(_HIDDEN), *values("[data-chart=runs] [name=metric]")(page)]

    found, _ = seen(browser, f"{address}/studies/digits-four/trials/admetar/7", choose, look)
    names = ["train_loss", "val_accuracy", "val_loss"]
    assert found == [2, names, [["confirm, seed 0"]], "train_loss"]


def test_the_list_of_studies(browser: Any, address: str) -> None:
    def choose(page: Any) -> None:
        page.get_by_label("State").select_option("COMPLETED")
        page.wait_for_url("**state=COMPLETED**")
        page.get_by_label("Name").fill("four")
        page.wait_for_url("**q=four**")

    def look(page: Any) -> list[Any]:
        return [page.locator(".study h2").all_inner_texts(), *values("[name=q]", "[name=state]")(page)]

    found, _ = seen(browser, f"{address}/", choose, look)
    assert found == [["digits-four"], "four", "COMPLETED"]


def test_back_undoes_a_filter_of_the_list(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/") as page:
        n = page.locator(".study").count()
        page.get_by_label("State").select_option("FAILED")
        page.wait_for_url("**state=FAILED**")
        page.locator(".study h2", has_text="digits-four").wait_for(state="detached")
        page.go_back()
        page.locator(".study h2", has_text="digits-four").wait_for()
        assert page.locator(".study").count() == n
        assert page.get_by_label("State").input_value() == ""


def test_the_explorer(browser: Any, address: str) -> None:
    def choose(page: Any) -> None:
        page.locator("[name=lr]").fill("0.03")
        page.wait_for_url("**lr=0.03**")
        page.locator("[data-plot=loss] .u-legend th", has_text="SGDM").click()
        page.locator("[name=k]").fill("7")
        page.wait_for_url("**k=7**")
        drawn(page)

    def look(page: Any) -> list[Any]:
        page.locator("[data-plot=loss] .u-legend .u-off", has_text="SGDM").wait_for()
        return values("[name=lr]", "[name=k]")(page)

    found, query = seen(browser, f"{address}/explorer?n_steps=20", choose, look)
    assert found == ["0.03", "7"]
    assert "hide=SGDM" in query
