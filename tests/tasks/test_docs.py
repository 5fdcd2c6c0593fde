"""The definitions shown in docs/tasks.md are valid, and its table names what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tasks.registry import TASKS, parse_config

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "tasks.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(task:.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_valid(example: str) -> None:
    parse_config(yaml.safe_load(example)["task"])


def test_common_fields_and_tasks_are_all_shown() -> None:
    fields = set(TASKS["cifar10"].config.model_fields) - {
        "augment",
        "pad",
        "val_fraction",
        "width",
        "parametrization",
        "base_width",
    }
    assert fields == set(yaml.safe_load(EXAMPLES[0])["task"])
    for name, info in TASKS.items():
        assert f"`{name}`" in TEXT
        own = [model for model in info.models if not model.startswith("torchvision/")]
        assert all(f"`{model}`" in TEXT for model in own)
