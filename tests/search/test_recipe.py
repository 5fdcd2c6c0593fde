"""What makes two studies comparable."""

from __future__ import annotations

from typing import Any

import pytest

from search.recipe import recipe_of
from tests.search.workers import define

TASK = {"name": "cifar10", "model": "resnet20"}


def recipe(task: dict[str, Any] | None = None, **changes: Any) -> str:
    return recipe_of(define(task={**TASK, **(task or {})}, **changes))


@pytest.mark.parametrize(
    "change",
    [
        {"model": "resnet110"},
        {"epochs": 1},
        {"batch_size": 64},
        {"split_seed": 1},
        {"data_dir": "other"},
        {"schedule": {"name": "cosine"}},
        {"init_from": "weights.pt"},
        {"precision": "fp32"},
    ],
)
def test_another_recipe(change: dict[str, Any]) -> None:
    assert recipe(change) != recipe()


@pytest.mark.parametrize(
    "change",
    [
        {"optimizers": [{"name": "sgdm"}]},
        {"training_seed": 7},
        {"confirm": {"seeds": [5, 6]}},
        {"budget": {"trials_per_optimizer": 99}},
        {"sampler": {"name": "random", "seed": 3}},
        {"name": "another"},
    ],
)
def test_the_same_recipe(change: dict[str, Any]) -> None:
    assert recipe(**change) == recipe()
    assert recipe({"acceleration": "compile", "deterministic": True}) == recipe()


def test_another_objective_is_another_recipe() -> None:
    assert recipe(objective={"metric": "val_loss"}) != recipe()


def test_the_fingerprint_stands_for_the_folder() -> None:
    here, there = (define(task={**TASK, "data_dir": folder}) for folder in ("here", "there"))
    assert recipe_of(here) != recipe_of(there)
    assert recipe_of(here, data_fingerprint="f") == recipe_of(there, data_fingerprint="f")
    assert recipe_of(here, data_fingerprint="f") != recipe_of(here, data_fingerprint="g")


def test_a_recipe_is_the_same_on_every_machine() -> None:
    assert recipe_of(define()) == recipe_of(type(define()).model_validate(define().to_json()))
    assert len(recipe_of(define())) == 64
