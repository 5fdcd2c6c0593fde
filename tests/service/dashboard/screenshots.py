"""Every page with the data that is hard to show, as pictures: `python -m tests.service.dashboard.screenshots OUT`.

Pictures are at 1440 and 390 px, light and dark. Prints what axe-core finds, what is wider than the page, and what
scrolls sideways.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from service.database.engine import make_engine
from service.database.schema import prepare
from tests.service.dashboard import hard
from tests.service.dashboard.conftest import launched
from tests.service.dashboard.fill import fill
from tests.service.dashboard.test_browser import drawn, faults
from tests.service.fakes import live, settings_in

ENDED, RUNNING = f"/studies/{hard.ENDED}", f"/studies/{hard.RUNNING}"
PAGES = [
    "/",
    ENDED,
    RUNNING,
    f"{ENDED}/searches/admetar",
    f"{ENDED}/searches/{hard.LONG}",
    f"{ENDED}/searches/ranger",
    f"{ENDED}/trials/ranger/0",
    f"{ENDED}/trials/{hard.LONG}/9",
    "/studies/digits-four",
    "/studies/waiting",
    "/results",
    "/profiles",
    f"/compare?study={hard.ENDED}&study={hard.RUNNING}&study=digits-four",
    "/explorer",
    "/recommend",
    "/recommend?task=digits&model=convnet&gpu_hours=1",
    "/submit",
    f"/submit?again={hard.ENDED}",
    "/cluster",
    "/?q=nothing-has-this-name",
    "/nowhere",
    "/docs",
]
"""What is looked at."""

SCROLLERS = """() => [...document.querySelectorAll("main *")].filter((node) => {
  const way = getComputedStyle(node).overflowX;
  return node.offsetParent && ["auto", "scroll", "hidden"].includes(way) && node.scrollWidth > node.clientWidth + 1;
}).map((node) => `${node.tagName.toLowerCase()}.${node.className} ${node.getAttribute("aria-label") || ""} `
  + `${node.clientWidth} of ${node.scrollWidth} px${node.tabIndex < 0 ? ", NOT REACHED BY KEYBOARD" : ""}`)"""
"""Elements that show less than they have, sideways."""


def main() -> None:
    """Fill a home, and look at every page of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="a regular expression of numbers and paths")
    parser.add_argument("--home", type=Path, help="a filled home to keep and use again")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as tool:
        settings = settings_in(filled(options.home or Path(folder)))
        browser = launched(tool)
        with live(settings) as address:
            for number, path in enumerate(PAGES):
                if re.search(options.only, f"{number:02} {path}"):
                    look(browser, address, path, out=options.out / f"{number:02}")
        browser.close()


def filled(home: Path) -> Path:
    """The home with all studies in it; as it is, where it has a database."""
    settings = settings_in(home)
    if not (home / "admeta.sqlite3").exists():
        home.mkdir(parents=True, exist_ok=True)
        prepare(settings.database_url)
        engine = make_engine(settings.database_url)
        fill(engine, Path(settings.storage))
        hard.fill_hard(engine, Path(settings.storage))
        engine.dispose()
    return home


def look(browser: Any, address: str, path: str, *, out: Path) -> None:
    """Four pictures of a page, and what is wrong with each."""
    for width in (1440, 390):
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page = context.new_page()
            page.set_default_timeout(120_000)
            page.goto(address + path)
            drawn(page)
            page.wait_for_timeout(300)
            page.screenshot(path=f"{out}-{width}-{scheme}.png", full_page=True)
            wide = page.evaluate("document.documentElement.scrollWidth")
            found = [*faults(page), *page.evaluate(SCROLLERS), *([f"{wide} px wide"] if wide > width else [])]
            print(f"{out.name} {path[-40:]} {width} {scheme}: {'; '.join(found) or 'fine'}", flush=True)  # noqa: T201
            context.close()


if __name__ == "__main__":
    main()
