"""The best of everything is, one by one, what `best` tells."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from search.records import RunOutcome
from search.states import FailureKind, RunState, Stage
from service.database import SqlStore
from service.database.queries import best, best_results
from tests.service.database.fill import complete, definition, leased, run

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
