"""One service for a module's commands: with studies to look at, which no test changes; or without any."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from admeta.cli.app import run
from search.run_log import RunLog, log_file
from service.database.engine import make_engine
from service.database.queries import list_runs, run_files
from tests.service.dashboard.fill import fill
from tests.service.fakes import definition, live, settings_in


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, prepared_database: Path) -> Iterator[str]:
    home = tmp_path_factory.mktemp("filled")
    shutil.copy(prepared_database, home / "admeta.sqlite3")
    settings = settings_in(home)
    engine = make_engine(settings.database_url)
    fill(engine, Path(settings.storage))
    first = list_runs(engine, "digits-four", limit=1).items[0]
    folder = Path(settings.storage) / run_files(engine, first.id).folder
    log = RunLog(log_file(folder, 1))
    log._write("epoch 1\nepoch 2\nthe end\n")
    log.close()
    engine.dispose()
    with live(settings) as url:
        yield url


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, prepared_database: Path) -> Iterator[str]:
    home = tmp_path_factory.mktemp("empty")
    shutil.copy(prepared_database, home / "admeta.sqlite3")
    with live(settings_in(home)) as url:
        yield url


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command line; its exit code, stdout and stderr."""

    def spoken(line: str, *more: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([*line.split(), *more])
        return code, *capsys.readouterr()

    return spoken


@pytest.fixture
def say_json(say: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    """Run a command line that must succeed, as JSON."""

    def spoken(line: str, *more: str) -> Any:
        code, out, err = say(line, *more, "-o", "json")
        assert code == 0, err
        return json.loads(out)

    return spoken


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(definition()))
    return path
