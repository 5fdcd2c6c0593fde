"""The best of everything is, one by one, what `best` tells."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from search.advice import warnings_for
from search.records import RunOutcome
from search.states import FailureKind, RunState, Stage, StudyState
from service import export
from service.database import SqlStore
from service.database.queries import best, best_results, comparison, get_run, list_trials
from service.database.queries.best import longest_recipes
from tasks.registry import parse_config
from tests.service.database.fill import complete, definition, leased, run

WHERE = {"type": "categorical", "choices": ["all", "matrices"]}
LOST = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged")


def test_best_results_agree_with_best(store: SqlStore, engine: Engine) -> None:
    for i, name in enumerate(("one", "two", "three")):
        lease, (admetar, sgdm) = leased(store, definition(name))
        for number in range(3):
            value = 0.5 + 0.1 * ((number + i) % 3)
            run(store, lease, admetar, number, complete(value))
            run(store, lease, sgdm, number, complete(value) if number else LOST)
        for seed, outcome in enumerate([complete(0.6 + 0.01 * i), complete(0.6), None if i == 2 else LOST]):
            run(store, lease, admetar, i, outcome, stage=Stage.CONFIRM, seed=seed)
    found = best_results(engine)
    assert [one.best.optimizer for one in found] == ["admetar", "sgdm"]
    for one in found:
        assert one.best == best(engine, task="digits", optimizer=one.best.optimizer, model=one.best.model)
    assert found[0].best.study == "two"  # of the confirmed the better mean; a seed of the third still runs
    assert found[0].train_s.n == 2


def test_tested_metrics_count_failed_seeds(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = leased(store, definition("one"))
    run(store, lease, admetar, 0, complete(0.5))
    for seed, outcome in enumerate([complete(0.6, test_accuracy=0.5, test_loss=2.0), LOST]):
        run(store, lease, admetar, 0, outcome, stage=Stage.CONFIRM, seed=seed)
    (one,) = best_results(engine)
    assert one.tested["accuracy"].mean == pytest.approx(0.5)
    assert (one.tested["loss"].n, one.tested["loss"].n_failed) == (1, 1)


def test_what_started_from_trained_weights_stands_apart(store: SqlStore, engine: Engine) -> None:
    """It is better, and says nothing of the settings for fresh weights; where there is nothing else, it is told."""
    origin = {"study": "first", "optimizer": "admetar", "trial": 0}
    tuned, (admetar, sgdm) = leased(store, definition("tuned", task={"name": "digits", "init_from": origin}))
    for search in (admetar, sgdm):
        run(store, tuned, search, 0, complete(0.9))
    fresh, (search, _) = leased(store, definition("fresh"))
    run(store, fresh, search, 0, complete(0.5))
    assert [(one.best.optimizer, one.variant, one.best.study) for one in best_results(engine)] == [
        ("admetar", None, "fresh"),
        ("admetar", "finetune", "tuned"),
        ("sgdm", "finetune", "tuned"),
    ]
    for optimizer, study, init_from in (("admetar", "fresh", None), ("sgdm", "tuned", "first/admetar/0")):
        found = best(engine, task="digits", optimizer=optimizer)
        assert found is not None
        assert (found.study, found.init_from) == (study, init_from)


def test_an_empty_database_has_no_best_results(engine: Engine) -> None:
    assert best_results(engine) == []


def test_results_of_two_recipes_are_never_ranked_together(store: SqlStore, engine: Engine) -> None:
    """One epoch on an easy split is not better than twelve: the longer training answers, the other is named."""
    for name, epochs, value in (("short", 1, 0.9), ("long", 12, 0.8), ("long-again", 12, 0.7)):
        lease, (search, _) = leased(store, definition(name, task={"name": "digits", "epochs": epochs}))
        run(store, lease, search, 0, complete(value))
    leased(store, definition("without-results", task={"name": "digits", "epochs": 30}))
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert (found.study, found.epochs) == ("long", 12)
    assert [(one.study, one.model, one.epochs) for one in found.other_recipes] == [("short", "convnet", 1)]
    short = best(engine, task="digits", optimizer="admetar", recipe=found.other_recipes[0].recipe[:12])
    assert short is not None
    assert (short.study, short.epochs) == ("short", 1)
    assert [(one.best.study, one.best.epochs) for one in best_results(engine)] == [("short", 1), ("long", 12)]
    assert [one.best.study for one in longest_recipes(best_results(engine))] == ["long"]


def test_of_equal_means_that_of_more_seeds_is_best(store: SqlStore, engine: Engine) -> None:
    for name, seeds in (("first", [0]), ("second", [0, 1, 2]), ("third", [0, 1])):
        lease, (search, _) = leased(store, definition(name))
        run(store, lease, search, 0, complete(0.5))
        for seed in seeds:
            run(store, lease, search, 0, complete(0.5), stage=Stage.CONFIRM, seed=seed)
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert (found.study, found.validation.n) == ("second", 3)
    assert [one.best.study for one in best_results(engine)] == ["second"]


def test_a_preset_is_apart_from_the_default(store: SqlStore, engine: Engine) -> None:
    released = [
        {
            "name": "admetar",
            "fixed": {"preset": "released"},
            "space": {"lr": {"type": "categorical", "choices": [0.1]}},
        },
        {"name": "sgdm"},
    ]
    for name, optimizers, value in (("bug", released, 0.9), ("plain", None, 0.8)):
        changes = {} if optimizers is None else {"optimizers": optimizers}
        lease, (search, *_) = leased(store, definition(name, **changes))
        run(store, lease, search, 0, complete(value))
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert found.study == "plain"
    assert {one.variant for one in best_results(engine)} == {None, "preset released"}


def test_a_cancelled_confirm_run_says_nothing_of_its_settings(store: SqlStore, engine: Engine) -> None:
    """A study that was cancelled in mid-confirmation: its best trial stays the best, here and for warm starts."""
    cancelled = RunOutcome(state=RunState.FAIL, failure=FailureKind.CANCELLED, error="the study was cancelled")
    for name, value, last in (("cancelled", 0.9, cancelled), ("other", 0.8, complete(0.8))):
        lease, (search, _) = leased(store, definition(name))
        for number in range(2):
            run(store, lease, search, number, complete(value - 0.1 * number))
        for seed, outcome in enumerate((complete(value), complete(value), last)):
            run(store, lease, search, 0, outcome, stage=Stage.CONFIRM, seed=seed)
        store.set_study_state(lease, StudyState.CANCELLED)
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert (found.study, found.trial, found.evidence) == ("cancelled", 0, "confirmed")
    assert [one.best.study for one in best_results(engine)] == ["cancelled"]
    (known,) = store.best_settings("admetar", like=definition("next"), studies=["cancelled"], limit=1)
    assert known.settings["lr"] == pytest.approx(0.1)


def test_of_two_recipes_with_as_many_epochs_the_last_used_is_in_the_tables(store: SqlStore, engine: Engine) -> None:
    for batch_size in (16, 32, 64, 128):
        lease, (search, _) = leased(
            store, definition(f"b{batch_size}", task={"name": "digits", "batch_size": batch_size})
        )
        run(store, lease, search, 0, complete(0.9))
        found = best(engine, task="digits", optimizer="admetar")
        assert found is not None
        assert [one.best.study for one in longest_recipes(best_results(engine))] == [found.study] == [f"b{batch_size}"]


def test_a_searched_recipe_is_beside_the_settings(store: SqlStore, engine: Engine) -> None:
    batches = {"type": "categorical", "choices": [16, 32]}
    optimizers = [{"name": "admetar", "fixed": {"recipe.grad_clip": 1.0}}, {"name": "sgdm"}]
    study = definition("own", optimizers=optimizers, recipe={"batch_size": batches, "weight_decay_on": WHERE})
    assert not [warning for warning in warnings_for(study) if "recipe" in warning]
    lease, (admetar, sgdm) = leased(store, study)
    drawn = {"lr": 0.1, "recipe.batch_size": 16, "recipe.weight_decay_on": "matrices"}
    run(store, lease, admetar, 0, complete(0.9), params=drawn)
    run(store, lease, sgdm, 0, complete(0.8), params={"lr": 0.2, "recipe.batch_size": 32})
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert found.settings["lr"] == 0.1
    assert not [name for name in found.settings if "recipe" in name]
    assert found.training == {"batch_size": 16, "weight_decay_on": "matrices", "grad_clip": 1.0}
    assert parse_config(found.task_config) == parse_config({"name": "digits", **found.training})
    assert found.weight_decay_on == "matrices"
    assert "weight_decay_on='matrices'" in found.code
    rows = comparison(engine, lease.study_id)
    assert [row.training.get("batch_size") for row in rows.rows] == [16, 32]
    assert rows.remarks == [
        "admetar has its own batch_size, grad_clip, weight_decay_on; sgdm has its own batch_size, weight_decay_on. "
        "A verdict compares optimizers together with these, at equal epochs."
    ]
    plain, _ = leased(store, definition("plain"))
    assert comparison(engine, plain.study_id).remarks == []
    trials = list_trials(engine, lease.study_id).items
    columns = export.columns(study.to_json())
    (row, _) = export.rows(trials, [], columns)
    assert (row["settings.recipe.batch_size"], row["settings.recipe.grad_clip"]) == (16.0, 1.0)
    assert get_run(engine, trials[0].runs[0].id).training["batch_size"] == 16


def test_fewer_failed_seeds_are_better_as_in_the_comparison(store: SqlStore, engine: Engine) -> None:
    failed = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged at step 3")
    lease, (search, _) = leased(store, definition(confirm={"top_k": 2, "seeds": [0, 1, 2, 3]}))
    for number, (value, n_failed) in enumerate(((0.99, 3), (0.9, 1))):
        run(store, lease, search, number, complete(value))
        for seed in range(4):
            outcome = failed if seed < n_failed else complete(value)
            run(store, lease, search, number, outcome, stage=Stage.CONFIRM, seed=seed)
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert (found.trial, found.evidence) == (1, "1 of 4 confirm runs failed")
    assert [one.best.trial for one in best_results(engine)] == [1]
    assert comparison(engine, lease.study_id).rows[0].trial == 1
