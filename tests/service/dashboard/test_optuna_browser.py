"""optuna-dashboard in a real browser, behind our headers: it draws, and nothing leaves the service."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


def test_it_draws_a_search(address: str, browser: object) -> None:
    pytest.importorskip("optuna_dashboard")
    page = browser.new_page()  # type: ignore[attr-defined]
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((address, "data:", "blob:")) else faults.append(asked.url))
    page.on("response", lambda answer: faults.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
    page.goto(f"{address}/dashboard", wait_until="networkidle")
    page.wait_for_timeout(4000); print("FAULTS", faults, page.inner_text("body")[:500])
    page.screenshot(path="/tmp/od1.png")
    page.close()
    assert not faults
