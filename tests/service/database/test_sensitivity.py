"""Which runs a sensitivity is read from, what it says, and what else the runs must not touch."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from search.errors import SearchError, StudyConflictError
from search.records import Lease, RunOutcome, SearchRecord
from search.states import FailureKind, RunState, Stage, StudyState
from service.database import SqlStore
from service.database.queries import (
    Axis,
    RunChoice,
    best,
    comparison,
    get_study_view,
    list_runs,
    list_trials,
    sensitivity,
    study_curves,
)  # fmt: skip
from service.database.studies import request_cancel_trial
from tests.service.database.fill import complete, curve, definition, leased, run

DIVERGED = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="loss is nan")
LOST = RunOutcome(state=RunState.FAIL, failure=FailureKind.LOST)


def filled(store: SqlStore, **changes: Any) -> tuple[Lease, SearchRecord]:
    """admetar's best trial is 1, lr 0.1 and lambd 0.2, confirmed; one more trial has its lambd."""
    lease, (admetar, _) = leased(store, definition(**{"sensitivity": {}, **changes}))
    for number, (lr, lambd, value) in enumerate([(0.1, 0.3, 0.5), (0.1, 0.2, 0.9), (0.02, 0.2, 0.8)]):
        run(store, lease, admetar, number, complete(value), params={"lr": lr, "lambd": lambd}, points=curve(value))
    for seed, value in ((0, 0.88), (1, 0.86)):
        run(store, lease, admetar, 1, complete(value), stage=Stage.CONFIRM, seed=seed, params={"lr": 0.1, "lambd": 0.2})
    return lease, admetar


def vary(store: SqlStore, lease: Lease, search: SearchRecord, *runs: tuple[float, RunOutcome | None]) -> None:
    for number, (lr, outcome) in enumerate(runs):
        params = {"lr": lr, "lambd": 0.2}
        run(store, lease, search, number, outcome, stage=Stage.SENSITIVITY, seed=0, params=params, points=curve(0.99))


def test_the_curve_has_all_runs_on_its_line(store: SqlStore, engine: Engine) -> None:
    lease, admetar = filled(store)
    vary(store, lease, admetar, (0.01, complete(0.7)), (1.0, DIVERGED), (3.0, LOST), (0.3, complete(0.85)), (9.0, None))
    view = sensitivity(engine, "digits")
    assert (view.parameter, view.metric, view.within, view.complete) == ("lr", "val_accuracy", 0.01, False)
    assert view.std == pytest.approx(0.014142 / 0.67449, rel=1e-3)  # of two values, by the median of chi-square
    found, sgdm = view.curves
    assert (found.label, found.trial, found.chosen, found.log) == ("admetar", 1, 0.1, True)
    points = [(point.value, point.mean, point.n, point.n_diverged) for point in found.points]
    # The confirm runs stand for the chosen value, not the value that chose it; lost and running runs are no results.
    assert points == [
        (0.01, 0.7, 1, 0), (0.02, 0.8, 1, 0), (0.1, pytest.approx(0.87), 2, 0), (0.3, 0.85, 1, 0), (1.0, None, 1, 1),
    ]  # fmt: skip
    assert found.low is not None
    assert found.high is not None
    assert found.low.at < 0.1 < found.high.at < 1
    assert found.width == pytest.approx(found.high.at / found.low.at)
    assert found.high.factor == pytest.approx(found.high.at / 0.1)
    assert found.sentence.startswith("lr may be off by × ")
    assert found.note is not None
    assert "less than two standard errors of one run" in found.note
    assert (sgdm.points, sgdm.low, sgdm.reason) == ([], None, "no trial is complete")


def test_without_a_spread_there_is_no_interval(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = leased(store, definition())
    for number, (lr, value) in enumerate([(0.01, 0.8), (0.1, 0.9), (1.0, 0.7)]):
        run(store, lease, admetar, number, complete(value), params={"lr": lr})
    found = sensitivity(engine, "digits", margin=0.05).curves[0]
    assert [point.value for point in found.points] == [0.01, 0.1, 1.0]  # from the trials that there are
    assert found.tolerance == 0.05
    assert found.low is not None
    assert (found.low.inner, found.low.outer) == (None, None)
    assert found.note is not None
    assert "no interval" in found.note


def test_a_parameter_that_nobody_has(store: SqlStore, engine: Engine) -> None:
    filled(store)
    with pytest.raises(SearchError, match=r"parameter = 'zzz' is of no optimizer of 'digits'; known: .*lr"):
        sensitivity(engine, "digits", parameter="zzz")


def test_a_parameter_without_numbers(store: SqlStore, engine: Engine) -> None:
    filled(store)
    found = sensitivity(engine, "digits", parameter="betas").curves[0]
    assert (found.points, found.chosen, found.low) == ([], None, None)
    assert found.reason == "its best trial has no number for 'betas'"


def test_the_runs_change_no_other_result(store: SqlStore, engine: Engine) -> None:
    lease, admetar = filled(store)

    def results() -> list[Any]:
        known = comparison(engine, "digits")
        (row, *_) = known.rows
        chosen = best(engine, task="digits", optimizer="admetar", model=None, metric="val_accuracy", recipe=None)
        trials = list_trials(engine, "digits").items
        shown = study_curves(
            engine, get_study_view(engine, "digits"), known, runs=RunChoice.BEST, axis=Axis.EPOCH, metric=None
        )
        costs = {"train_s", "gpu_s", "optimizer_s"}
        return [
            row.model_dump(exclude=costs), known.pairs, known.edges, chosen,
            [trial.model_dump() for trial in trials], shown, len(list_runs(engine, "digits", trial=0).items),
            store.find_runs("digits", label="admetar", trial_number=0),
        ]  # fmt: skip

    before = results()
    vary(store, lease, admetar, (0.01, complete(0.99)), (1.0, DIVERGED))
    assert results() == before
    assert len(list_runs(engine, "digits", stage=Stage.SENSITIVITY).items) == 2


def test_progress_counts_them(store: SqlStore, engine: Engine) -> None:
    lease, admetar = filled(store, budget={"trials_per_optimizer": 3}, confirm={"seeds": [0, 1]})
    vary(store, lease, admetar, (0.01, complete(0.7)), (1.0, None))
    search = get_study_view(engine, "digits").searches[0]
    assert (search.n_sensitivity_runs, search.n_sensitivity_finished, search.stage) == (2, 1, "sensitivity")
    (unfinished,) = list_runs(engine, "digits", stage=Stage.SENSITIVITY, state=RunState.RUNNING).items
    store.finish_run(lease, unfinished.id, complete(0.6))
    assert get_study_view(engine, "digits").searches[0].stage == "done"


def test_cancelling_a_trial_leaves_them(store: SqlStore, engine: Engine) -> None:
    """Their numbers count values, not trials."""
    lease, admetar = filled(store)
    vary(store, lease, admetar, (0.01, None))
    with pytest.raises(StudyConflictError, match="has no waiting or running run"):
        request_cancel_trial(engine, "digits", "admetar", 0)
    assert store.set_study_state(lease, StudyState.COMPLETED) is StudyState.COMPLETED
