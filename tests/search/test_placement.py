"""What a study's runs hold: the arithmetic, without Ray."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from search import placement
from search.definition import StudyDefinition
from search.packing import MOST, CardKind
from search.placement import card_kinds, runs_beside, task_shape, why_none_fits
from search.records import Capacity
from tasks.errors import ConfigError


def define(**fields: Any) -> StudyDefinition:
    return StudyDefinition.model_validate(
        {"name": "packed", "task": {"name": "digits"}, "optimizers": [{"name": "sgdm"}], **fields}
    )


@pytest.mark.parametrize(
    ("fields", "node", "expected"),
    [
        ({"resources": {"cpus": 1, "gpus": "auto"}}, Capacity(cpus=16, gpus=1), 16),
        ({"resources": {"cpus": 1, "gpus": "auto"}}, Capacity(cpus=64, gpus=1), MOST),
        ({"resources": {"cpus": 2, "gpus": "auto"}}, Capacity(cpus=32, gpus=2), 8),
        ({"resources": {"cpus": 3, "gpus": "auto"}}, Capacity(cpus=2, gpus=1), 1),
        ({"resources": {"cpus": 1, "gpus": "auto"}, "max_concurrent_trials": 5}, Capacity(cpus=64, gpus=2), 3),
    ],
)
def test_runs_that_could_ever_share_a_card(fields: dict[str, Any], node: Capacity, expected: int) -> None:
    assert runs_beside(define(**fields), [node], node.gpus) == expected


def test_cards_are_counted_by_their_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray names it. A node that is dead counts for nothing, nor does one without a card."""
    nodes = [
        (True, {"CPU": 16.0, "GPU": 1.0, "accelerator_type:H200": 1.0}),
        (True, {"CPU": 8.0, "GPU": 2.0, "accelerator_type:L4": 1.0}),
        (True, {"CPU": 12.0, "GPU": 2.0, "accelerator_type:L4": 1.0}),
        (True, {"CPU": 4.0, "GPU": 1.0}),
        (True, {"CPU": 64.0}),
        (False, {"CPU": 16.0, "GPU": 8.0, "accelerator_type:H200": 1.0}),
    ]
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": alive, "Resources": has} for alive, has in nodes])
    assert card_kinds(define()) == [
        CardKind(name="H200", n_cards=1, most=16),
        CardKind(name="L4", n_cards=4, most=4),
        CardKind(name="", n_cards=1, most=4),
    ]


def test_what_decides_memory_and_speed_is_the_key_of_what_is_known() -> None:
    task = {"name": "digits", "model": "mlp", "batch_size": 64}
    same = [
        define(task=task),
        define(task={**task, "epochs": 3, "schedule": "cosine", "label_smoothing": 0.1}, name="other"),
        define(task=task, optimizers=[{"name": "adamw"}], budget={"trials_per_optimizer": 3}),
    ]
    assert len({task_shape(one) for one in same}) == 1
    others = [{"batch_size": 32}, {"model": "convnet"}, {"precision": "fp32"}, {"acceleration": "compile"}]
    shapes = {task_shape(define(task={**task, **other})) for other in others}
    assert len({*shapes, task_shape(same[0]), task_shape(define(task=task, resources={"cpus": 2}))}) == 6


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
    placed = placement.place(own, known={})
    assert placed.each == Capacity(cpus=1, gpus=expected)
    surface = define(task={"name": "synthetic"}, objective={})
    toy = placement.place(surface, known={})
    assert toy.each == Capacity(cpus=1, gpus=0)


def test_what_another_packages_constructor_refuses_is_named() -> None:
    with pytest.raises(ConfigError, match=r"optimizer 'mine' cannot be constructed with \{'lr': -1.0\}: ValueError"):
        placement.construct("mine", "sgd", {"lr": -1.0})
