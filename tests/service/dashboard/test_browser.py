"""Every page in Chromium: draws, fits 390 px, complains of nothing, asks nobody else, and follows a live study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from search.records import StudyState
from service.database import SqlStore
from service.database.engine import make_engine
from tests.service.dashboard.test_pages import PAGES
from tests.service.database.fill import definition, leased
from tests.service.fakes import settings_in

pytestmark = pytest.mark.browser


@contextmanager
def visit(browser: Any, url: str, *, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """A page, watched: at the end nothing may have gone wrong, and no request may have left."""
    problems: list[str] = []
    asked: set[str] = set()
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
    page.goto(url)
    yield page
    context.close()
    assert problems == []
    assert asked <= {urlsplit(url).netloc, ""}  # "": data:, the empty icon


@pytest.mark.parametrize("path", PAGES)
def test_a_page_draws_and_fits(browser: Any, address: str, path: str) -> None:
    for width, scheme in ((1280, "light"), (390, "dark")):
        with visit(browser, address + path, width=width, scheme=scheme) as page:
            page.locator(".plot:empty").first.wait_for(state="detached")
            page.get_by_text("Loading…").first.wait_for(state="detached")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            unnamed = "[...document.querySelectorAll('select, input')].filter(one => !one.labels.length).length"
            assert page.evaluate(unnamed) == 0


def test_the_plots_of_a_study_follow_their_controls(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four") as page:
        page.wait_for_selector("[data-chart=curves] canvas")
        page.wait_for_selector("[data-chart=expected] canvas")
        page.locator("[name=axis]").select_option("seconds")
        page.locator("[name=runs]").select_option("all")
        page.locator("[name=metric]").select_option("val_loss")
        page.get_by_text("admetar (12)").wait_for()
        assert "metric=val_loss" in page.locator("[data-csv]").get_attribute("href")


def test_a_search_draws_its_trials(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four/searches/admetar") as page:
        page.wait_for_selector("[data-part=history] canvas")
        assert page.locator("[data-part=scatter] circle").count() == 16
        assert page.locator("[data-part=parallel] polyline").count() == 12
        best = page.locator("[data-part=scatter] svg a").last
        assert best.get_attribute("href").endswith("/trials/admetar/7")
        best.press("Enter")
        page.get_by_role("heading", name="Trial 7").wait_for()


def test_a_study_is_followed(browser: Any, address: str, filled_home: Path) -> None:
    engine = make_engine(settings_in(filled_home).database_url)
    store = SqlStore(engine)
    lease, _ = leased(store, definition("followed"))
    with visit(browser, f"{address}/studies/followed") as page:
        page.get_by_text("live", exact=True).wait_for()
        store.set_study_state(lease, StudyState.COMPLETED)
        page.locator(".title .state-completed").wait_for()
    engine.dispose()
