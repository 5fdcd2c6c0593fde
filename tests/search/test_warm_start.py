"""Which settings of earlier studies a search begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic import ValidationError

from search.optimizer_search import OptimizerSearch
from search.records import RunRecord, StudyRecord
from search.samplers import TpeSampler
from search.sections import Budget, WarmStart
from search.states import Direction, RunState, Stage, StudyState
from search.trials import Trials
from search.warm_start import DEGREE, STEP, TAKEN_FROM, EarlierTrial, best_alone, degree, near_best, portfolio
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
    assert [degree(one.task, one.model, LIKE) for one in alike[1:]] == [1, 2, 4]
    assert degree("gone", None, LIKE) == 4
    digits = define(name="d", task="digits")
    assert degree("cifar10", "resnet20", digits) == 3
    assert degree("cola", "minilm", digits) == 4
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


SOURCE = {"study": "a", "label": "sgdm", "trial": 1}


def tried(
    value: float, *, taken: bool = False, degree: int = 1, spec: OptimizerSearch = SGDM, **params: Any
) -> FrozenTrial:
    params = params or {"lr": 0.01, "momentum": 0.9}
    return create_trial(
        state=TrialState.COMPLETE,
        value=value,
        params=params,
        distributions={name: spec.space[name].distribution() for name in params},
        user_attrs={TAKEN_FROM: [SOURCE], DEGREE: degree} if taken else {},
    )


def near(trials: list[FrozenTrial], *, spec: OptimizerSearch = SGDM, seed: int = 0) -> dict[str, Any] | None:
    found = near_best(trials, spec, TpeSampler(seed=seed), Direction.MAXIMIZE)
    assert found is None or (found.sources, found.degree) == ([{**SOURCE, "is_step": True}], 1)
    return None if found is None else dict(found.params)


def after_start(*trials: FrozenTrial) -> list[FrozenTrial]:
    """The trials, with bad ones before them for the sampler's random start."""
    return [*(tried(0.1, lr=0.2, momentum=0.5 + 0.01 * i) for i in range(4)), *trials]


def test_every_second_proposal_is_near_the_best_settings_while_they_are_taken_over() -> None:
    taken, other = tried(0.9, taken=True), tried(0.5, lr=0.3, momentum=0.6)
    params = near(after_start(taken, other))
    assert params is not None
    assert params != taken.params
    assert near(after_start(taken, other)) == params  # from what is stored and the seed alone
    assert near(after_start(taken, other), seed=1) != params
    assert near(after_start(taken, other, other)) is None  # the sampler's turn
    assert near([taken, other]) is None  # its random start
    assert near(after_start(taken, tried(0.95))) is None  # what was taken over is not the best
    assert near(after_start(other, other)) is None
    assert near([]) is None
    assert near(after_start(tried(0.9, taken=True, degree=2), other)) is None  # of another model
    lost = create_trial(state=TrialState.FAIL, user_attrs={TAKEN_FROM: [SOURCE], DEGREE: 0})
    assert near([lost] * 4) is None


def test_steps_have_the_size_that_is_said_and_stay_in_the_range() -> None:
    lr, momentum = SGDM.space["lr"], SGDM.space["momentum"]
    best = tried(0.9, taken=True, lr=0.01, momentum=0.989)
    steps = [near([best] * 4, seed=seed) for seed in range(400)]
    found = [one for one in steps if one is not None]
    assert len(found) == 400
    moved = [lr.position(one["lr"]) - lr.position(0.01) for one in found]
    assert abs(sum(moved)) / 400 < 4 * STEP / 20
    assert sum(one**2 for one in moved) / 400 == pytest.approx(STEP**2, rel=0.3)
    assert all(0.5 <= one["momentum"] <= 0.99 for one in found)  # reflected, so none is at the end itself
    assert sum(momentum.position(one["momentum"]) == 1 for one in found) == 0


def test_steps_meet_the_conditions_and_repeat_nothing() -> None:
    space = {
        "nesterov": {"type": "categorical", "choices": [True, False]},
        "lr": {"type": "float", "low": 0.1, "high": 0.3, "step": 0.1},
        "momentum": {"type": "float", "low": 0.5, "high": 0.99, "when": {"nesterov": True}},
    }
    (spec,) = define(optimizers=[{"name": "sgdm", "space": space, "when": "lr <= 0.2"}]).optimizers
    best = tried(0.9, taken=True, spec=spec, nesterov=True, lr=0.2, momentum=0.9)
    found = [one for seed in range(60) if (one := near([best] * 4, spec=spec, seed=seed)) is not None]
    assert {one["lr"] for one in found} == {0.1, 0.2}
    assert all(("momentum" in one) == one["nesterov"] for one in found)
    assert {one["nesterov"] for one in found} == {True, False}
    grid = {"nesterov": space["nesterov"], "lr": {"type": "categorical", "choices": [0.1]}}
    (small,) = define(optimizers=[{"name": "sgdm", "space": grid}]).optimizers
    all_of_it = [tried(0.9, taken=True, spec=small, nesterov=one, lr=0.1) for one in (True, False)]
    assert near(2 * all_of_it, spec=small) is None


def finished(store: MemoryStore, **changes: Any) -> None:
    study = store.add_study(define(**{"name": "earlier", "budget": {"trials_per_optimizer": 6}, **changes}))
    Cluster(coordinator_for(store, study)).run()
    store.studies[study.id] = replace(study, state=StudyState.COMPLETED)


def begun(store: MemoryStore) -> StudyRecord:
    finished(store, name="shorter", task={"name": "synthetic", "model": "idle", "epochs": 2})
    return store.add_study(define(name="later", warm_start={"from": "everything"}, budget={"trials_per_optimizer": 10}))


def searched(store: MemoryStore, study: StudyRecord, label: str) -> list[RunRecord]:
    (search,) = [one for one in store.searches(study.id) if one.label == label]
    return [run for run in store.runs(study.id) if run.search_id == search.id and run.stage is Stage.SEARCH]


@pytest.mark.parametrize("label", ["adamw", "sgdm"])
def test_a_search_begins_with_the_portfolio_and_each_trial_says_where_it_is_from(label: str) -> None:
    store = MemoryStore()
    later = begun(store)
    for number in Cluster(coordinator_for(store, later)).rounds():
        if number == 1:
            break
    Cluster(coordinator_for(store, later, owner="second")).run()  # a restart takes nothing a second time
    runs = searched(store, later, label)
    assert [run.trial_number for run in runs] == list(range(10))
    known = {run.trial_number: run for run in searched(store, store.studies["study0"], label)}
    for run in runs[:2]:
        source = run.taken_from[0]
        assert (source["study"], source["label"]) == ("shorter", label)
        before = known[source["trial"]]
        assert before.state is RunState.COMPLETE
        assert before.params == run.params
        assert "is_step" not in source
    steps = [run for run in runs[2:] if run.taken_from]
    assert {run.trial_number % 2 for run in steps} <= {0}
    for step in steps:  # near a trial that names the same sources
        first, *others = step.taken_from
        assert first["is_step"]
        alike = [first, {name: first[name] for name in ("study", "label", "trial")}]
        assert any([one, *others] == run.taken_from for run in runs[: step.trial_number] for one in alike)


@pytest.mark.parametrize("kill_after", range(1, 30, 4))
def test_a_killed_search_goes_on_with_the_same_trials(kill_after: int) -> None:
    whole, store = MemoryStore(), MemoryStore()
    uninterrupted, killed = begun(whole), begun(store)
    Cluster(coordinator_for(whole, uninterrupted, slots=1)).run()
    for number in Cluster(coordinator_for(store, killed, slots=1)).rounds():
        if number == kill_after:
            break
    Cluster(coordinator_for(store, killed, owner="second", slots=1)).run()
    n_steps = 0
    for label in ("adamw", "sgdm"):
        runs, expected = searched(store, killed, label), searched(whole, uninterrupted, label)
        assert [(run.params, run.taken_from) for run in runs] == [(run.params, run.taken_from) for run in expected]
        n_steps += sum(bool(run.taken_from) for run in runs[2:])
    assert n_steps > 0


def test_a_step_that_a_dead_driver_queued_is_the_next_trial() -> None:
    """The driver died after the step was stored, and before its run was."""
    store = MemoryStore()
    later = begun(store)
    coordinator_for(store, later)
    (planned,) = [later.definition.planned_search("sgdm")]
    name = next(one.optuna_name for one in store.searches(later.id) if one.label == "sgdm")

    def opened() -> Trials:
        return Trials(store.optuna_storage(), name, definition=later.definition, planned=planned, points=lambda _: ())

    first = opened()
    for value in (0.9, 0.5, 0.4, 0.3):
        asked = first.ask()
        first._storage.set_trial_state_values(first._id(asked.number), TrialState.COMPLETE, [value])
    first._queue_near_best()
    (queued,) = first._study.get_trials(states=(TrialState.WAITING,))
    asked = opened().ask()
    assert asked.number == queued.number == 4
    assert asked.params == queued.system_attrs["fixed_params"]
    assert asked.taken_from


def test_without_earlier_studies_a_search_starts_cold_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = MemoryStore()
    study = store.add_study(define(warm_start={"from": "everything"}))
    Cluster(coordinator_for(store, study)).run()
    assert not any(run.taken_from for run in store.runs(study.id))
    assert "it starts cold" in caplog.text
