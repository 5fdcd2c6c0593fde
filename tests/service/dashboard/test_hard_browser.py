"""The data that is hard to show, in Chromium: nothing is cut off, and the charts of 200 trials can be worked with."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.service.dashboard import hard
from tests.service.dashboard.test_browser import comes, drawn, faults, until, visit

pytestmark = pytest.mark.browser
ENDED, RUNNING = f"/studies/{hard.ENDED}", f"/studies/{hard.RUNNING}"
SEARCH = f"{ENDED}/searches/admetar"
COMPARED = f"/compare?study={hard.ENDED}&study={hard.RUNNING}"
SCROLLERS = """() => [...document.querySelectorAll("main *")].filter((node) => {
  const way = getComputedStyle(node).overflowX;
  return node.offsetParent && ["auto", "scroll", "hidden"].includes(way) && node.scrollWidth > node.clientWidth + 1;
}).map((node) => [node.tabIndex, node.getAttribute("role"), node.getAttribute("aria-label")])"""
"""What shows less than it has, sideways: whether a key reaches it, its role and its name."""


@pytest.mark.parametrize(
    "path",
    ["/", ENDED, RUNNING, SEARCH, f"{ENDED}/trials/{hard.LONG}/9", "/results", "/profiles", COMPARED, "/cluster"],
)
def test_nothing_is_cut_off(browser: Any, hard_address: str, path: str) -> None:
    with visit(browser, hard_address + path, width=1440) as page:
        for width, scheme in ((1440, "light"), (390, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            page.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
            drawn(page)
            until(page, f"document.documentElement.scrollWidth <= {width}")  # charts take their new width a frame later
            assert faults(page) == []
            hidden = page.evaluate(SCROLLERS)
            allowed = () if width == 1440 else ("Parallel coordinates", "Table ")
            for tab_index, role, label in hidden:
                assert (tab_index, role) == (0, "region")
                assert label.startswith(allowed), f"{label} does not fit"


def test_a_long_label_is_read_in_a_few_lines(browser: Any, hard_address: str) -> None:
    with visit(browser, hard_address + ENDED, width=1440) as page:
        for part in (".ranking", ".searches"):
            label = page.locator(f"{part} .label", has_text="nesterov")
            assert label.evaluate("(node) => node.getBoundingClientRect().height") <= 4 * 24


def test_a_running_study_says_what_runs_where_and_how_long_it_takes(browser: Any, hard_address: str) -> None:
    with visit(browser, hard_address + RUNNING) as page:
        progress = page.locator("section", has=page.get_by_role("heading", name="Progress"))
        assert "left: 1710 trials and 27 confirm runs, 6 at once" in progress.inner_text()
        row = progress.locator("tbody tr", has_text="admetas / 24")
        assert "10.20.30." in row.inner_text()
        assert "4 of 12" in row.inner_text()
        text = page.locator("main").inner_text()
        assert "So far all trials of ranger failed. The last: error." in text
        assert "epochs, batches of 64" in text
        assert "of 6 hours used" in text


def test_axes_of_parallel_coordinates_are_brushed_and_moved(browser: Any, hard_address: str) -> None:
    with visit(browser, hard_address + SEARCH, width=1440) as page:
        page.wait_for_selector("[data-part=parallel] .axis")
        drawn(page)  # what is drawn later moves what the mouse aims at
        axes = "[...document.querySelectorAll('[data-part=parallel] [data-axis]')].map((one) => one.dataset.axis)"
        assert page.evaluate(axes) == ["lambd", "lr", "betas", "k", "weight_decay", "val_accuracy"]
        grip = page.locator("[data-axis=lr] .grip")
        grip.scroll_into_view_if_needed()
        box = grip.bounding_box()
        assert box is not None
        x, top, bottom = box["x"] + box["width"] / 2, box["y"] + 8, box["y"] + box["height"] - 8
        page.mouse.move(x, top + 1)
        page.mouse.down()
        page.mouse.move(x, (top + bottom) / 2, steps=4)
        page.mouse.up()
        chosen = page.locator("[data-chosen]")
        comes(page, lambda: "trials are chosen, by lr." in chosen.inner_text(), what="trials are chosen")
        n = int(chosen.inner_text().split()[0])
        assert 70 < n < 130, "about half of the learning rates, drawn evenly on a log scale, are in the upper half"
        assert page.locator("[data-part=parallel] polyline.faded").count() > 0
        assert page.locator("[data-part=slices] circle.faded").count() > 0
        page.get_by_text(f"of {n} trials that fit, 200 in all").wait_for()
        page.locator("[data-axis=lr]").press("Escape")
        page.get_by_text("100 of 200 trials.").wait_for()
        assert page.locator(".faded").count() == 0
        page.locator("[data-axis=lr]").press("ArrowDown")
        page.locator("[data-chosen]", has_text="by lr").wait_for()
        page.locator("[data-axis=lr]").press("ArrowRight")
        assert page.evaluate(axes)[:3] == ["lambd", "betas", "lr"]
        assert page.evaluate("document.activeElement.dataset.axis") == "lr"
        page.reload()
        page.locator("[data-chosen]", has_text="by lr").wait_for()
        drawn(page)
        assert page.evaluate(axes)[:3] == ["lambd", "betas", "lr"]
        name = page.locator("[data-axis=k] .name").bounding_box()
        assert name is not None
        page.mouse.move(name["x"] + 4, name["y"] + 4)
        page.mouse.down()
        page.mouse.move(name["x"] - 400, name["y"] + 4, steps=4)
        page.mouse.up()
        comes(page, lambda: page.evaluate(axes)[0] == "k", what="the axis is the first")


@pytest.mark.parametrize("part", ["parallel", "scatter", "slices"])
def test_what_one_points_at_is_named_and_stands_out_everywhere(browser: Any, hard_address: str, part: str) -> None:
    with visit(browser, hard_address + SEARCH, width=1440) as page:
        page.wait_for_selector(f"[data-part={part}] svg")
        page.wait_for_selector("[data-part=scatter] svg circle")
        drawn(page)
        shape = page.locator(f"[data-part={part}] svg").first.locator("polyline, circle").last
        shape.scroll_into_view_if_needed()
        place = shape.evaluate("""(node) => {
          const svg = node.ownerSVGElement, box = svg.getBoundingClientRect();
          const k = box.width / svg.viewBox.baseVal.width;
          const [a, b] = node.points ? [node.points[0], node.points[1]] : [];
          const [x, y] = a ? [(a.x + b.x) / 2, (a.y + b.y) / 2] : [node.cx.baseVal.value, node.cy.baseVal.value];
          return [box.left + k * x, box.top + k * y];
        }""")
        page.mouse.move(*place)
        page.locator(".tip", has_text="trial 89, complete: 0.9254").wait_for()
        assert "lr 0.08375" in page.locator(".tip").inner_text()
        assert page.locator("[data-part=parallel] .line.hit").count() == 1
        assert page.locator("[data-part=slices] .dot.hit").count() == 5
        page.mouse.click(*place)
        page.get_by_role("heading", name="Trial 89").wait_for()


@pytest.mark.parametrize(
    ("path", "figure"),
    [
        (SEARCH, "[data-part=history]"),
        (ENDED, "[data-chart=expected]"),
        (f"{ENDED}/trials/admetar/89", "[data-chart=runs]"),
    ],
)
def test_values_are_shown_on_a_log_scale(browser: Any, hard_address: str, path: str, figure: str) -> None:
    with visit(browser, hard_address + path) as page:
        page.wait_for_selector(f"{figure} canvas")
        page.locator(figure).get_by_label("Log scale").check()
        until(page, f"document.querySelector('{figure} .plot').plot.scales.y.distr === 3")
        labels = page.evaluate(f"document.querySelector('{figure} .plot').plot.axes[1]._values.filter(Boolean)")
        assert len(labels) >= 2, "an axis of less than a power of ten has ticks too"


def test_a_timeline_shows_what_ran_when_on_each_worker(browser: Any, hard_address: str, tmp_path: Path) -> None:
    with visit(browser, hard_address + RUNNING, width=1440) as page:
        page.wait_for_selector("[data-timeline] svg .span")
        figure = page.locator("[data-timeline]")
        assert figure.locator("a .span.running").count() == 6
        workers = [text for text in figure.locator("svg text:has(title)").all_inner_texts() if text]
        names = [f"{node} {device}" for node, device in sorted(hard.WORKERS)]
        assert [text for name in names for text in workers if name in text] == workers
        bar = figure.locator("a", has=page.locator(".span.interrupted")).first
        assert "interrupted" in (bar.get_attribute("aria-label") or "")
        bar.hover()
        page.locator(".tip", has_text="interrupted, ").wait_for()
        with page.expect_download() as waited:
            figure.get_by_role("link", name="SVG", exact=True).click()
        waited.value.save_as(tmp_path / "timeline.svg")
        text = (tmp_path / "timeline.svg").read_text()
        ElementTree.fromstring(text)
        assert "interrupted" in text
        assert "10.20.30.4 cuda:0" in text
        bar.click()
        page.get_by_role("heading", name="Trial").wait_for()


@pytest.mark.parametrize("path", [ENDED, SEARCH, f"{ENDED}/trials/admetar/89", "/explorer"])
def test_every_plot_is_saved(browser: Any, hard_address: str, tmp_path: Path, path: str) -> None:
    with visit(browser, hard_address + path, width=1440) as page:
        drawn(page)
        page.wait_for_selector("figure .plot svg, figure .plot canvas")
        figures = page.locator("figure:has(.plot svg, .plot canvas)")
        wanted = page.locator("figure:has(.plot):not(:has(.plot .say))")
        comes(page, lambda: figures.count() == wanted.count(), what="every figure is drawn")
        for i in range(figures.count()):
            figure = figures.nth(i)
            title = figure.locator("h2, h3").first.inner_text()
            for kind in ("SVG", "PNG"):
                with page.expect_download() as waited:
                    figure.get_by_role("link", name=kind, exact=True).click()
                waited.value.save_as(tmp_path / kind)
                page.wait_for_timeout(250)  # a browser lets a page begin ten downloads a second
            words = [node.text for node in ElementTree.fromstring((tmp_path / "SVG").read_text()).iter() if node.text]
            assert words[0] == title
            assert "descent" in (figure.get_attribute("class") or "") or len(words) >= 6, f"{title} has no axes"
            assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
