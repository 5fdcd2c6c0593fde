"""`paper-best`: a search's first trial has the paper's best settings, or the definition is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

import admeta.registry
from search import samplers
from search.assignment import Assignment
from search.definition import StudyDefinition
from search.paper import setups
from search.space import FloatParameter
from search.states import Stage
from tests.search.memory_store import MemoryStore
from tests.search.paper.test_studies import FOLDER
from tests.search.workers import Cluster, coordinator_for

BUDGET = {"trials_per_optimizer": 5}
ROWS = [(row.task, row.model, row.optimizer) for row in setups.all_settings()]


def parse(task: str, *optimizers: dict[str, Any], model: str = "resnet110", **changes: Any) -> StudyDefinition:
    return StudyDefinition.model_validate(
        {"name": "seeded", "optimizers": list(optimizers), "task": {"name": task, "model": model}, **changes}
    )


def faults(task: str, *optimizers: dict[str, Any], model: str = "resnet110") -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        parse(task, *optimizers, model=model)
    return {".".join(map(str, error["loc"])): error["msg"] for error in caught.value.errors()}


def rising(assignment: Assignment, epoch: int) -> float:
    return float(epoch)


def first_settings(definition: StudyDefinition) -> dict[str, dict[str, Any]]:
    """What constructs the optimizer in each search's trial 0, run by the coordinator."""
    store = MemoryStore()
    study = store.add_study(definition)
    cluster = Cluster(coordinator_for(store, study), score=rising)
    cluster.run()
    started = [one for one in cluster.started if one.stage is Stage.SEARCH and one.trial_number == 0]
    assert len(started) == len(definition.optimizers)
    return {one.label: dict(one.settings) for one in started}


@pytest.mark.parametrize(("task", "model", "optimizer"), ROWS, ids=["-".join(row) for row in ROWS])
def test_every_setting_that_the_paper_prints_seeds_a_search(task: str, model: str, optimizer: str) -> None:
    definition = parse(
        task, {"name": optimizer, "space": "paper-best"}, model=setups.paper_models()[model].ours[0],
        budget={"trials_per_optimizer": 1}, confirm={"top_k": 0},
    )  # fmt: skip
    best = setups.best_settings(task=task, model=model, optimizer=optimizer)
    assert best is not None
    (search,) = definition.optimizers
    assert search.first == [dict(best.params)]
    assert search.space.keys() == best.params.keys()
    defaults = {name: p.default for name, p in admeta.registry.get(optimizer).parameters.items()}
    settings = {**search.fixed, **search.first[0]}
    for name, default in defaults.items():
        held = list(default) if isinstance(default, tuple) else default
        if name in best.arguments:
            assert settings[name] == best.arguments[name]
        elif name not in admeta.registry.get(optimizer).fixed:
            assert settings.get(name, held) == held
    assert StudyDefinition.model_validate(definition.to_json()) == definition


@pytest.mark.parametrize("sampler", samplers.NAMES)
def test_the_first_trial_is_the_papers_best_with_every_sampler(sampler: str) -> None:
    space = "paper" if sampler == "grid" else None
    asked = [{"name": name, "space": space, "first": "paper-best"} for name in ("admetar", "sgdm")]
    definition = parse("cifar10", *asked, sampler={"name": sampler}, budget={"trials_per_optimizer": 3})
    found = first_settings(definition)
    for name in ("admetar", "sgdm"):
        best = setups.best_settings(task="cifar10", model="resnet110", optimizer=name)
        assert best is not None
        assert {key: found[name].get(key, best.fixed.get(key)) for key in best.arguments} == best.arguments


@pytest.mark.parametrize("kill_after", [0, 1, 2])
def test_a_restart_does_not_begin_twice(kill_after: int) -> None:
    firsts = [{"lr": 0.02}, {"lr": 0.03}]
    definition = parse("cifar10", {"name": "sgdm", "space": "default", "first": firsts}, budget=BUDGET)
    store = MemoryStore()
    study = store.add_study(definition)
    dying = Cluster(coordinator_for(store, study), score=rising)  # has queued what it begins with
    for number, _ in enumerate(dying.rounds() if kill_after else (), start=1):
        if number == kill_after:
            break
    Cluster(coordinator_for(store, study, owner="second"), score=rising).run()
    tried = [run.params for run in store.runs(study.id) if run.stage is Stage.SEARCH]
    assert tried[:2] == firsts
    assert len(tried) == BUDGET["trials_per_optimizer"]
    assert all(params not in firsts for params in tried[2:])


def test_a_grid_begins_with_it_and_misses_none() -> None:
    definition = parse(
        "cifar10", {"name": "admetar", "space": "paper", "first": "paper-best"}, sampler={"name": "grid"}
    )
    store = MemoryStore()
    study = store.add_study(definition)
    Cluster(coordinator_for(store, study), score=rising).run()
    tried = [run.params for run in store.runs(study.id) if run.stage is Stage.SEARCH]
    assert tried[0] == {"lr": 0.05, "lambd": 0.1}
    assert len({str(sorted(params.items())) for params in tried}) == len(tried) == 15


def test_the_same_settings_as_the_papers_study_has() -> None:
    raw = yaml.safe_load(Path(FOLDER / "cola-bert-base.yaml").read_text(encoding="utf-8"))
    theirs = StudyDefinition.model_validate(raw)
    ours = parse(
        "cola", *({"name": o.name, "space": "paper-best"} for o in theirs.optimizers), model="bert-base-uncased"
    )
    once = {"pruner": {"name": "none"}, "sampler": {"name": "random"}, "budget": {"trials_per_optimizer": 1}}
    assert first_settings(StudyDefinition.model_validate({**ours.to_json(), **once})) == first_settings(theirs)


def test_a_range_that_does_not_reach_the_papers_value_is_widened() -> None:
    (search,) = parse("cifar10", {"name": "admetas", "space": "paper-best"}, model="pyramidnet110_a84").optimizers
    beta = search.space["beta"]
    assert isinstance(beta, FloatParameter)
    assert (beta.low, beta.high) == (0.1, 0.4)


def test_what_is_held_besides_the_papers_settings_stays() -> None:
    (search,) = parse("cifar10", {"name": "admetar", "space": "paper-best", "fixed": {"dema": "off"}}).optimizers
    assert (search.fixed["dema"], search.first) == ("off", [{"lr": 0.05, "lambd": 0.1}])


REFUSALS: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("cola", "tiny", {"name": "adamw"}, "space", "its models on cola are bert-base-uncased"),
    ("cola", "bert-base-uncased", {"name": "sgdm"}, "space", "settings of adamw, radam, ranger, adabelief, admetar"),
    ("digits", "mlp", {"name": "sgdm"}, "space", "its tasks are cifar10, cifar100, mnli"),
    ("cifar10", "resnet110", {"name": "admetar", "fixed": {"lambd": 0.2}}, "space", "'fixed' or the default sets 0.2"),
    (
        "cifar10", "resnet110",
        {"name": "admetar", "first": "paper-best", "space": {"lr": {"type": "float", "low": 0.1, "high": 0.2}}},
        "first", "have lr = 0.05, which is outside this space",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("task", "model", "search", "field", "rule"), REFUSALS, ids=[row[4][:40] for row in REFUSALS])
def test_what_the_paper_does_not_have_is_refused_with_what_it_has(
    task: str, model: str, search: dict[str, Any], field: str, rule: str
) -> None:
    asked = {"space": "paper-best", **search}
    assert rule in faults(task, asked, model=model)[f"optimizers.0.{field}"]


def test_all_that_is_missing_is_told_at_once() -> None:
    found = faults(
        "cola", *({"name": n, "space": "paper-best"} for n in ("sgdm", "adamw", "sgd")), model="bert-base-uncased"
    )
    assert found.keys() == {"optimizers.0.space", "optimizers.2.space"}


@pytest.mark.parametrize(
    ("search", "task", "field"),
    [
        ({"name": "sgdm"}, "cifar", "task.name"),
        ({"name": "sgdn"}, "cifar10", "optimizers.0.name"),
        ({"name": "sgdm", "fixed": None}, "cifar10", "optimizers.0.fixed"),
        ({"name": "sgdm", "fixed": []}, "cifar10", "optimizers.0.fixed"),
        ({"name": "sgdm", "first": "paper-best", "space": "papr"}, "cifar10", "optimizers.0.space"),
        ({"name": "sgdm", "first": "paper-best", "space": {"lrr": {"type": "int", "low": 1, "high": 2}}}, "cifar10",
         "optimizers.0.space.lrr"),
        ({"name": "sgdm", "space": "default", "first": [{"lr": 9.0}]}, "cifar10", "optimizers.0.first.0.lr"),
        ({"name": "sgdm", "space": "default", "first": [{"lamda": 9.0}]}, "cifar10", "optimizers.0.first.0.lamda"),
    ],
)  # fmt: skip
def test_another_fault_is_told_as_without_it(search: dict[str, Any], task: str, field: str) -> None:
    assert list(faults(task, {"space": "paper-best", **search})) == [field]
