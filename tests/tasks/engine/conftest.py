"""Cohorts for the tests of runs in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import nn

from tasks.engine.cohort import Cohort
from tasks.gpt import GptTask
from tasks.text.task import TextTask
from tasks.vision.datasets import DigitsTask


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout, whose noise is the cohort's."""

    def quiet(build: Callable[[Any], nn.Module]) -> Callable[[Any], nn.Module]:
        def built(task: Any) -> nn.Module:
            model = build(task)
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            return model

        return built

    for task in (DigitsTask, GptTask, TextTask):
        monkeypatch.setattr(task, "build_model", quiet(task.build_model))


@pytest.fixture
def cohort_of() -> Iterator[Callable[..., Cohort]]:
    opened: list[Cohort] = []

    def make(cfg: Any, *, n_slots: int, **where: Any) -> Cohort:
        opened.append(Cohort(cfg, n_slots=n_slots, **{"device": "cpu", **where}))
        return opened[-1]

    yield make
    for cohort in opened:
        cohort.close()
