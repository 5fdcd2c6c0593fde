"""A baseline: one trial of an optimizer's default settings beside its search, confirmed with the same seeds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from search.definition import StudyDefinition
from search.placement import construct
from search.records import StudyRecord
from search.states import RunState, Stage
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define


def ended(store: MemoryStore, study: StudyRecord) -> list[tuple[object, ...]]:
    return sorted((r.search_id, r.trial_number, r.stage, r.seed, str(r.params), r.value) for r in store.runs(study.id))


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "qmc", "random"])
@pytest.mark.parametrize("pruner", ["asha", "hyperband", "median", "none"])
def test_one_trial_of_the_defaults_is_confirmed_with_the_same_seeds(sampler: str, pruner: str) -> None:
    store = MemoryStore()
    definition = define(baseline="defaults", sampler={"name": sampler}, pruner={"name": pruner})
    study = store.add_study(definition)
    cluster = Cluster(coordinator_for(store, study))
    cluster.run()
    assert [search.label for search in store.searches(study.id)] == [
        "adamw", "sgdm", "adamw.defaults", "sgdm.defaults",
    ]  # fmt: skip
    runs = store.runs(study.id)
    assert len(runs) == definition.n_runs == 2 * (4 + 2) + 2 * (1 + 2)
    for search in store.searches(study.id)[2:]:
        own = [run for run in runs if run.search_id == search.id]
        assert Counter(run.stage for run in own) == {Stage.SEARCH: 1, Stage.CONFIRM: 2}
        assert [run.seed for run in own if run.stage is Stage.CONFIRM] == [0, 1]
        assert all(run.state is RunState.COMPLETE and run.params == {} for run in own)
    settings = {assignment.label: assignment.settings for assignment in cluster.started}
    assert settings["adamw.defaults"] == {"lr": 1e-3, "weight_decay": 0.01, "betas": [0.9, 0.999], "eps": 1e-8}
    assert settings["sgdm.defaults"]["lr"] == 1e-3
    assert settings["sgdm.defaults"].keys() == settings["sgdm"].keys()


@pytest.mark.parametrize("kill_after", range(1, 14, 3))
def test_a_baseline_goes_on_after_a_driver_died(kill_after: int) -> None:
    """One at a time, a study whose driver died at any point ends as one that was not disturbed."""
    whole_store = MemoryStore()
    whole = whole_store.add_study(define(baseline="defaults"))
    Cluster(coordinator_for(whole_store, whole, slots=1)).run()
    store = MemoryStore()
    study = store.add_study(define(baseline="defaults"))
    for number in Cluster(coordinator_for(store, study, slots=1)).rounds():
        if number == kill_after:
            break
    Cluster(coordinator_for(store, study, owner="second", slots=1)).run()
    assert ended(store, study) == ended(whole_store, whole)


def test_a_baseline_has_the_first_seeds_alone_where_confirmation_goes_on() -> None:
    """It takes no part in the decision: its verdict says what the search gained."""
    confirm = {"top_k": 1, "seeds": [0, 1, 2], "until": "decided", "max_seeds": 8}
    definition = define(baseline=["adamw"], confirm=confirm)
    store = MemoryStore()
    study = store.add_study(definition)
    noise = {0: 0.0, 1: 0.9, 2: -0.9, 3: 0.4, 4: -0.4, 5: 0.2, 6: -0.2, 7: 0.1}

    def equal(assignment: Any, epoch: int) -> float:
        return epoch + noise.get(assignment.seed, 0.0) * (1 if assignment.label == "sgdm" else -1)

    Cluster(coordinator_for(store, study), equal).run()
    n_seeds = Counter(
        {search.id: search.label for search in store.searches(study.id)}[run.search_id]
        for run in store.runs(study.id)
        if run.stage is Stage.CONFIRM
    )
    assert n_seeds["adamw.defaults"] == 3
    assert n_seeds["adamw"] > 3


def test_repeated_searches_share_one_baseline() -> None:
    definition = define(baseline="defaults", searches=3)
    labels = [search.optimizer.label for search in definition.planned_searches()]
    assert labels == ["adamw", "adamw.2", "adamw.3", "sgdm", "sgdm.2", "sgdm.3", "adamw.defaults", "sgdm.defaults"]


def test_the_studys_fixed_parameters_hold_for_the_baseline_too() -> None:
    optimizer = {"name": "admetar", "fixed": {"weight_decay": 0.3}}
    (baseline,) = define(optimizers=[optimizer], baseline="defaults").baselines()
    assert baseline.optimizer.fixed["weight_decay"] == 0.3
    assert (baseline.optimizer.fixed["lr"], baseline.optimizer.fixed["lambd"]) == (0.01, 0.1)
    assert baseline.of == "admetar"


def test_the_defaults_of_an_import_path_are_its_constructors() -> None:
    lr = {"lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}}
    optimizers = [
        {"name": "torch.optim:NAdam", "space": lr, "fixed": {"eps": 1e-7}},
        {"name": "torch.optim:NAdam+adamw", "label": "joint", "space": {**lr, "others.lr": lr["lr"]}},
        {"name": "sgdm+torch.optim:NAdam", "label": "other", "space": {**lr, "others.lr": lr["lr"]}},
    ]
    alone, joint, other = define(optimizers=optimizers, baseline="defaults").baselines()
    assert alone.optimizer.fixed == {"eps": 1e-7}
    assert "lr" not in joint.optimizer.fixed
    assert joint.optimizer.fixed["others.lr"] == 1e-3
    assert other.optimizer.fixed["lr"] == 1e-3
    assert "others.lr" not in other.optimizer.fixed
    construct("NAdam.defaults", "torch.optim:NAdam", dict(alone.optimizer.fixed))


def test_a_parameter_whose_condition_the_defaults_do_not_meet_is_left_out() -> None:
    space = {
        "lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True},
        "dema": {"type": "categorical", "choices": ["full", "off"]},
        "lambd": {"type": "float", "low": 0.05, "high": 0.4, "when": {"dema": "off"}},
    }
    (baseline,) = define(optimizers=[{"name": "admetar", "space": space}], baseline="defaults").baselines()
    assert baseline.optimizer.fixed["dema"] == "full"
    assert "lambd" not in baseline.optimizer.fixed


@pytest.mark.parametrize(
    ("changes", "at", "rule"),
    [
        ({"baseline": ["adamw", "adamww"]}, "baseline.1", "is not a label of this study"),
        ({"baseline": []}, "baseline", "at least 1 item"),
        ({"baseline": "presets"}, "baseline", "defaults"),
        (
            {"baseline": "defaults", "optimizers": [{"name": "adamw"}, {"name": "sgdm", "label": "adamw.defaults"}]},
            "baseline",
            "listed twice",
        ),
    ],
)
def test_a_baseline_that_cannot_be_is_refused(changes: dict[str, Any], at: str, rule: str) -> None:
    with pytest.raises(ValidationError) as caught:
        define(**changes)
    errors = caught.value.errors()
    assert any(".".join(map(str, e["loc"])).startswith(at) and rule in e["msg"] for e in errors), errors


def test_a_stored_definition_is_read_as_it_was() -> None:
    for baseline in ("defaults", ["sgdm"], None):
        definition = define(baseline=baseline)
        assert StudyDefinition.model_validate(definition.to_json()) == definition
