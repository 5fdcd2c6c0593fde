"""What a driver learns of earlier studies, on SQLite and PostgreSQL."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from admeta.client.models import StudyChanges
from search.errors import LeaseLostError
from search.recipe import recipe_of
from search.records import RunOutcome
from search.states import FailureKind, RunState, Stage, StudyState
from service.database import SqlStore
from service.database.queries import best, get_study_view, list_trials
from service.database.studies import change_study
from tests.service.database.fill import complete, definition, leased, run


def best_rates(store: SqlStore, *, limit: int = 10, studies: list[str] | None = None) -> list[float]:
    """Learning rates of the best admetar settings on digits."""
    found = store.best_settings("admetar", like=definition(), studies=studies, limit=limit)
    assert all(one.settings["betas"] == [0.9, 0.999] for one in found)  # what was held fixed belongs to the settings
    return [one.settings["lr"] for one in found]


def test_best_settings_come_from_ended_studies_best_first(store: SqlStore) -> None:
    lease, (admetar, sgdm) = leased(store, definition("earlier"))
    run(store, lease, admetar, 0, complete(0.7), params={"lr": 0.1})
    run(store, lease, admetar, 1, complete(0.9), params={"lr": 0.2})
    run(store, lease, admetar, 2, complete(0.9), params={"lr": 0.2})  # the same again
    run(store, lease, admetar, 3, RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED), params={"lr": 9.0})
    run(store, lease, admetar, 1, complete(0.99), stage=Stage.CONFIRM, seed=0, params={"lr": 0.2})
    run(store, lease, sgdm, 0, complete(0.95), params={"lr": 0.5})
    assert best_rates(store) == []  # it still runs
    assert best_rates(store) == []
    store.set_study_state(lease, StudyState.COMPLETED)
    assert best_rates(store) == [0.2, 0.1]
    assert best_rates(store, limit=1) == [0.2]
    assert best_rates(store, studies=["another"]) == []
    assert best_rates(store, studies=["earlier"]) == [0.2, 0.1]


def test_best_settings_are_of_the_same_objective(store: SqlStore) -> None:
    lease, (admetar, _) = leased(store, definition("by-loss", objective={"metric": "val_loss"}))
    run(store, lease, admetar, 0, complete(0.1), params={"lr": 0.1})
    store.set_study_state(lease, StudyState.COMPLETED)
    assert best_rates(store) == []


def test_best_settings_are_of_the_same_recipe(store: SqlStore) -> None:
    """Another model, training length or split is another recipe; how fast it is trained is none."""
    task = definition().task.model_dump(mode="json")
    for i, change in enumerate(({"epochs": 3}, {"split_seed": 1}, {"batch_size": 17}, {"acceleration": "eager"})):
        lease, (admetar, _) = leased(store, definition(f"study-{i}", task={**task, **change}))
        run(store, lease, admetar, 0, complete(0.9), params={"lr": 0.1 * (i + 1)})
        store.set_study_state(lease, StudyState.COMPLETED)
    assert best_rates(store) == [0.4]


def test_best_settings_are_of_the_same_data(store: SqlStore) -> None:
    """A study that knew no fingerprint may be of the recipe; one of other data is not."""
    for i, fingerprint in enumerate(("a" * 64, "b" * 64, None)):
        lease, (admetar, _) = leased(store, definition(f"study-{i}"))
        if fingerprint is not None:
            store.set_data_fingerprint(lease, fingerprint)
        run(store, lease, admetar, 0, complete(0.9 - 0.1 * i), params={"lr": 0.1 * (i + 1)})
        store.set_study_state(lease, StudyState.COMPLETED)

    def found(fingerprint: str | None) -> list[float]:
        known = store.best_settings("admetar", like=definition(), data_fingerprint=fingerprint, studies=None, limit=10)
        return [round(one.settings["lr"], 9) for one in known]

    assert found("a" * 64) == [0.1, 0.3]
    assert found("b" * 64) == [0.2, 0.3]
    assert found(None) == [0.3]


def test_the_fingerprint_of_a_studys_data_is_in_its_recipe_and_stays(store: SqlStore) -> None:
    lease, _ = leased(store, definition())
    before = get_study_view(store.engine, lease.study_id)
    assert (before.data_fingerprint, before.recipe) == (None, recipe_of(definition()))
    for fingerprint in ("a" * 64, "b" * 64):
        store.set_data_fingerprint(lease, fingerprint)
    after = get_study_view(store.engine, lease.study_id)
    assert (after.data_fingerprint, after.recipe) == ("a" * 64, recipe_of(definition(), data_fingerprint="a" * 64))
    assert store.get_study(lease.study_id).data_fingerprint == "a" * 64
    with pytest.raises(LeaseLostError):
        store.set_data_fingerprint(replace(lease, owner="another"), "c" * 64)


def test_confirmed_settings_come_first_by_their_mean(store: SqlStore) -> None:
    """A single good value is luck; a trial with a failed confirm run is left out."""
    lease, (admetar, _) = leased(store, definition("earlier"))
    for number, (value, seeds) in enumerate([(0.99, []), (0.9, [0.8, 0.7]), (0.8, [0.85, 0.85]), (0.95, [0.99, None])]):
        params = {"lr": 0.1 * (number + 1)}
        run(store, lease, admetar, number, complete(value), params=params)
        for seed, confirmed in enumerate(seeds):
            failed = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED)
            outcome = failed if confirmed is None else complete(confirmed)
            run(store, lease, admetar, number, outcome, stage=Stage.CONFIRM, seed=seed, params=params)
    store.set_study_state(lease, StudyState.COMPLETED)
    assert best_rates(store) == pytest.approx([0.3, 0.2, 0.1])


def test_a_portfolio_is_from_the_best_of_each_search_whatever_its_recipe(store: SqlStore) -> None:
    """Three trials of each search, those of alike studies first; none of running studies, of void ones, or failed."""
    task = definition().task.model_dump(mode="json")
    for name, change in (("same", {}), ("longer", {"epochs": 3}), ("void", {}), ("runs", {})):
        lease, (admetar, sgdm) = leased(store, definition(name, task={**task, **change}))
        for number, value in enumerate((0.5, 0.9, 0.8, 0.7)):
            run(store, lease, admetar, number, complete(value))
        run(store, lease, sgdm, 0, complete(0.99))
        failed = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED)
        run(store, lease, admetar, 1, failed, stage=Stage.CONFIRM, seed=0)
        run(store, lease, admetar, 3, complete(0.6), stage=Stage.CONFIRM, seed=0)
        if name != "runs":
            store.set_study_state(lease, StudyState.COMPLETED)
    lease, (by_loss, _) = leased(store, definition("by-loss", objective={"metric": "val_loss"}))
    for number, value in enumerate((0.3, 0.1, 0.2)):
        run(store, lease, by_loss, number, complete(value))
    store.set_study_state(lease, StudyState.COMPLETED)
    change_study(store.engine, "void", StudyChanges(tags=["void"]))

    def found(studies: list[str] | None = None) -> list[tuple[str, int, int, bool]]:
        known = store.earlier_trials("admetar", like=definition("new"), studies=studies)
        return [(one.study, one.trial, one.place, one.same_recipe) for one in known]

    assert sorted(found()) == sorted(
        [
            *(("by-loss", trial, place, False) for place, trial in enumerate((1, 2, 0), start=1)),
            *(("longer", trial, place, False) for place, trial in enumerate((3, 2, 0), start=1)),
            *(("same", trial, place, True) for place, trial in enumerate((3, 2, 0), start=1)),
        ]
    )
    assert found(["longer"]) == [("longer", 3, 1, False), ("longer", 2, 2, False), ("longer", 0, 3, False)]
    assert store.earlier_trials("adan", like=definition("new"), studies=None) == []


def test_of_many_searches_the_most_alike_and_then_the_newest_are_read(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["service.database.queries.earlier"], "MAX_SEARCHES", 2)
    task = definition().task.model_dump(mode="json")
    for name, change in (("same", {}), ("old", {"epochs": 3}), ("new", {"epochs": 4})):
        lease, (admetar, _) = leased(store, definition(name, task={**task, **change}))
        run(store, lease, admetar, 0, complete(0.5))
        store.set_study_state(lease, StudyState.COMPLETED)
    known = store.earlier_trials("admetar", like=definition("next"), studies=None)
    assert {one.study for one in known} == {"same", "new"}


def test_what_a_trial_was_taken_from_is_in_its_answers(store: SqlStore) -> None:
    source = {"study": "earlier", "label": "admetar", "trial": 3}
    lease, (admetar, sgdm) = leased(store, definition("warm", warm_start={"from": "everything"}))
    key = {"stage": Stage.SEARCH, "seed": 100, "params": {"lr": 0.1}}
    taken = store.create_run(lease, admetar.id, trial_number=0, taken_from=[source], **key)
    assert taken.taken_from == [source]
    store.finish_run(lease, store.start_attempt(lease, taken.id).id, complete(0.9))
    run(store, lease, admetar, 1, complete(0.8))
    run(store, lease, sgdm, 0, complete(0.8))
    first, second, other = list_trials(store.engine, "warm").items
    shown = {**source, "is_step": False}
    assert [one.model_dump() for one in first.taken_from] == [shown]
    assert second.taken_from == other.taken_from == []
    known = best(store.engine, task="digits", optimizer="admetar")
    assert known is not None
    assert [one.model_dump() for one in known.taken_from] == [shown]
    assert [search.n_taken for search in get_study_view(store.engine, "warm").searches] == [1, 0]
