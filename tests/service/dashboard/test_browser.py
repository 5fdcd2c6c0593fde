"""Every page in Chromium: draws, fits 390 px, complains of nothing, asks nobody else, and follows a live study."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from search.states import Scope, StudyState
from service.database import SqlStore
from service.database.engine import make_engine
from service.database.tokens import create_token
from tests.machine import PATIENCE_S, wait_until
from tests.service.dashboard.test_pages import PAGES
from tests.service.database.fill import definition, leased
from tests.service.fakes import live, settings_in

pytestmark = pytest.mark.browser
TOLD_TWICE = {"/studies/digits-four/trials/admetar/7", "/studies/waiting", "/studies/broken"}
"""Pages of which another one like them is looked at."""


@contextmanager
def visit(browser: Any, url: str, *, width: int = 1280, scheme: str = "light", missing: bool = False) -> Iterator[Any]:
    """A page, watched: at the end nothing may have gone wrong, and no request may have left.

    Args:
        missing: the page itself is an error's, which a browser tells on its console.
    """
    problems: list[str] = []
    asked: set[str] = set()
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE_S)  # the explorer's first answer waits for torch
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
    page.goto(url)
    if missing:
        problems.clear()
    yield page
    context.close()
    assert problems == []
    assert asked <= {urlsplit(url).netloc, ""}  # "": data:, the empty icon


@cache
def axe() -> str:
    """axe-core's script, from the package that brings it."""
    pytest.importorskip(
        "axe_playwright_python", reason="axe-core comes with the package axe-playwright-python (extra dev)"
    )
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def faults(page: Any) -> list[str]:
    """What axe-core finds serious or critical, with the element at fault."""
    page.evaluate(axe())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{fault['id']}: {node['html'][:160]}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


def drawn(page: Any) -> None:
    """Wait until nothing is left to load."""
    page.locator(".plot:empty").first.wait_for(state="detached")
    page.get_by_text("Loading…").first.wait_for(state="detached")
    page.locator(".fate", has_text="…").first.wait_for(state="detached")


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true; the pages' policy forbids Playwright's own `wait_for_function`."""
    wait_until(lambda: page.evaluate(expression), what=expression, poll_s=0.1)


def comes(page: Any, condition: Callable[[], bool], *, what: str) -> None:
    """Wait until a condition is true, while the page's events are taken in."""

    def holds() -> bool:
        page.wait_for_timeout(50)
        return condition()

    wait_until(holds, what=what, poll_s=0.0)


@pytest.mark.parametrize("path", [*sorted({*PAGES} - TOLD_TWICE), "/nowhere", "/docs"])
def test_a_page_draws_fits_and_can_be_used_by_all(browser: Any, address: str, path: str) -> None:
    with visit(browser, address + path, missing=path == "/nowhere") as page:
        drawn(page)
        until(page, "document.documentElement.scrollWidth <= 1280")
        assert faults(page) == []
        page.set_viewport_size({"width": 390, "height": 844})
        page.emulate_media(color_scheme="dark")
        drawn(page)
        until(page, "document.documentElement.scrollWidth <= 390")
        assert faults(page) == []


def test_the_plots_of_a_study_follow_their_controls(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four") as page:
        page.wait_for_selector("[data-chart=curves] canvas")
        page.wait_for_selector("[data-chart=expected] canvas")
        page.locator("[name=axis]").select_option("seconds")
        page.locator("[name=runs]").select_option("all")
        page.locator("[name=metric]").select_option("val_loss")
        page.get_by_text("admetar (12)").wait_for()
        assert "metric=val_loss" in page.locator("[data-chart=curves] [data-csv]").get_attribute("href")


def test_the_filters_of_the_profiles_choose_and_stay_in_the_address(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/profiles?study=digits-four") as page:
        page.wait_for_selector("[data-chart=ranks] circle")
        assert page.locator("[data-chart=ranks] circle").count() == 4
        page.locator("summary", has_text="Optimizers").click()
        for name in ("admetar", "sgdm"):
            page.get_by_label(name, exact=True).check()
        page.locator("[name=time]").select_option("steps")
        page.get_by_role("button", name="Show").click()
        page.get_by_role("heading", name="2 optimizers on 1 task").wait_for()
        page.wait_for_selector("[data-of=by_time] canvas")
        assert "optimizer=admetar&optimizer=sgdm" in page.url
        rho = "document.querySelector('[data-of=by_time] .plot').plot.data.slice(1).map((ys) => ys.at(-1))"
        assert page.evaluate(rho) == [1, 1]


def test_figures_of_one_address_share_the_answer(browser: Any, address: str) -> None:
    asked: list[str] = []
    with visit(browser, f"{address}/profiles?study=digits-four") as page:
        page.wait_for_selector("[data-chart=ranks] circle")
        page.on("request", lambda request: asked.append(request.url) if "/v1/profiles" in request.url else None)
        page.reload()
        for shown in ("[data-chart=ranks] circle", "[data-of=by_time] canvas", "[data-of=by_value] canvas"):
            page.wait_for_selector(shown)
    assert len(asked) == 1


def test_a_search_draws_its_trials(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four/searches/admetar") as page:
        page.wait_for_selector("[data-part=history] canvas")
        page.wait_for_selector("[data-part=scatter] circle")
        page.wait_for_selector("[data-part=parallel] polyline")
        assert page.locator("[data-part=scatter] circle").count() == 16
        assert page.locator("[data-part=parallel] polyline:not(.out)").count() == 12
        assert page.locator("[data-part=parallel] polyline.out").count() == 3
        assert page.locator("[data-part=slices] svg").first.locator("circle.out").count() == 3
        best = page.locator("[data-part=scatter] svg a").last
        assert best.get_attribute("href").endswith("/trials/admetar/7")
        best.press("Enter")
        page.get_by_role("heading", name="Trial 7").wait_for()


def test_axes_tell_what_the_space_declares(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four/searches/admetar") as page:
        page.wait_for_selector("[data-part=slices] svg")
        assert page.locator("[data-part=slices] text", has_text="(log)").count() == 2
        whole = page.evaluate("Svg.scaleOf([1, 3, 7], {log: false, integer: true}).ticks.map((tick) => tick[1])")
        assert whole == ["1", "3", "5", "7"]
        linear = page.evaluate("Svg.scaleOf([1, 1000], {log: false, integer: false})")
        assert (linear["log"], linear["ticks"][2][1]) == (False, "500")
        assert page.evaluate("Svg.scaleOf([0.01, 0.02], {log: true, integer: false}).log") is True
        assert page.evaluate("[Charts.number(-1.1e-16), Charts.number(0.25)]") == ["0", "0.25"]


def test_a_hidden_curve_takes_its_band_with_it(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four") as page:
        page.wait_for_selector("[data-chart=curves] canvas")
        page.locator("[data-chart=curves] .u-legend .u-series th").nth(1).click()
        shown = "document.querySelector('[data-chart=curves] .plot').plot.series.map((one) => one.show)"
        assert page.evaluate(shown)[:7] == [True, False, False, False, True, True, True]
        page.locator("[data-chart=curves]").get_by_label("Log scale").check()
        until(page, "document.querySelector('[data-chart=curves] .plot').plot.scales.y.distr === 3")


def test_a_hidden_sensitivity_takes_its_band_and_marks_with_it(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four") as page:
        page.wait_for_selector("[data-chart=sensitivity] canvas")
        page.locator("[data-chart=sensitivity] .u-legend .u-series th").nth(1).click()
        shown = "document.querySelector('[data-chart=sensitivity] .plot').plot.series.map((one) => one.show)"
        assert page.evaluate(shown)[:7] == [True, *[False] * 5, True]
        assert len(page.locator("[data-chart=sensitivity] .u-legend .u-series").all()) == 5


def test_a_ladder_of_sizes_is_drawn(browser: Any, address: str) -> None:
    """Best values with the prediction, and speed-ups; a hidden optimizer takes its marks with it."""
    with visit(browser, f"{address}/studies/ladder") as page:
        page.wait_for_selector("[data-chart=ladder] canvas")
        page.wait_for_selector("[data-chart=speedup] canvas")
        plot = "document.querySelector('[data-chart=ladder] .plot').plot"
        assert page.locator("[data-chart=ladder] select option").all_inner_texts() == ["lr"]
        assert page.evaluate(f"{plot}.data[0]") == [64, 128, 256, 512]
        assert page.evaluate(f"{plot}.data[4].filter((value) => value !== null).length") == 1  # the predicted value
        page.locator("[data-chart=ladder] .u-legend .u-series th").nth(1).click()
        assert page.evaluate(f"{plot}.series.map((one) => one.show)")[:7] == [True, *[False] * 5, True]
        drawn_speedups = page.evaluate("document.querySelector('[data-chart=speedup] .plot').plot.data[1]")
        assert drawn_speedups == pytest.approx([1.25] * 4, rel=0.01)


def test_pareto_fronts_follow_their_control(browser: Any, address: str) -> None:
    """A dot a complete trial, a link that can be reached by keyboard a trial of a front, a path a front."""
    study = f"{address}/studies/digits-four"
    with visit(browser, f"{study}?pareto.objective=peak_memory_bytes") as page:
        for name in ("peak_memory_bytes", "val_loss"):
            page.select_option("[data-chart=pareto] select", name)
            page.wait_for_selector(f"[data-chart=pareto] .fronts[aria-label$={name}]")
            found = page.request.get(f"{study}/pareto.json?objective={name}").json()
            trials = [one for of in found["fronts"] for one in of["trials"]]
            assert page.locator("[data-chart=pareto] .fronts a .dot").count() == len(trials) > 40
            on_front = page.locator("[data-chart=pareto] .fronts a[tabindex='0']")
            assert on_front.count() == sum(one["on_front"] for one in trials) >= 4
            assert page.locator("[data-chart=pareto] .fronts path").count() == 4
        assert "pareto.objective=val_loss" in page.url
        assert page.locator("[data-chart=pareto] [data-csv]").get_attribute("href").endswith("?objective=val_loss")
        page.locator("[data-chart=curves] .u-legend .u-series th").nth(1).click()  # hides it in all figures
        until(page, "document.querySelectorAll('[data-chart=pareto] .fronts path').length === 3")
        on_front.first.click()
        page.wait_for_url("**/trials/**")


@pytest.mark.parametrize(
    ("path", "figure", "shapes"),
    [
        ("/studies/digits-four", "[data-chart=curves]", "polyline"),
        ("/studies/digits-four", "[data-chart=sensitivity]", "polyline"),
        ("/studies/digits-four", "[data-chart=pareto]", "circle"),
        ("/studies/digits-four/searches/admetar", "[data-part=history]", "circle"),
        ("/studies/digits-four/searches/admetar", "[data-part=scatter]", "circle"),
        ("/studies/digits-four/searches/admetar", "[data-part=slices]", "circle"),
        ("/profiles?study=digits-four", "[data-of=by_time]", "polyline"),
        ("/profiles?study=digits-four", "[data-chart=ranks]", "circle"),
    ],
)
def test_a_figure_is_saved(browser: Any, address: str, tmp_path: Path, path: str, figure: str, shapes: str) -> None:
    with visit(browser, address + path) as page:
        page.wait_for_selector(f"{figure} .plot svg, {figure} .plot canvas")
        for kind in ("SVG", "PNG"):
            with page.expect_download() as waited:
                page.locator(figure).get_by_role("link", name=kind, exact=True).click()
            waited.value.save_as(tmp_path / kind)
        text = (tmp_path / "SVG").read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert text.count(f"<{shapes}") >= 4
        assert "style=" not in text
        assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "PNG").stat().st_size > 5000


def test_a_page_works_at_the_second_visit(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four") as page:
        page.wait_for_selector("[data-chart=curves] canvas")
        page.goto(f"{address}/studies/digits-four")  # answered by 304
        page.wait_for_selector("[data-chart=curves] canvas")


def test_on_a_narrow_page_nothing_of_the_ranking_is_hidden(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four", width=390) as page:
        for name in ("Test", "To target", "GPU", "Best settings"):
            cell = page.locator(f".ranking td[data-name='{name}']").first
            box = cell.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
        page.set_viewport_size({"width": 1440, "height": 900})
        fits = "node => node.scrollWidth <= node.clientWidth"
        assert page.locator(".wide", has=page.locator(".ranking")).evaluate(fits)


def test_times_are_the_readers(browser: Any, address: str) -> None:
    context = browser.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    page.goto(f"{address}/studies/digits-four")
    time = page.locator("time").first
    until(page, "document.querySelector('time').title !== ''")
    assert "GMT+9" in time.get_attribute("title")
    assert re.fullmatch(r"just now|\d+ (s|min|h) ago", time.inner_text())
    context.close()


def test_a_study_is_paused_and_resumed_by_its_buttons(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/waiting") as page:
        page.get_by_role("button", name="Pause").click()
        page.locator(".title .state-paused").wait_for()
        page.get_by_role("button", name="Resume").click()
        page.locator(".title .state-queued").wait_for()


def test_a_study_is_followed(browser: Any, address: str, filled_home: Path) -> None:
    engine = make_engine(settings_in(filled_home).database_url)
    store = SqlStore(engine)
    lease, _ = leased(store, definition("followed"))
    with visit(browser, f"{address}/studies/followed") as page:
        page.get_by_text("live", exact=True).wait_for()
        page.get_by_text("Search spaces").click()
        page.locator("h1").click()  # the focus leaves it
        page.evaluate("document.activeElement.blur()")
        store.set_study_state(lease, StudyState.COMPLETED)
        page.locator(".title .state-completed").wait_for()
        assert page.locator("details[open]", has_text="Search spaces").count() == 1
    engine.dispose()


def test_the_explorer_works_out_what_is_chosen(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/explorer?n_steps=20") as page:
        drawn(page)
        assert page.locator(".descent polyline").count() == 5
        page.locator("#verdict", has_text="here s = 0.1 ").wait_for()
        page.locator("[name=lr]").fill("0.2")
        page.locator("#verdict", has_text="not stable").wait_for()
        assert "lr=0.2" in page.url
        page.get_by_label("λ, inner decay, slider").press("ArrowLeft")
        page.wait_for_url("**lambd=0.89**")
        page.locator("[name=k]").fill("0")
        page.locator("#said", has_text="k: ").wait_for()
        assert "lr=0.2" in page.locator("[data-data=csv]").get_attribute("href")


def test_a_study_is_made_by_the_form(browser: Any, address: str) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    with visit(browser, f"{address}/submit") as page:
        page.locator("[name='budget.trials_per_optimizer']").fill("0")
        page.locator(".faults", has_text="budget.trials_per_optimizer = 0").wait_for()
        assert page.locator("[aria-invalid]").get_attribute("name") == "budget.trials_per_optimizer"
        page.locator("[name='budget.trials_per_optimizer']").fill("3")
        page.locator("[name='task.name']").select_option("synthetic")
        page.locator("[name='task.model']").select_option("rosenbrock")
        page.locator("[name=name]").fill("by-browser")
        page.locator("#verdict", has_text="4 optimizers × 3 trials on synthetic").wait_for()
        text = page.locator("#definition")
        sync_api.expect(text).to_have_value(re.compile("by-browser"))
        text.fill(text.input_value().replace("{name: sgdm}", "{name: sgdmm}"))
        page.locator(".faults", has_text="sgdmm").wait_for()
        text.fill(text.input_value().replace("sgdmm", "sgdm"))
        page.locator("#verdict", has_text="can run").wait_for()
        page.get_by_role("button", name="Submit the study").click()
        page.get_by_role("heading", name="by-browser").wait_for()


def test_no_edit_of_a_study_is_lost_without_a_question(browser: Any, address: str) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    asked: list[str] = []
    with visit(browser, f"{address}/submit?again=digits-four") as page:
        page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
        text, trials = page.locator("#definition"), page.locator("[name='budget.trials_per_optimizer']")
        assert trials.input_value() == "16"
        by_hand = text.input_value().replace("target: 0.9", "target: 0.91").replace("max_hours: null", "max_hours: 7")
        text.fill(by_hand)
        sync_api.expect(page.locator("[name='budget.target']")).to_have_value("0.91")
        trials.fill("5")
        sync_api.expect(text).to_have_value(re.compile("trials_per_optimizer: 5"))
        sync_api.expect(text).to_have_value(re.compile("target: 0.91"))
        sync_api.expect(text).to_have_value(re.compile("max_hours: 7"))
        assert asked == [], "the form shows the text: nothing is lost"
        commented = text.input_value() + "# why: see the notes\n"
        text.fill(commented)
        page.locator("#verdict", has_text="can run").wait_for()
        trials.fill("6")
        comes(page, lambda: asked == ["confirm"], what="it asks")
        assert text.input_value() == commented
        assert trials.input_value() == "5", "the form is again as the text"
        page.evaluate("location.href = '/'")
        comes(page, lambda: asked == ["confirm", "beforeunload"], what="it asks again")
        assert text.input_value() == commented


def test_a_search_of_the_form_begins_with_the_papers_best(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/submit") as page:
        page.locator("[name='space.admetas']").select_option("paper-best")
        page.locator(".faults", has_text="the paper has no settings of admetas on digits").wait_for()
        assert page.locator("[aria-invalid]").get_attribute("name") == "space.admetas"
        page.locator("[name='task.name']").select_option("cifar10")
        page.locator(".faults", has_text="on cifar10 with resnet20").wait_for()
        page.locator("[name='task.model']").select_option("resnet110")
        page.locator("#verdict", has_text="can run").wait_for()
        assert "{name: admetas, space: paper-best}" in page.locator("#definition").input_value()
        page.locator("[aria-invalid]").wait_for(state="detached")


def test_the_overview_filters_as_one_types(browser: Any, address: str) -> None:
    with visit(browser, address) as page:
        page.get_by_label("Name").press_sequentially("four")
        page.locator("#studies .study + .study").first.wait_for(state="detached")
        assert "q=four" in page.url
        page.get_by_label("State").select_option("FAILED")
        page.get_by_role("heading", name="No study fits these filters").wait_for()


def test_trials_are_sorted_and_filtered(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four/searches/sgdm") as page:
        first = page.locator("#trial-table tbody th a").first
        page.locator("[aria-sort=descending]", has_text="val_accuracy").wait_for()
        assert first.inner_text() == "7"
        page.get_by_role("button", name="Trial", exact=True).press("Enter")
        page.locator("[aria-sort=ascending]", has_text="Trial").wait_for()
        assert first.inner_text() == "0"
        page.locator("[name=where]").fill("trial > 9, state = COMPLETE")
        page.get_by_text("4 of 4 trials that fit, 16 in all").wait_for()
        page.locator("[name=where]").fill("size > 9")
        page.get_by_text("is not a condition").wait_for()


def test_a_log_is_shown(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four/trials/admetar/7") as page:
        page.locator("pre.log", has_text="epoch 12, step 240: <img").wait_for()
        page.locator("[data-log] [name=run]").select_option(index=3)
        page.locator("pre.log", has_text="epoch 12").wait_for()


def test_a_result_opens_its_settings(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/results") as page:
        page.locator("button.cell.leads").first.press("Enter")
        page.get_by_role("dialog").get_by_role("button", name="Copy as Python").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").first.wait_for(state="hidden")


def test_signing_out(browser: Any, filled_home: Path) -> None:
    settings = replace(settings_in(filled_home), require_token=True)
    engine = make_engine(settings.database_url)
    token = create_token(engine, name="browser", scope=Scope.READ).token
    engine.dispose()
    with live(settings) as url, visit(browser, f"{url}/cluster", missing=True) as page:
        page.locator("input[name=token]").fill(token)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Cluster").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.locator("input[name=token]").wait_for()


def test_what_is_printed_is_what_one_reads(browser: Any, address: str) -> None:
    with visit(browser, f"{address}/studies/digits-four", scheme="dark") as page:
        drawn(page)
        page.emulate_media(media="print")
        assert not page.locator(".top nav").is_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(27, 34, 39)"
