"""The listings of docs/optimizers.md: the Python runs, and the studies are valid and pass the check on a worker."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import admeta
from search import placement
from search.definition import StudyDefinition, expand_names
from tasks.runs import open_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "optimizers.md"
TEXT = PAGE.read_text(encoding="utf-8")
LISTINGS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
PYTHON = [text for kind, text in LISTINGS if kind == "python"]
STUDIES = {found["name"]: found for kind, text in LISTINGS if kind == "yaml" for found in [yaml.safe_load(text)]}


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own,) = [text for text in PYTHON if text.startswith("# sign_descent.py")]
    (tmp_path / "sign_descent.py").write_text(own)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sign_descent", raising=False)


@pytest.mark.parametrize("text", PYTHON, ids=[text.strip().split("\n")[0] for text in PYTHON])
def test_the_python_runs(text: str) -> None:
    x = torch.randn(4, 3)
    there: dict[str, Any] = {
        "model": nn.Linear(3, 2),
        "batches": [(x, torch.tensor([0, 1, 0, 1]))],
        "loss": nn.functional.cross_entropy,
    }
    exec(text, there)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.usefixtures("own_module")
def test_a_study_passes_the_check_and_its_first_trials_train(name: str) -> None:
    definition = StudyDefinition.model_validate(expand_names(STUDIES[name]))
    tried = [(one.label, one.name, placement.corners(one)) for one in definition.optimizers]
    placement._check(definition.task.model_dump(mode="json"), tried, None, (), definition.objective.metric)
    for one in definition.optimizers:
        settings = placement.typical_settings(one)
        run = open_run(definition.task, optimizer=one.name, params=settings, seed=0, device="cpu")
        assert run.advance().metrics["val_accuracy"] > 0.2
        run.close()


def test_the_page_names_every_registered_optimizer() -> None:
    assert len(STUDIES) == 3
    for name in admeta.OPTIMIZERS:
        assert f"`{name}`" in TEXT or admeta.get(name).target.startswith("admeta."), name
