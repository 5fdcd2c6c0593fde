"""Ladders of the benchmark: what they ask of a service is valid before a card is taken for it."""

from __future__ import annotations

import pytest

from benchmarks.ladder import SIZES, definition
from search.definition import StudyDefinition


@pytest.mark.parametrize("parametrization", ["standard", "mup"])
@pytest.mark.parametrize("size", SIZES)
def test_its_studies_are_valid(size: str, parametrization: str) -> None:
    study = StudyDefinition.model_validate(definition(size, parametrization))
    chosen = SIZES[size]
    runs = len(chosen["scale"]["values"]) * 7 * len(chosen["lr"]) + chosen["scale"]["verify"] * len(chosen["lr"])
    assert study.n_runs >= runs
