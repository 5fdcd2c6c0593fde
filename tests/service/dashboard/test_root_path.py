"""The service under a path of a reverse proxy: pages, assets, documentation, events, sign-in, client, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from admeta.cli.app import run
from admeta.client import Client
from search.states import Scope
from service.database.engine import make_engine
from service.database.tokens import create_token
from tests.service.dashboard.test_browser import drawn, visit
from tests.service.dashboard.test_pages import PAGES
from tests.service.fakes import live, settings_in
from tests.service.proxies import proxied

ROOT = "/admeta"
_LINK = re.compile(r"""\b(?:href|src|action|hx-get|hx-post|data-(?:source|events|history|trials))=["']([^"']*)["']""")
_NO_PAGE = re.compile(
    r"/events\b|/(pause|resume|cancel|extend|delete|annotate|compose|check|signout)$|/(trials/[^/]*|runs)/$"
)
"""Streams, targets of forms, and beginnings of addresses that scripts complete."""
_HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module", params=["the proxy takes the path away", "the proxy sends the path on"])
def under_path(request: pytest.FixtureRequest, filled_home: Path) -> Iterator[str]:
    with (
        live(replace(settings_in(filled_home), root_path=ROOT)) as url,
        proxied(url, ROOT, strip="away" in request.param) as address,
    ):
        yield address


def test_every_address_on_a_page_is_under_the_path_and_answers(under_path: str) -> None:
    found: set[str] = set()
    with httpx.Client(headers=_HTML, timeout=120, trust_env=False) as http:
        for page in PAGES:
            answer = http.get(under_path + page)
            assert answer.status_code == 200, page
            found |= {link.replace("&amp;", "&") for link in _LINK.findall(answer.text)}
        own = {link for link in found if link.startswith("/")}
        assert {link for link in own if not link.startswith(ROOT + "/")} == set()
        assert len(own) > 100
        host = under_path.removesuffix(ROOT)
        answers = {
            link: http.get(host + link.partition("#")[0]).status_code for link in own if not _NO_PAGE.search(link)
        }
    refused = {link: status for link, status in answers.items() if status >= 400}
    assert refused == {f"/admeta/{place}": 422 for place in ("compare", "compare/curves.json")}  # without two studies


def test_the_documentation_names_the_path(under_path: str) -> None:
    with httpx.Client(headers=_HTML, timeout=120, trust_env=False) as http:
        page = http.get(f"{under_path}/docs").text
        spec = http.get(f"{under_path}/openapi.json").json()
    assert 'href="/' not in page
    assert spec["servers"] == [{"url": ROOT}]
    assert "/v1/studies" in spec["paths"]


def test_redirects_stay_under_the_path(under_path: str) -> None:
    with httpx.Client(headers=_HTML, timeout=120, trust_env=False) as http:
        assert http.get(f"{under_path}/signin").headers["Location"] == f"{ROOT}/"
        slash = http.get(f"{under_path}/studies/digits-four/").headers["Location"]
        assert urlsplit(slash).path == f"{ROOT}/studies/digits-four"


def test_the_client_and_the_commands_work(under_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(under_path) as client:
        assert client.study("digits-four").state == "COMPLETED"
        assert client.health().status == "ok"
        events = [event.kind for event in client.events("digits-four")]
        assert events[0] == "study.created"
        assert len(client.trials("digits-four").to_dataframe()) == 64
    for line in ("list", "compare digits-four", "trials digits-four --limit 2", "show digits-four", "cluster"):
        assert run([*line.split(), "--url", under_path]) == 0, capsys.readouterr().err
    assert "digits-four" in capsys.readouterr().out
    assert run(["show", "digits-fuor", "--url", under_path]) == 1
    assert "Did you mean 'digits-four'?" in capsys.readouterr().err


def test_signing_in_keeps_the_path(filled_home: Path) -> None:
    settings = replace(settings_in(filled_home), root_path=ROOT, require_token=True)
    engine = make_engine(settings.database_url)
    token = create_token(engine, name="me", scope=Scope.WRITE).token
    engine.dispose()
    with (
        live(settings) as url,
        proxied(url, ROOT, strip=False) as address,
        httpx.Client(timeout=120, trust_env=False) as http,
    ):
        asked = http.get(f"{address}/studies/running?a=1", headers=_HTML)
        assert asked.status_code == 401
        assert f'action="{ROOT}/signin"' in asked.text
        assert 'value="/studies/running?a=1"' in asked.text
        sent = {"token": token, "next": "/studies/running?a=1"}
        origin = {"Origin": address.removesuffix(ROOT)}
        answer = http.post(f"{address}/signin", data=sent, headers=origin)
        assert answer.headers["Location"] == f"{ROOT}/studies/running?a=1"
        assert f"Path={ROOT}/" in answer.headers["Set-Cookie"]
        assert http.get(f"{address}/studies/running", headers=_HTML).status_code == 200
        out = http.post(f"{address}/signout", headers=origin)
        assert out.headers["Location"] == f"{ROOT}/signin"
        assert http.get(f"{address}/studies/running", headers=_HTML).status_code == 401


@pytest.mark.browser
def test_a_browser_works_under_the_path(browser: Any, under_path: str) -> None:
    for path in ("/", "/studies/digits-four", "/studies/digits-four/searches/admetar", "/results", "/explorer"):
        with visit(browser, under_path + path) as page:
            outside: list[str] = []
            page.on("request", lambda one, kept=outside: kept.append(one.url))
            page.reload()
            drawn(page)
            assert [one for one in outside if not one.startswith((under_path, "data:"))] == []
    with visit(browser, f"{under_path}/studies/digits-four/trials/admetar/7") as page:
        page.locator("pre.log", has_text="epoch 12").wait_for()
        page.get_by_role("link", name="digits-four", exact=True).click()
        page.wait_for_url(f"{under_path}/studies/**")
    with visit(browser, f"{under_path}/docs") as page:
        operation = page.locator("details", has=page.locator("summary code", has_text=re.compile("^/v1/version$"))).last
        operation.locator("summary").first.click()
        operation.get_by_role("button", name="Send").click()
        operation.locator("pre", has_text="200 OK").wait_for()
    with visit(browser, f"{under_path}/studies/running") as page:
        page.get_by_text("live", exact=True).wait_for()
