"""Optimizers across tasks, read from the database: what counts, what is left out, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import Engine

from admeta.client.models import ProfilesView, StudyChanges
from search.errors import StudyNotFoundError
from search.records import RunOutcome
from search.states import FailureKind, RunState, Stage, StudyState, TimeUnit
from service.database import SqlStore
from service.database.errors import NoProfileError
from service.database.queries import Choice, profiles
from service.database.studies import change_study
from tests.service.database.fill import complete, curve, definition, leased, run

LOST = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged")
SHORT, LONG = {"name": "digits", "epochs": 2}, {"name": "digits", "epochs": 3}


def study(
    store: SqlStore,
    name: str,
    task: Mapping[str, Any],
    values: Mapping[str, Sequence[float | None]],
    *,
    state: StudyState = StudyState.COMPLETED,
    steps: Mapping[str, int] | None = None,
    **changes: Any,
) -> None:
    """A study that has ended. Its optimizers have a trial with these values over the confirm seeds, None for a failure.

    Args:
        values: by optimizer, or by label as "label=optimizer"; without values no trial was completed.
        steps: by optimizer, the epoch from which its curves are at their value; default: the first.
    """
    named = [one.rpartition("=") for one in values]
    optimizers = [{"name": of, **({"label": label} if label else {})} for label, _, of in named]
    seeds = list(range(max(map(len, values.values()))))
    study = definition(name, task=dict(task), optimizers=optimizers, confirm={"seeds": seeds, "top_k": 1}, **changes)
    lease, searches = leased(store, study)
    repeats = len(searches) // len(values)
    for i, search in enumerate(searches):
        key, of = list(values.items())[i // repeats]
        if not of:
            run(store, lease, search, 0, LOST)
            continue
        run(store, lease, search, 0, complete(0.5))
        at = (steps or {}).get(key, 1)
        for seed, value in enumerate(of):
            points = curve(*[0.1] * (at - 1), value) if value is not None else ()
            outcome = LOST if value is None else complete(value)
            run(store, lease, search, 0, outcome, stage=Stage.CONFIRM, seed=seed, points=points)
    store.set_study_state(lease, state)


def ranks(view: ProfilesView) -> dict[str, float | None]:
    return {one.name: one.mean_rank for one in view.optimizers}


def left_out(view: ProfilesView) -> dict[str, str]:
    return {one.name: one.reason for one in view.left_out}


def test_ranks_meet_across_recipes_and_values_within_one(store: SqlStore, engine: Engine) -> None:
    study(store, "short", SHORT, {"adamw": (0.6, 0.62), "sgdm": (0.7, 0.72)}, steps={"adamw": 2, "sgdm": 1})
    study(store, "long", LONG, {"adamw": (0.9, 0.92), "sgdm": (0.8, 0.82), "adam": (0.85, 0.87)}, steps={"adamw": 3})
    found = profiles(engine, Choice())
    assert ranks(found) == {"adamw": 1.5, "sgdm": 1.5}
    assert [(task.epochs, task.studies, task.model) for task in found.tasks] == [
        (2, ["short"], "convnet"),
        (3, ["long"], "convnet"),
    ]
    assert left_out(found) == {"adam": "has results on 1 of the 2 recipes"}
    assert len({task.recipe for task in found.tasks}) == 2
    long = {one.optimizer: one for one in found.results if one.recipe == found.tasks[1].recipe}
    assert (long["adamw"].mean, long["adamw"].n, long["adamw"].rank, long["sgdm"].rank) == (
        pytest.approx(0.91),
        2,
        1,
        2,
    )
    # Both have the variance 0.0002; divided by the median of chi-square of 1 degree, 0.4549.
    assert found.tasks[1].std == pytest.approx((0.0002 / 0.454936) ** 0.5, rel=1e-4)
    assert long["sgdm"].distance == pytest.approx(0.1 / found.tasks[1].std, rel=1e-4)


def test_time_to_the_target_is_the_median_over_the_runs(store: SqlStore, engine: Engine) -> None:
    budget = {"trials_per_optimizer": 4, "target": 0.55}
    values = {"adamw": (0.6, 0.6, 0.5), "sgdm": (0.7, 0.7, 0.7)}
    study(store, "a", LONG, values, steps={"adamw": 3, "sgdm": 2}, budget=budget)
    found = profiles(engine, Choice(), time=TimeUnit.STEPS)
    of = {one.optimizer: one for one in found.results}
    assert (of["adamw"].time, of["adamw"].n_reached, of["adamw"].ratio) == (30, 2, 1.5)  # ten steps an epoch
    assert of["sgdm"].time == 20
    areas = {one.name: one.by_time and one.by_time.area for one in found.optimizers}
    assert areas == {"sgdm": 1, "adamw": pytest.approx((4 - 1.5) / 3)}
    assert profiles(engine, Choice()).results[0].time in (2.0, 3.0)  # a second an epoch


def test_of_several_targets_the_hardest_counts(store: SqlStore, engine: Engine) -> None:
    for name, target in (("a", 0.55), ("b", 0.65)):
        budget = {"trials_per_optimizer": 4, "target": target}
        study(store, name, LONG, {"adamw": (0.6, 0.6), "sgdm": (0.7, 0.7)}, budget=budget)
    found = profiles(engine, Choice())
    assert found.tasks[0].target == 0.65
    assert {one.optimizer: one.n_reached for one in found.results} == {"adamw": 0, "sgdm": 4}


def test_an_optimizer_with_failed_runs_is_behind_and_one_without_a_trial_last(store: SqlStore, engine: Engine) -> None:
    study(store, "a", SHORT, {"adamw": (0.9, None), "sgdm": (0.5, 0.6), "adam": ()})
    found = profiles(engine, Choice())
    assert ranks(found) == {"sgdm": 1, "adamw": 2, "adam": 3}
    of = {one.optimizer: one for one in found.results}
    assert (of["adamw"].n, of["adamw"].n_failed, of["adamw"].distance) == (1, 1, None)
    assert (of["adam"].n, of["adam"].n_failed, of["adam"].mean) == (0, 2, None)


def test_void_tasks_are_left_out_by_name(store: SqlStore, engine: Engine) -> None:
    study(store, "good", LONG, {"adamw": (0.9, 0.91), "sgdm": (0.8, 0.81)})
    study(store, "same", SHORT, {"adamw": (0.1, 0.1), "sgdm": (0.1, 0.1)})
    study(store, "chance", {"name": "digits", "epochs": 5}, {"adamw": (0.1, 0.12), "sgdm": (0.11, 0.1)})
    change_study(engine, "chance", StudyChanges(tags=["void"]))
    found = profiles(engine, Choice())
    assert [task.studies for task in found.tasks] == [["good"]]
    reasons = left_out(found)
    assert reasons.pop("chance") == "has the tag void"
    ((name, reason),) = reasons.items()
    assert name.startswith("digits convnet, 2 epochs (")
    assert reason == "void: all optimizers failed, or all have the same result"


def test_studies_of_all_optimizers_come_before_parts(store: SqlStore, engine: Engine) -> None:
    study(store, "part", SHORT, {"adamw": (0.99, 0.99)})
    for name in ("whole", "again"):
        study(store, name, SHORT, {"adamw": (0.6, 0.61), "sgdm": (0.7, 0.71)})
    found = profiles(engine, Choice())
    assert found.tasks[0].studies == ["again", "whole"]
    assert {(one.n, one.n_searches, one.n_trials) for one in found.results} == {(4, 2, 8)}
    assert left_out(found) == {"part": "lacks sgdm; another study of its recipe has all"}


def test_parts_are_compared_where_no_study_is_whole(store: SqlStore, engine: Engine) -> None:
    study(store, "one", SHORT, {"adamw": (0.6, 0.61)})
    study(store, "other", SHORT, {"sgdm": (0.7, 0.71)})
    found = profiles(engine, Choice())
    assert ranks(found) == {"sgdm": 1, "adamw": 2}
    assert found.tasks[0].note == "no study has all optimizers: results of several studies, whose budgets may differ"


def test_labels_and_presets_stand_apart_and_repeated_searches_together(store: SqlStore, engine: Engine) -> None:
    study(store, "a", SHORT, {"adamw": (0.6, 0.61), "mine=adamw": (0.7, 0.71)}, searches=3)
    found = profiles(engine, Choice())
    assert ranks(found) == {"mine (adamw)": 1, "adamw": 2}
    assert {(one.n, one.n_searches) for one in found.results} == {(6, 3)}
    other = [{"name": "admetar"}, {"name": "admetar", "label": "admetar-p", "fixed": {"preset": "paper"}}]
    lease, searches = leased(store, definition("b", task=LONG, optimizers=other, confirm={"top_k": 0}))
    for search, value in zip(searches, (0.5, 0.6), strict=True):
        run(store, lease, search, 0, complete(value))
    store.set_study_state(lease, StudyState.COMPLETED)
    assert set(ranks(profiles(engine, Choice(studies=["b"])))) == {"admetar", "admetar-p (admetar), preset paper"}


def test_a_baseline_is_compared_where_it_is_chosen(store: SqlStore, engine: Engine) -> None:
    lease, searches = leased(store, definition("a", task=SHORT, baseline="defaults", confirm={"top_k": 0}))
    for search, value in zip(searches, (0.9, 0.8, 0.7, 0.6), strict=True):
        run(store, lease, search, 0, complete(value))
    store.set_study_state(lease, StudyState.COMPLETED)
    found = profiles(engine, Choice())
    assert ranks(found) == {"admetar": 1, "sgdm": 2}
    baseline = "admetar.defaults (admetar)"
    assert left_out(found)[baseline] == "is a baseline, which is compared where it is chosen"
    assert ranks(profiles(engine, Choice(optimizers=["admetar", baseline]))) == {"admetar": 1, baseline: 2}


def test_single_runs_do_not_compete_with_confirmed_results(store: SqlStore, engine: Engine) -> None:
    lease, searches = leased(store, definition("single", task=SHORT, confirm={"top_k": 0}))
    for search in searches:
        run(store, lease, search, 0, complete(0.9))
    run(store, lease, searches[0], 1, complete(0.95))
    store.set_study_state(lease, StudyState.COMPLETED)
    alone = profiles(engine, Choice())
    assert ranks(alone) == {"admetar": 1, "sgdm": 2}
    assert alone.tasks[0].without_value is not None
    study(store, "confirmed", SHORT, {"admetar": (0.6, 0.61), "sgdm": (0.7, 0.71)})
    both = profiles(engine, Choice())
    assert ranks(both) == {"sgdm": 1, "admetar": 2}
    assert left_out(both) == {"single": "has single runs; other studies of its recipe have confirmed results"}


def test_choices(store: SqlStore, engine: Engine) -> None:
    study(store, "a", SHORT, {"adamw": (0.6, 0.61), "sgdm": (0.7, 0.71)})
    study(store, "b", LONG, {"adamw": (0.6, 0.61), "sgdm": (0.7, 0.71), "adam": (0.8, 0.81)})
    study(store, "stopped", LONG, {"adamw": (0.9, 0.9), "sgdm": (0.1, 0.1)}, state=StudyState.CANCELLED)
    change_study(engine, "b", StudyChanges(tags=["mine"]))
    assert left_out(profiles(engine, Choice())) == {"adam": "has results on 1 of the 2 recipes"}
    assert left_out(profiles(engine, Choice(studies=["b", "stopped"]))) == {
        "stopped": "is CANCELLED; only completed studies are compared"
    }
    tagged = profiles(engine, Choice(tag="mine"))
    assert ranks(tagged) == {"adam": 1, "sgdm": 2, "adamw": 3}
    recipe = str(tagged.tasks[0].recipe)
    assert profiles(engine, Choice(recipes=[recipe[:9]])).tasks == tagged.tasks
    chosen = profiles(engine, Choice(optimizers=["adamw", "adam"]))
    assert ranks(chosen) == {"adam": 1, "adamw": 2}
    assert set(left_out(chosen).values()) == {"has no result of adam", "was not chosen"}
    assert profiles(engine, Choice(tasks=["cifar10"])).optimizers == []
    with pytest.raises(NoProfileError, match="has an optimizer 'ranger'"):
        profiles(engine, Choice(optimizers=["adamw", "ranger"]))
    with pytest.raises(NoProfileError, match="begins with '0123'"):
        profiles(engine, Choice(recipes=["0123"]))
    with pytest.raises(StudyNotFoundError):
        profiles(engine, Choice(studies=["nothing"]))


def test_nothing_to_compare(engine: Engine) -> None:
    found = profiles(engine, Choice())
    assert (found.optimizers, found.tasks, found.results, found.left_out) == ([], [], [], [])
    assert "nothing to compare" in found.sentence
