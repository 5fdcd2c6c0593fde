"""Warnings about valid definitions: said when they apply, silent otherwise, and never an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import admeta.registry
from search.advice import warnings_for
from search.definition import StudyDefinition

STUDIES = Path(__file__).parents[2] / "studies"
FLOAT = {"type": "float", "low": 0.01, "high": 0.1}
CHOICES = {"type": "categorical", "choices": [0.1, 0.05, 0.01]}


def warned(**changes: Any) -> list[str]:
    base = {"name": "a", "task": {"name": "digits", "epochs": 20}, "optimizers": [{"name": "admetar"}]}
    return warnings_for(StudyDefinition.model_validate({**base, **changes}))


def search(name: str = "admetar", **changes: Any) -> dict[str, Any]:
    return {"optimizers": [{"name": name, **changes}]}


CASES = [
    ({"sensitivity": {}, "confirm": {"seeds": [0]}}, "sensitivity: no trial is confirmed with two seeds"),
    ({"objective": {"metric": "val_accuracy", "direction": "minimize"}}, "minimize val_accuracy"),
    ({"budget": {"epochs_per_optimizer": 19}}, "less than one training of 20 epochs"),
    ({"budget": {"epochs_per_optimizer": 900}, "warm_start": {"n_trials": 3}}, "n_trials = 3 is more than 1, where"),
    ({"confirm": {"top_k": 21}}, "top_k = 21 is more than trials_per_optimizer = 20"),
    ({"pruner": {"name": "asha", "min_epochs": 20}}, "min_epochs = 20 is not below the training's 20 epochs"),
    ({"pruner": {"name": "asha", "min_epochs": 18}}, "min_epochs = 18 is more than half of the training's 20 epochs"),
    (
        {"warm_start": {"n_trials": 3}},
        "n_trials = 3 is more than a tenth of trials_per_optimizer = 20; 2 will be taken",
    ),
    ({"warm_start": {"studies": ["a", "digits"]}, "name": "digits"}, "studies names 'digits', this study itself"),
    ({"warm_start": {"task": "cifar10"}}, "task = 'cifar10' has no effect"),
    ({"pruner": {"name": "hyperband", "min_epochs": 30}}, "min_epochs = 30"),
    ({"pruner": {"name": "median", "n_startup_trials": 20}}, "no trial will be stopped early"),
    ({"sampler": {"name": "tpe", "n_startup_trials": 20}}, "all of trials_per_optimizer = 20"),
    ({"sampler": {"name": "gp"}, "budget": {"trials_per_optimizer": 501}}, "gp needs seconds"),
    ({"sampler": {"name": "cmaes"}, **search(space={"lr": CHOICES})}, "it is random search"),
    (
        {
            "sampler": {"name": "qmc"},
            **search(
                space={
                    "dema": {"type": "categorical", "choices": ["full", "off"]},
                    "lr": {**FLOAT, "when": {"dema": "off"}},
                }
            ),
        },
        "conditional parameters (lr)",
    ),
    ({"sampler": {"name": "grid"}, "budget": {"trials_per_optimizer": 5}, **search(space="paper")}, "15 combinations"),
    (search(space={"lr": CHOICES}), "3 configurations, fewer than trials_per_optimizer = 20"),
    (search("admetas", space="paper"), "past the stability cliff β* = 0.302"),
    (search("admetas", space={"beta": {"type": "float", "low": 0.1, "high": 0.5}}), "beta reaches 0.5"),
    (search("admetas", fixed={"beta": 0.4}), "beta reaches 0.4"),
]


@pytest.mark.parametrize(("changes", "part"), CASES, ids=[case[1] for case in CASES])
def test_a_warning_says_what_will_happen(changes: dict[str, Any], part: str) -> None:
    assert len([warning for warning in warned(**changes) if part in warning]) == 1


@pytest.mark.parametrize("name", admeta.registry.OPTIMIZERS)
def test_the_defaults_are_beyond_reproach(name: str) -> None:
    assert warned(**search(name)) == []


def test_a_default_is_not_warned_of() -> None:
    """From everything four trials are taken, at most a fifth: nobody asked for four in a budget of ten."""
    assert warned(warm_start={"from": "everything"}, budget={"trials_per_optimizer": 10}) == []


def test_a_cliff_that_is_not_reached_is_not_mentioned() -> None:
    assert warned(**search("admetas", space={"beta": {"type": "float", "low": 0.1, "high": 0.3}})) == []
    assert warned(**search("admetas", space={"lr": FLOAT}, fixed={"dema": "off", "beta": 0.9})) == []


def test_a_large_space_is_counted_not_listed() -> None:
    assert warned(**search(space={"k": {"type": "int", "low": 1, "high": 2**53}})) == []


def test_a_warning_names_the_search() -> None:
    definition = search(label="mine", space={"lr": CHOICES})
    assert all(warning.startswith("mine: ") for warning in warned(**definition))


@pytest.mark.parametrize("path", sorted(STUDIES.rglob("*.yaml")), ids=str)
def test_our_own_studies_can_be_advised_on(path: Path) -> None:
    warnings_for(StudyDefinition.model_validate(yaml.safe_load(path.read_text())))
