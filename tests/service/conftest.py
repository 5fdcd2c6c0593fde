"""One prepared SQLite database is copied for each test: creating the tables takes a second, a copy none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.database.schema import prepare
from service.settings import Settings
from tests.service.fakes import ADDRESS, FakeSupervisor, settings_in


@pytest.fixture(scope="session")
def prepared_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prepared") / "admeta.sqlite3"
    prepare(f"sqlite:///{path}")
    return path


@pytest.fixture
def settings(tmp_path: Path, prepared_database: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(prepared_database, home / "admeta.sqlite3")
    return settings_in(home)


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory, prepared_database: Path) -> Iterator[TestClient]:
    """One service for all tests of a module that leave nothing in it."""
    home = tmp_path_factory.mktemp("shared")
    shutil.copy(prepared_database, home / "admeta.sqlite3")
    app = create_app(settings_in(home), supervisor=FakeSupervisor())
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def supervisor() -> FakeSupervisor:
    return FakeSupervisor()


@pytest.fixture
def api(settings: Settings, supervisor: FakeSupervisor) -> Iterator[TestClient]:
    with TestClient(
        create_app(settings, supervisor=supervisor), base_url=ADDRESS, raise_server_exceptions=False
    ) as client:
        yield client
