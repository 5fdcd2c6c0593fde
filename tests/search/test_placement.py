"""What a study's runs hold: the arithmetic, without Ray."""

from __future__ import annotations

from typing import Any

import pytest

from search.definition import StudyDefinition
from search.placement import runs_beside
from search.sharing import Capacity


def define(**fields: Any) -> StudyDefinition:
    return StudyDefinition.model_validate(
        {"name": "packed", "task": {"name": "digits"}, "optimizers": [{"name": "sgdm"}], **fields}
    )


@pytest.mark.parametrize(
    ("fields", "cluster", "expected"),
    [
        ({"resources": {"cpus": 1, "gpus": "auto"}}, Capacity(cpus=16, gpus=1), 16),
        ({"resources": {"cpus": 2, "gpus": "auto"}}, Capacity(cpus=32, gpus=2), 8),
        ({"resources": {"cpus": 3, "gpus": "auto"}}, Capacity(cpus=2, gpus=1), 1),
        ({"resources": {"cpus": 1, "gpus": "auto"}, "max_concurrent_trials": 5}, Capacity(cpus=64, gpus=2), 3),
    ],
)
def test_runs_that_could_ever_share_a_card(fields: dict[str, Any], cluster: Capacity, expected: int) -> None:
    assert runs_beside(define(**fields), cluster) == expected
