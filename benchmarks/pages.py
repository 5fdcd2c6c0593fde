"""How soon the pages can be used, in a browser, and beside optuna-dashboard on the same database.

    python -m benchmarks.pages [--repeats 5] [--no-optuna] [--chromium /usr/bin/chromium]

Fills a database (1,000 studies; one with 1,000 trials of 100 points; one with 10,000 trials), serves it from a process
of its own, and opens each page in Chromium, each time without a cache. A page can be used when its plots and tables are
drawn and the browser is idle. Prints the median and the slowest in seconds beside the bar, and the bytes that came over
the wire, at the first visit and at the next. Needs Playwright; optuna-dashboard for its part.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, sync_playwright

from benchmarks.database import serve
from benchmarks.followers import running, wait_for
from benchmarks.large_database import fill
from benchmarks.large_pages import LONG, MANY, fill_long_curves, fill_many_trials
from service.database import make_engine, prepare

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
WAIT_MS = 600_000
MAX_BYTES = 1_000_000
SHARE_OF_OPTUNA = 0.2


@dataclass(frozen=True)
class Page:
    """A page, what is there once it can be used, and its bar in seconds."""

    name: str
    path: str
    there: tuple[str, ...]
    bar_s: float | None


@dataclass(frozen=True)
class Visit:
    """One visit: seconds until the page could be used, and bytes over the wire."""

    seconds: float
    n_bytes: int


PAGES = (
    Page("overview, 1,000 studies", "/", (".study",), 0.5),
    Page(
        "study, 1,000 × 100 points",
        f"/studies/{LONG}",
        (".ranking tbody tr", "[data-chart=curves] canvas", "[data-chart=expected] canvas"),
        1.5,
    ),
    Page(
        "its curves of all trials",
        f"/studies/{LONG}#all",
        (".ranking tbody tr", "[data-chart=curves] canvas"),
        None,
    ),
    Page(
        "search, 10,000 trials",
        f"/studies/{MANY}/searches/admetar",
        ("[data-part=history] canvas", "[data-part=scatter] circle", "[data-part=parallel] polyline", "[aria-sort]"),
        None,
    ),
    Page("results of all studies", "/results", (".matrix .cell",), None),
)
OPTUNA_PLOT = """() => [...document.querySelectorAll(".js-plotly-plot")].some(
    (plot) => (plot.data ?? []).some((trace) => (trace.x?.length ?? 0) >= 1000))"""
"""A plot that holds the trials: it draws empty axes first, while it still fetches them."""


def main() -> None:
    """Measure and print."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        url = f"sqlite:///{Path(folder) / 'bench.sqlite3'}"
        optuna_study = fill_all(url)
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        with served(serve, folder, url) as address:
            ours = measure_ours(browser, address, repeats=options.repeats)
        if options.optuna and find_spec("optuna_dashboard"):
            with served(serve_optuna, url) as address:
                seconds = visit_optuna(browser, f"{address}/dashboard/studies/{optuna_study}")
            share = ours / seconds
            verdict = "" if share <= SHARE_OF_OPTUNA else "  missed"
            print(f"\noptuna-dashboard, the same 10,000 trials: {seconds:.1f} s to its first plot;")
            print(f"our search page takes {share:.3f} of that (bar {SHARE_OF_OPTUNA}){verdict}")
        browser.close()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-optuna", dest="optuna", action="store_false", help="leave optuna-dashboard out")
    parser.add_argument("--chromium", default=os.environ.get("ADMETA_TEST_CHROMIUM") or shutil.which("chromium"))
    return parser.parse_args()


def fill_all(url: str) -> int:
    """The database; Optuna's id of the study with many trials."""
    started = time.perf_counter()
    prepare(url)
    engine = make_engine(url)
    fill(engine, n_studies=1000, n_trials=25, n_points=10)
    fill_long_curves(engine, n_trials=1000, n_points=100)
    study_id = fill_many_trials(engine, n_trials=10_000)
    engine.dispose()
    print(f"filled in {time.perf_counter() - started:.0f} s; load of the machine: {os.getloadavg()[0]:.1f}")
    return study_id


@contextmanager
def served(target: Callable[..., None], *arguments: str) -> Iterator[str]:
    """A server in a process of its own, on a free port; its address."""
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    with running(target, *arguments, port):
        address = f"http://127.0.0.1:{port}"
        wait_for(address)
        yield address


def serve_optuna(database_url: str, port: int) -> None:
    """optuna-dashboard as it comes."""
    import optuna
    import optuna_dashboard

    storage = optuna.storages.RDBStorage(database_url)
    optuna_dashboard.run_server(storage, host="127.0.0.1", port=port)


def measure_ours(browser: Browser, address: str, *, repeats: int) -> float:
    """Print a line a page; the median seconds of the search page."""
    print(f"{'page':<30}{'median s':>9}{'max s':>9}{'bar s':>9}{'bytes':>12}{'again':>12}")
    medians: dict[str, float] = {}
    for page in PAGES:
        visits = [cold(browser, address, page) for _ in range(repeats + 1)][1:]  # the first warms the service up
        seconds = [first.seconds for first, _ in visits]
        n_bytes, again = max(first.n_bytes for first, _ in visits), max(second.n_bytes for _, second in visits)
        medians[page.name] = statistics.median(seconds)
        bar = "–" if page.bar_s is None else f"{page.bar_s:g}"
        late = page.bar_s is not None and medians[page.name] > page.bar_s
        verdict = "  missed" if late or again > MAX_BYTES else ""
        print(
            f"{page.name:<30}{medians[page.name]:>9.2f}{max(seconds):>9.2f}{bar:>9}{n_bytes:>12,}{again:>12,}{verdict}"
        )
    return medians["search, 10,000 trials"]


def cold(browser: Browser, address: str, page: Page) -> tuple[Visit, Visit]:
    """A visit without a cache, and one more."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        return visit(context, address, page), visit(context, address, page)
    finally:
        context.close()


def visit(context: BrowserContext, address: str, page: Page) -> Visit:
    """Open the page and wait until it can be used."""
    tab = context.new_page()
    sizes: list[int] = []
    network = context.new_cdp_session(tab)
    network.send("Network.enable")
    network.on("Network.loadingFinished", lambda event: sizes.append(int(event["encodedDataLength"])))
    started = time.perf_counter()
    tab.goto(address + page.path, wait_until="commit")
    for selector in page.there:
        tab.wait_for_selector(selector, state="attached", timeout=WAIT_MS)
    if page.path.endswith("#all"):
        started = time.perf_counter()
        tab.locator("[data-chart=curves] [name=runs]").select_option("all")
        tab.get_by_text("(125)").first.wait_for(timeout=WAIT_MS)
    idle(tab)
    seconds = time.perf_counter() - started
    tab.close()
    return Visit(seconds, sum(sizes))


def visit_optuna(browser: Browser, url: str) -> float:
    """Seconds until optuna-dashboard shows a first plot of the study's trials, and can be used."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    started = time.perf_counter()
    tab.goto(url, wait_until="commit", timeout=WAIT_MS)
    tab.wait_for_function(OPTUNA_PLOT, timeout=WAIT_MS)
    idle(tab)
    seconds = time.perf_counter() - started
    context.close()
    return seconds


def idle(tab: Any) -> None:
    """Wait until the page answers: its scripts have let go of the thread."""
    tab.evaluate("() => new Promise((done) => requestIdleCallback(() => requestAnimationFrame(done)))")


if __name__ == "__main__":
    main()
