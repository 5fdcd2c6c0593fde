"""What a study's runs hold: the arithmetic, without Ray."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from search import placement
from search.definition import StudyDefinition
from search.placement import runs_beside, why_none_fits
from search.records import Capacity
from tasks.errors import ConfigError


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


def test_a_run_must_fit_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What two machines have together is of no use to it, nor is what a dead one had."""
    machines = [(True, {"CPU": 4.0, "GPU": 1.0}), (True, {"CPU": 16.0}), (False, {"CPU": 16.0, "GPU": 8.0})]
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": alive, "Resources": has} for alive, has in machines])
    assert why_none_fits(Capacity(cpus=4, gpus=0.25)) is None
    assert why_none_fits(Capacity(cpus=16, gpus=0)) is None
    for each in (Capacity(cpus=5, gpus=1), Capacity(cpus=1, gpus=2)):
        assert "the largest in the cluster has 4 and 1" in (why_none_fits(each) or "")


@pytest.mark.parametrize(("gpus", "expected"), [(1.0, 1), (0.0, 0)])
def test_own_code_gets_a_card_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch, gpus: float, expected: float
) -> None:
    """Its throughput is not measured, as its epochs may take hours; a toy surface gets none."""
    monkeypatch.setattr(placement, "cluster_capacity", lambda: Capacity(cpus=4, gpus=gpus))
    own = define(task={"name": "python", "run": "my_module:train"}, objective={"metric": "val_loss"})
    placed = placement.place(own, data_dir=None, is_stopping=lambda: False, tell=print)
    assert placed.each == Capacity(cpus=1, gpus=expected)
    surface = define(task={"name": "synthetic"}, objective={})
    toy = placement.place(surface, data_dir=None, is_stopping=lambda: False, tell=print)
    assert toy.each == Capacity(cpus=1, gpus=0)


def test_what_another_packages_constructor_refuses_is_named() -> None:
    with pytest.raises(ConfigError, match=r"optimizer 'mine' cannot be constructed with \{'lr': -1.0\}: ValueError"):
        placement.construct("mine", "sgd", {"lr": -1.0})
