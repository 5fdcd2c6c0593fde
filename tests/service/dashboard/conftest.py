"""One filled database for all tests of the pages, behind the application in-process or on a socket."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from service.app import create_app
from service.database.engine import make_engine
from tests.service.dashboard.fill import fill
from tests.service.dashboard.hard import fill_hard
from tests.service.fakes import ADDRESS, FakeSupervisor, live, settings_in


def _home(prepared_database: Path, home: Path, fill_in: Callable[[Engine, Path], object]) -> Path:
    """A service's home whose database has what the function fills in."""
    shutil.copy(prepared_database, home / "admeta.sqlite3")
    settings = settings_in(home)
    engine = make_engine(settings.database_url)
    fill_in(engine, Path(settings.storage))
    engine.dispose()
    return home


@pytest.fixture(scope="package")
def filled_home(tmp_path_factory: pytest.TempPathFactory, prepared_database: Path) -> Path:
    return _home(prepared_database, tmp_path_factory.mktemp("filled"), fill)


@pytest.fixture(scope="package")
def hard_address(tmp_path_factory: pytest.TempPathFactory, prepared_database: Path) -> Iterator[str]:
    """A service with the data that is hard to show."""
    with live(settings_in(_home(prepared_database, tmp_path_factory.mktemp("hard"), fill_hard))) as url:
        yield url


@pytest.fixture(scope="package")
def pages(filled_home: Path) -> Iterator[TestClient]:
    app = create_app(settings_in(filled_home), supervisor=FakeSupervisor())
    headers = {"Accept": "text/html"}
    with TestClient(app, base_url=ADDRESS, headers=headers, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="package")
def address(filled_home: Path) -> Iterator[str]:
    with live(settings_in(filled_home)) as url:
        yield url


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as tool:
        try:
            started = launched(tool)
        except playwright.Error as error:
            pytest.skip(f"no Chromium: {str(error).splitlines()[0]}")
        yield started
        started.close()


def launched(tool: Any) -> Any:
    """A Chromium that asks nobody on its own."""
    executable = os.environ.get("ADMETA_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync"]
    return tool.chromium.launch(executable_path=executable, args=flags)
