"""`admeta new task`: the files that it writes train, and nothing of one's own is overwritten."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from search.definition import StudyDefinition
from tasks import runs
from tasks.registry import parse_config

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_spirals", raising=False)


def test_what_it_writes_trains(say: Say) -> None:
    code, out, _ = say("new task my_spirals")
    assert code == 0
    assert "  admeta serve --allow-imports my_spirals --code .\n  admeta submit my_spirals.yaml --wait\n" in out
    definition = StudyDefinition.model_validate(yaml.safe_load(Path("my_spirals.yaml").read_text()))
    assert definition.imports() == {"task.run": "my_spirals:train"}
    config = parse_config({**definition.task.model_dump(mode="json"), "epochs": 3})
    run = runs.open_run(config, optimizer="adamw", params={"lr": 0.03}, seed=0, device="cpu")
    accuracies = [run.advance().metrics[definition.objective.metric] for _ in range(3)]
    assert accuracies[-1] > 0.8
    assert run.test()["test_accuracy"] > 0.8
    run.close()


def test_nothing_is_overwritten(say: Say) -> None:
    Path("my_spirals.yaml").write_text("mine")
    code, _, err = say("new task my_spirals")
    assert (code, Path("my_spirals.yaml").read_text()) == (1, "mine")
    assert "my_spirals.yaml exists already. " in err.replace("\nhint:", "")
    assert not Path("my_spirals.py").exists()


@pytest.mark.parametrize("name", ["class", "a-b", "3d", "ä", "a/b", "x" * 81])
def test_a_name_must_be_a_modules(say: Say, name: str) -> None:
    code, _, err = say(f"new task {name}")
    assert code == 1
    assert "cannot be a module's name" in err
