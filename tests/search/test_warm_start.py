"""Which settings of earlier studies a search begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from search.definition import Budget, WarmStart
from search.optimizer_search import OptimizerSearch
from search.states import RunState, Stage, StudyState
from search.warm_start import EarlierTrial, best_alone, degree, portfolio
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define

SPACE = {
    "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "momentum": {"type": "float", "low": 0.5, "high": 0.99},
}
LIKE = define(name="new", optimizers=[{"name": "sgdm", "space": SPACE}])
(SGDM,) = LIKE.optimizers


def earlier(lr: float, *, study: str = "a", place: int = 1, **changes: Any) -> EarlierTrial:
    """A trial of a study of the same recipe as `LIKE`."""
    one = EarlierTrial(
        study=study,
        label="sgdm",
        trial=place,
        task="synthetic",
        model="idle",
        metric="val_score",
        settings={"lr": lr, "momentum": 0.9, "weight_decay": 0.0},
        same_recipe=True,
        place=place,
    )
    return replace(one, **changes)


def rates(trials: list[EarlierTrial], *, n: int = 4, spec: OptimizerSearch = SGDM) -> list[float]:
    return [one.params["lr"] for one in portfolio(trials, spec, like=LIKE, n=n)]


def test_settings_that_several_studies_found_good_come_first() -> None:
    """One study's best may be luck; what three studies agree on is not."""
    trials = [earlier(0.5, study="luck"), *(earlier(lr, study=f"s{lr}") for lr in (0.009, 0.01, 0.012))]
    assert rates(trials, n=2) == [0.012, 0.5]
    first = portfolio(trials, SGDM, like=LIKE, n=1)[0]
    assert first.params == {"lr": 0.012, "momentum": 0.9}
    assert first.sources[0] == {"study": "s0.012", "label": "sgdm", "trial": 1}
    assert [one["study"] for one in first.sources] == ["s0.012", "s0.01", "s0.009"]


def test_the_most_alike_studies_come_first() -> None:
    other = {"same_recipe": False}
    alike = [
        earlier(0.1, study="same recipe"),
        earlier(0.01, study="same model", **other),
        earlier(0.001, study="same task", model="another", **other),
        earlier(0.0001, study="other task", task="cifar10", model="resnet20", **other),
    ]
    assert [degree(one, LIKE) for one in alike] == [0, 1, 2, 4]
    assert degree(earlier(1.0, task="gone", **other), LIKE) == 4
    digits = define(name="d", task="digits")
    assert degree(earlier(1.0, task="cifar10", **other), digits) == 3
    assert degree(earlier(1.0, task="cola", **other), digits) == 4
    crowd = [replace(alike[3], study=f"far {i}") for i in range(9)]  # many far studies do not outvote a near one
    assert rates([*crowd, *reversed(alike)], n=4)[0] == 0.1
    assert sorted(rates([*crowd, *alike], n=4)) == [0.0001, 0.001, 0.01, 0.1]


def test_the_same_settings_are_taken_once() -> None:
    trials = [earlier(0.1, study=f"s{i}") for i in range(5)]
    assert rates(trials) == [0.1]
    assert rates([]) == []


def test_what_the_space_or_its_conditions_exclude_is_left_out() -> None:
    (narrow,) = define(optimizers=[{"name": "sgdm", "space": SPACE, "when": "lr <= 0.05"}]).optimizers
    trials = [earlier(0.1), earlier(0.01, study="b"), earlier(5.0, study="c")]
    assert rates(trials, spec=narrow) == [0.01]
    assert [one.params["lr"] for one in best_alone(trials[:2], narrow)] == [0.01]
    assert portfolio(trials[2:], SGDM, like=LIKE, n=1) == []


def test_what_an_earlier_study_did_not_have_is_drawn() -> None:
    searched = {"lr": SPACE["lr"], "recipe.batch_size": {"type": "int", "low": 8, "high": 64}}
    (spec,) = define(task={"name": "digits"}, optimizers=[{"name": "sgdm", "space": searched}]).optimizers
    (found,) = portfolio([earlier(0.1)], spec, like=LIKE, n=2)
    assert found.params == {"lr": 0.1}


def test_a_setting_that_a_study_left_at_its_default_is_taken_over() -> None:
    (adamw,) = define(
        optimizers=[{"name": "adamw", "space": {"weight_decay": {"type": "float", "low": 0.0, "high": 0.1}}}]
    ).optimizers
    (found,) = portfolio([earlier(0.1, settings={"lr": 0.1})], adamw, like=LIKE, n=1)
    assert found.params == {"weight_decay": 0.01}


@pytest.mark.parametrize(
    ("raw", "scope", "n", "within_20"),
    [
        ({}, "recipe", 1, 1),
        ({"from": "everything"}, "everything", 4, 4),
        ({"from": "everything", "n_trials": 9}, "everything", 9, 4),
    ],
)
def test_how_many_trials_are_taken(raw: dict[str, Any], scope: str, n: int, within_20: int) -> None:
    warm = WarmStart.model_validate(raw)
    assert (warm.scope, warm.n_trials) == (scope, n)
    assert warm.n_trials_within(Budget(trials_per_optimizer=20)) == within_20
    stored = define(warm_start=raw).to_json()["warm_start"]
    assert stored["from"] == scope
    assert WarmStart.model_validate(stored) == warm


def test_another_scope_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r"from\n.*'recipe' or 'everything'"):
        WarmStart.model_validate({"from": "nothing"})


def finished(store: MemoryStore, **changes: Any) -> None:
    study = store.add_study(define(**{"name": "earlier", "budget": {"trials_per_optimizer": 6}, **changes}))
    Cluster(coordinator_for(store, study)).run()
    store.studies[study.id] = replace(study, state=StudyState.COMPLETED)


def test_a_search_begins_with_the_portfolio_and_each_trial_says_where_it_is_from() -> None:
    store = MemoryStore()
    finished(store, name="shorter", task={"name": "synthetic", "model": "idle", "epochs": 2})
    later = store.add_study(
        define(name="later", warm_start={"from": "everything"}, budget={"trials_per_optimizer": 10})
    )
    for number in Cluster(coordinator_for(store, later)).rounds():
        if number == 1:
            break
    Cluster(coordinator_for(store, later, owner="second")).run()  # a restart takes nothing a second time
    for search in store.searches(later.id):
        runs = [run for run in store.runs(later.id) if run.search_id == search.id and run.stage is Stage.SEARCH]
        taken = [run for run in runs if run.taken_from]
        assert len(runs) == 10
        assert [run.trial_number for run in taken] == [0, 1]
        for run in taken:
            source = run.taken_from[0]
            assert (source["study"], source["label"]) == ("shorter", search.label)
            (before,) = (
                one
                for one in store.runs("study0")
                if (one.search_id, one.trial_number, one.stage)
                == (store.searches("study0")[search.id % 100].id, source["trial"], Stage.SEARCH)
            )
            assert before.state is RunState.COMPLETE
            assert before.params == run.params


def test_without_earlier_studies_a_search_starts_cold_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = MemoryStore()
    study = store.add_study(define(warm_start={"from": "everything"}))
    Cluster(coordinator_for(store, study)).run()
    assert not any(run.taken_from for run in store.runs(study.id))
    assert "it starts cold" in caplog.text
