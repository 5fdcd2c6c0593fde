"""Every listing of docs/own-code.md runs: modules train, studies are valid, and the shell's lines do what they say."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from search.definition import StudyDefinition
from tasks import runs
from tasks.registry import parse_config

PAGE = Path(__file__).resolve().parents[3] / "docs" / "own-code.md"
LISTINGS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
MODULES = {text.split("\n")[0].removeprefix("# "): text for kind, text in LISTINGS if kind == "python"}
STUDIES = {text.split("\n")[0].removeprefix("# "): text for kind, text in LISTINGS if kind == "yaml"}
NEEDS = {"bert.py": "accelerate", "light.py": "lightning"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files, in which Python finds its modules."""
    for name, text in {**MODULES, **STUDIES}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def train(task: dict[str, Any]) -> list[dict[str, float]]:
    config = parse_config(task)
    runs.check(config)
    run = runs.open_run(config, optimizer="admetar", params={"lr": 0.01}, seed=1, device="cpu")
    found = []
    while not run.done:
        found.append(dict(run.advance().metrics))
    found.append(run.test())
    run.close()
    return found


def test_every_listing_is_one_of_these() -> None:
    assert {kind for kind, _ in LISTINGS} == {"sh", "python", "yaml"}
    assert set(MODULES) == {"plain.py", "calls.py", "bert.py", "light.py", "blobs.py"}
    assert set(STUDIES) == {"plain.yaml", "blobs.yaml"}
    assert sum(kind == "sh" for kind, _ in LISTINGS) == 1  # run by tests/service/test_own_code.py


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_valid_and_trains(folder: Path, name: str) -> None:
    definition = StudyDefinition.model_validate(yaml.safe_load((folder / name).read_text()))
    *epochs, _ = train(definition.task.model_dump(mode="json"))
    assert len(epochs) == definition.task.epochs
    assert all(definition.objective.metric in metrics for metrics in epochs)


@pytest.mark.parametrize("name", [name for name in MODULES if "def train(ctx)" in MODULES[name]])
@pytest.mark.usefixtures("folder")
def test_a_function_trains(name: str) -> None:
    if (needed := NEEDS.get(name)) is not None and find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    task = {"name": "python", "run": f"{name.removesuffix('.py')}:train", "epochs": 2, "settings": {"width": 8}}
    *epochs, _ = train(task)
    assert len(epochs) == 2
