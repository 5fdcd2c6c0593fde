"""transformers' Trainer and Lightning report to a study, resume from its checkpoints, and end with their trial."""

from __future__ import annotations

import threading
from importlib.util import find_spec

import pytest

from tasks.own import PythonConfig
from tasks.own.run import PythonRun

pytestmark = pytest.mark.slow

TRAINERS = [
    pytest.param(
        "with_trainer",
        marks=pytest.mark.skipif(find_spec("accelerate") is None, reason="transformers' Trainer needs accelerate"),
    ),
    pytest.param(
        "with_lightning",
        marks=pytest.mark.skipif(
            find_spec("lightning") is None and find_spec("pytorch_lightning") is None,
            reason="Lightning is not installed",
        ),
    ),
]


def open_run(name: str) -> PythonRun:
    config = PythonConfig(run=f"tests.tasks.own.trainers:{name}", epochs=3, batch_size=8)
    return PythonRun(config, optimizer="adamw", params={"lr": 0.01}, seed=1, device="cpu")


@pytest.mark.parametrize("name", TRAINERS)
def test_a_resumed_run_equals_an_uninterrupted_one(name: str) -> None:
    whole = open_run(name)
    expected = [whole.advance() for _ in range(3)]
    assert whole.done
    assert [evaluation.step for evaluation in expected] == [8, 16, 24]
    losses = [evaluation.metrics["val_loss"] for evaluation in expected]
    assert losses[2] < losses[0]
    tested = whole.test()
    assert "test_loss" in tested
    whole.close()

    first = open_run(name)
    first.advance()
    first.advance()
    state = first.state_dict()
    first.close()
    assert state["epoch"] == 2
    second = open_run(name)
    second.load_state_dict(state)
    assert second.epoch == 2
    last = second.advance()
    assert (last.epoch, last.step) == (3, 24)
    assert last.metrics["val_loss"] == losses[2]
    assert second.test() == tested
    second.close()


@pytest.mark.parametrize("name", TRAINERS)
def test_a_pruned_run_ends_its_trainer(name: str) -> None:
    before = threading.active_count()
    run = open_run(name)
    run.advance()
    run.close()
    assert threading.active_count() == before
