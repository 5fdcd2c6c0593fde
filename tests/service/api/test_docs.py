"""The documentation page in a real browser: every address is there, a request can be sent, nothing is blocked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.settings import Settings
from tests.machine import PATIENCE_S
from tests.service.fakes import live


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    executable = os.environ.get("ADMETA_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with playwright.sync_playwright() as tool:
        try:
            started = tool.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium: {str(error).splitlines()[0]}")
        yield started
        started.close()


def test_the_page_needs_nothing_from_elsewhere(api: TestClient) -> None:
    page = api.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "unsafe" not in page.headers["content-security-policy"]


@pytest.mark.browser
def test_every_address_is_shown_and_requests_can_be_sent(browser: Any, settings: Settings) -> None:
    problems: list[str] = []
    with live(settings) as url:
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE_S)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{url}/docs")
        page.wait_for_selector("#operations:not([aria-busy])")
        schema = page.evaluate("fetch('/openapi.json').then((answer) => answer.json())")
        expected = {f"{m.upper()}{path}" for path, operations in schema["paths"].items() for m in operations}
        assert {node.get_attribute("id") for node in page.query_selector_all("#operations > details")} == expected

        submit = page.locator("details[id='POST/v1/studies']")
        submit.locator("> summary").click()
        submit.get_by_role("button", name="Send").click()
        submit.get_by_text("201 Created").wait_for()
        read = page.locator("details[id='GET/v1/studies/{study}']")
        read.locator("> summary").click()
        read.get_by_label("study").fill("digits-first")
        read.get_by_role("button", name="Send").click()
        read.get_by_text("200 OK").wait_for()
        page.screenshot(path=str(settings.home / "docs.png"))
        page.close()
    assert problems == []
