"""What requests read, against numbers worked by hand."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, update

from admeta.client.models import SearchView
from search.errors import StudyNotFoundError
from search.records import Lease, Point, RunOutcome, SearchRecord
from search.states import FailureKind, RunState, Stage, StudyState
from service.database import SqlStore
from service.database.engine import writing
from service.database.errors import InvalidCursorError, TrialNotFoundError
from service.database.models import Study
from service.database.queries import (
    best,
    comparison,
    get_curves,
    get_study_view,
    get_trial,
    list_runs,
    list_studies,
    list_trials,
)
from service.database.studies import create_study, request_cancel
from tasks.engine.protocol import Cost
from tests.machine import unit_s
from tests.service.database.fill import complete, curve, definition, leased, run
from tests.service.database.rows import many_trials

DIVERGED = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged at step 7")
CANCELLED = RunOutcome(state=RunState.FAIL, failure=FailureKind.CANCELLED)
PRUNED = RunOutcome(state=RunState.PRUNED, value=0.99)


def confirm(store: SqlStore, lease: Lease, search: SearchRecord, number: int, *outcomes: RunOutcome | None) -> None:
    """Confirm runs of a trial with seeds 0, 1, …"""
    for seed, outcome in enumerate(outcomes):
        run(store, lease, search, number, outcome, stage=Stage.CONFIRM, seed=seed)


def filled(store: SqlStore, name: str = "digits", **changes: Any) -> tuple[Lease, list[SearchRecord]]:
    """admetar: 0.5, 0.7, pruned at 0.99, diverged. sgdm: one complete at 0.6, one running."""
    lease, (admetar, sgdm) = leased(store, definition(name, **changes))
    for number, outcome in enumerate([complete(0.5), complete(0.7), PRUNED, DIVERGED]):
        run(store, lease, admetar, number, outcome, points=curve(0.1, 0.2, train_s=2.0))
    run(store, lease, sgdm, 0, complete(0.6))
    run(store, lease, sgdm, 1, None)
    store.create_run(lease, sgdm.id, trial_number=2, stage=Stage.SEARCH, seed=100, params={"lr": 0.3})
    return lease, [admetar, sgdm]


def test_progress_of_a_study(store: SqlStore, engine: Engine) -> None:
    _, (admetar, _) = filled(store)
    view = get_study_view(engine, "digits")
    first, second = view.searches
    assert (first.n_waiting, first.n_running, first.n_complete, first.n_pruned, first.n_failed) == (0, 0, 2, 1, 1)
    assert (first.best_value, first.best_trial, first.best_params) == (0.7, 1, {"lr": 0.2})
    assert first.stage == "confirm"  # all 4 trials are finished, no confirm run yet
    assert (second.n_waiting, second.n_running, second.n_complete, second.stage) == (1, 1, 1, "search")
    assert first.optuna_study == admetar.optuna_name
    assert view.definition == definition().to_json()


def test_stage_moves_on_to_done(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = filled(store)
    confirm(store, lease, admetar, 1, complete(0.6), None)
    assert get_study_view(engine, "digits").searches[0].n_confirm_finished == 1
    assert get_study_view(engine, "digits").searches[0].stage == "confirm"
    confirm(store, lease, admetar, 1, complete(0.6), complete(0.6), DIVERGED)
    assert get_study_view(engine, "digits").searches[0].n_confirm_runs == 3
    assert get_study_view(engine, "digits").searches[0].stage == "done"
    request_cancel(engine, "digits")
    assert [search.stage for search in get_study_view(engine, "digits").searches] == ["done", "stopped"]


def test_comparison_of_the_search_stage(store: SqlStore, engine: Engine) -> None:
    filled(store)
    view = comparison(engine, "digits")
    admetar, sgdm = view.rows
    assert (view.task, view.metric, view.direction, view.complete) == ("digits", "val_accuracy", "maximize", False)
    assert [(row.label, row.rank, row.trial, row.search_value) for row in view.rows] == [
        ("admetar", 1, 1, 0.7),
        ("sgdm", 2, 0, 0.6),
    ]
    assert admetar.settings is not None
    assert admetar.settings["lr"] == 0.2
    assert admetar.settings.keys() > {"lr", "betas"}  # what is fixed belongs to the settings
    assert (admetar.validation.mean, admetar.validation.std, admetar.validation.n) == (0.7, None, 1)
    assert (admetar.n_trials, admetar.n_complete, admetar.n_pruned) == (4, 2, 1)
    assert (admetar.n_failed, admetar.n_diverged) == (1, 1)
    assert admetar.train_s == 4 * 2 * 2.0
    assert admetar.n_epochs == 4 * 2
    # 0.5 and 0.7 complete, 0.99 pruned at its last value, one diverged: as bad as the worst of the study, 0.5.
    assert admetar.expected_best[0] == pytest.approx((0.5 + 0.7 + 0.99 + 0.5) / 4)
    assert len(admetar.expected_best) == 4
    assert admetar.best_of_n.high[-1] is None  # four trials do not bound how good a fifth may be
    assert sgdm.test.mean is None


def test_comparison_by_the_confirm_runs(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, sgdm) = filled(store)
    # mean (0.60 + 0.62 + 0.64) / 3 = 0.62; sample variance (0.02² + 0 + 0.02²) / 2, std 0.02
    tests = [complete(v, test_accuracy=v - 0.1) for v in (0.60, 0.62, 0.64)]
    confirm(store, lease, admetar, 1, *tests)
    confirm(store, lease, sgdm, 0, complete(0.80, test_accuracy=0.7), DIVERGED, CANCELLED)
    view = comparison(engine, "digits")
    assert [(row.label, row.rank) for row in view.rows] == [("admetar", 1), ("sgdm", 2)]  # a failed run is the worst
    steady = view.rows[0]
    assert steady.validation.mean == pytest.approx(0.62)
    assert steady.validation.std == pytest.approx(0.02)
    assert steady.test.mean == pytest.approx(0.52)
    assert (steady.validation.n, steady.validation.n_failed, steady.test_metric) == (3, 0, "test_accuracy")
    failing = view.rows[1]
    assert failing.validation.model_dump() == {"mean": 0.8, "std": None, "n": 1, "n_failed": 1}
    assert failing.test.model_dump() == {"mean": 0.7, "std": None, "n": 1, "n_failed": 1}
    store.set_study_state(lease, StudyState.COMPLETED)
    assert comparison(engine, "digits").complete


@pytest.mark.parametrize(
    ("values", "is_told"), [((0.5, 0.5, 0.5), True), ((0.5, 0.5), False), ((0.5, 0.5, 0.6), False)]
)
def test_a_search_whose_trials_all_have_one_value_is_told(
    store: SqlStore, engine: Engine, values: Sequence[float], is_told: bool
) -> None:
    """Own code that makes its optimizer itself trains the same with all settings."""
    lease, (search, _) = leased(store, definition())
    for number, value in enumerate(values):
        run(store, lease, search, number, complete(value))
    remarks = comparison(engine, "digits").remarks
    assert [one[:64] for one in remarks] == [
        "admetar: all 3 trials have the same val_accuracy, 0.5: nothing t"
    ] * is_told


def test_settings_that_failed_with_every_seed_have_no_rank(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = filled(store)
    confirm(store, lease, admetar, 1, DIVERGED, DIVERGED, DIVERGED)
    view = comparison(engine, "digits")
    assert [(row.label, row.rank) for row in view.rows] == [("sgdm", 1), ("admetar", None)]
    assert view.rows[1].validation.n_failed == 3


def test_best_confirmed_of_several(store: SqlStore, engine: Engine) -> None:
    """top_k = 2: the second seed chooses the trial, the first reports it, so that the luckiest is not reported."""
    lease, (admetar, _) = filled(store, confirm={"top_k": 2, "seeds": [0, 1]})
    confirm(store, lease, admetar, 1, complete(0.55), complete(0.57))
    confirm(store, lease, admetar, 0, complete(0.65), complete(0.63))
    row = next(row for row in comparison(engine, "digits").rows if row.label == "admetar")
    assert (row.trial, row.search_value, row.validation.mean) == (0, 0.5, 0.65)


def test_minimised_and_equal(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, sgdm) = leased(store, definition(objective={"metric": "val_loss"}))
    for search in (admetar, sgdm):
        for number, value in enumerate([0.5, 0.3, 0.3, -math.inf]):
            run(store, lease, search, number, complete(value))
    view = comparison(engine, "digits")
    assert [(row.rank, row.trial, row.search_value) for row in view.rows] == [(1, 1, 0.3), (1, 1, 0.3)]
    assert get_study_view(engine, "digits").searches[0].best_value == 0.3
    assert best(engine, task="digits", optimizer="sgdm") is None  # of the task's own metric there is nothing
    found = best(engine, task="digits", optimizer="sgdm", metric="val_loss")
    assert found is not None
    assert (found.trial, found.search_value, found.direction) == (1, 0.3, "minimize")


def test_best_over_studies(store: SqlStore, engine: Engine) -> None:
    assert best(engine, task="digits", optimizer="admetar") is None
    lease, (admetar, _) = filled(store, "first")
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert (found.study, found.label, found.trial, found.evidence) == ("first", "admetar", 1, "single run")
    assert found.settings["lr"] == 0.2
    assert (found.validation.mean, found.validation.n) == (0.7, 1)

    other_lease, (other, _) = leased(store, definition("second"))
    run(store, other_lease, other, 0, complete(0.9))
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert (found.study, found.search_value) == ("second", 0.9)

    confirm(store, lease, admetar, 0, complete(0.6, test_accuracy=0.5), complete(0.62, test_accuracy=0.6))
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None  # confirmed comes before any single run
    assert (found.study, found.trial, found.evidence) == ("first", 0, "confirmed")
    assert (found.validation.mean, found.test.mean) == (pytest.approx(0.61), pytest.approx(0.55))

    confirm(store, other_lease, other, 0, complete(0.95), None)
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert found.study == "first"  # a seed of the other still runs
    run(store, other_lease, other, 0, DIVERGED, stage=Stage.CONFIRM, seed=1)
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert found.study == "first"  # better on average, but one of its seeds diverged


def test_the_code_of_the_best_has_the_tasks_weight_decay(store: SqlStore, engine: Engine) -> None:
    task = {"name": "digits", "weight_decay_on": "matrices"}
    lease, (search, _) = leased(store, definition(task=task))
    run(store, lease, search, 0, complete(0.5))
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert found.weight_decay_on == "matrices"
    assert found.code.endswith("    weight_decay_on='matrices',\n)\n")


def test_best_of_a_model_and_a_label(store: SqlStore, engine: Engine) -> None:
    optimizers = [{"name": "sgdm", "label": "sgdm-a"}, {"name": "sgdm", "label": "sgdm-b"}]
    lease, (_, second) = leased(store, definition(optimizers=optimizers))
    run(store, lease, second, 0, complete(0.5))
    model = get_study_view(engine, "digits").model
    found = best(engine, task="digits", optimizer="sgdm", model=model)
    assert found is not None
    assert found.label == "sgdm-b"
    assert best(engine, task="digits", optimizer="sgdm", model="other") is None
    assert best(engine, task="digits", optimizer="sgdm\0", model="\ud800") is None


def test_pages_of_trials_by_number(store: SqlStore, engine: Engine) -> None:
    filled(store)
    seen, cursor = [], None
    while True:
        page = list_trials(engine, "digits", limit=3, cursor=cursor)
        seen += [(trial.label, trial.number, trial.state) for trial in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [
        ("admetar", 0, "COMPLETE"),
        ("admetar", 1, "COMPLETE"),
        ("admetar", 2, "PRUNED"),
        ("admetar", 3, "FAIL"),
        ("sgdm", 0, "COMPLETE"),
        ("sgdm", 1, "RUNNING"),
        ("sgdm", 2, "WAITING"),
    ]


def test_pages_of_trials_best_first(store: SqlStore, engine: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    for number, value in enumerate([0.5, 0.7, 0.5, None, 0.9, None]):
        outcome = DIVERGED if value is None else complete(value)
        run(store, lease, search, number, outcome)
    for limit in (1, 2, 3, 50):
        seen, cursor = [], None
        while True:
            page = list_trials(engine, "digits", order="best", limit=limit, cursor=cursor)
            seen += [trial.number for trial in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == [4, 1, 0, 2, 3, 5]


def test_pruned_and_failed_runs_are_never_among_the_best(store: SqlStore, engine: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    diverged = replace(DIVERGED, value=0.95)
    for number, outcome in enumerate(
        [complete(0.5), replace(complete(0.9), state=RunState.PRUNED), diverged, complete(0.7)]
    ):
        run(store, lease, search, number, outcome)
    for list_them in (list_trials, list_runs):
        for limit in (1, 2, 50):
            seen, cursor = [], None
            while True:
                page = list_them(engine, "digits", order="best", limit=limit, cursor=cursor)
                seen += [(item.state, item.value) for item in page.items]
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert seen[:2] == [("COMPLETE", 0.7), ("COMPLETE", 0.5)]
            assert {state for state, _ in seen[2:]} == {"PRUNED", "FAIL"}


def test_filters_of_trials(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = filled(store)
    confirm(store, lease, admetar, 1, complete(0.6))
    page = list_trials(engine, lease.study_id, label="admetar", state=RunState.COMPLETE)
    assert [(t.label, t.number) for t in page.items] == [("admetar", 0), ("admetar", 1)]
    assert [(r.stage, r.seed) for r in page.items[1].runs] == [("search", 100), ("confirm", 0)]
    assert page.items[1].curve is None
    with pytest.raises(TrialNotFoundError, match="no search 'nope'") as error:
        list_trials(engine, "digits", label="nope")
    assert "admetar, sgdm" in error.value.hint


def test_one_trial(store: SqlStore, engine: Engine) -> None:
    lease, (_admetar, sgdm) = filled(store)
    point = Point(
        epoch=1, step=5, value=math.nan, metrics={"val_loss": math.inf}, lr=0.1, cost=Cost(peak_memory_bytes=2**31)
    )
    record = run(store, lease, sgdm, 5, DIVERGED, points=[point])
    trial = get_trial(engine, "digits", "sgdm", 5)
    assert (trial.state, trial.value) == ("FAIL", None)
    assert (trial.runs[0].failure, trial.runs[0].error) == ("diverged", "diverged at step 7")
    assert trial.runs[0].peak_memory_bytes == 2**31
    assert trial.curve is not None
    assert trial.curve[0].model_dump() == {
        "epoch": 1,
        "step": 5,
        "value": None,
        "metrics": {"val_loss": None},
        "lr": 0.1,
    }
    json.loads(trial.model_dump_json(), parse_constant=pytest.fail)
    assert get_curves(engine, [record.id]) == {record.id: trial.curve}
    for label, number in [("sgdm", 99), ("nope", 0)]:
        with pytest.raises(TrialNotFoundError, match="no "):
            get_trial(engine, "digits", label, number)
    with pytest.raises(StudyNotFoundError):
        get_trial(engine, "nope", "sgdm", 0)


def test_pages_of_studies(store: SqlStore, engine: Engine) -> None:
    names = [f"s{i}" for i in range(7)]
    for name in names:
        create_study(engine, definition(name, optimizers=[{"name": "sgdm" if name == "s3" else "adamw"}]))
    request_cancel(engine, "s5")
    seen, cursor = [], None
    while True:
        page = list_studies(engine, limit=3, cursor=cursor)
        seen += [view.name for view in page.items]
        assert all(view.definition is None for view in page.items)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == names[::-1]
    assert [v.name for v in list_studies(engine, state=StudyState.CANCELLED).items] == ["s5"]
    assert [v.name for v in list_studies(engine, optimizer="sgdm").items] == ["s3"]
    assert len(list_studies(engine, task="digits", limit=7).items) == 7
    assert list_studies(engine, task="digits", limit=7).next_cursor is None
    assert list_studies(engine, task="nope\0").items == []
    with writing(engine) as session:
        session.execute(update(Study).where(Study.name == "s2").values(tags=["base", "lr_1"], notes="kept"))
    (tagged,) = list_studies(engine, tag="lr_1").items
    assert (tagged.name, tagged.tags, tagged.notes) == ("s2", ["base", "lr_1"], "kept")
    assert [list_studies(engine, tag=tag).items for tag in ("lr", "lrx1", "%", '"', "bas")] == [[]] * 5


CURSORS = ["", "?", "AAAA", "W10", "W251bGwsIDFd", "WzFlNDAwLCAieCJd", "Wy0xLCAieCJd", "\0", "é", "a" * 500]


def test_cursors_that_no_list_gave_out(engine: Engine) -> None:
    create_study(engine, definition())
    for cursor in CURSORS:
        for pages in (list_studies, lambda engine, cursor: list_trials(engine, "digits", cursor=cursor)):
            try:
                page = pages(engine, cursor=cursor)  # type: ignore[operator]
            except InvalidCursorError as error:
                assert "next_cursor" in error.hint  # noqa: PT017
            else:
                assert page.items == []


def test_a_thousand_trials_of_a_hundred_points(store: SqlStore, engine: Engine) -> None:
    """optuna-dashboard issue 479. The slowest of these takes 12 units of work."""
    _lease, (search, _) = leased(store, definition())
    many_trials(engine, search.id, n_trials=1000, n_points=100)
    for read in (
        lambda: list_trials(engine, "digits", order="best"),
        lambda: get_trial(engine, "digits", "admetar", 500),
        lambda: get_study_view(engine, "digits"),
        lambda: list_studies(engine),
        lambda: comparison(engine, "digits"),
        lambda: best(engine, task="digits", optimizer="admetar"),
    ):
        assert min(_units(read), _units(read)) < 50  # other work in the machine can slow one of them down


def _units(read: Callable[[], object]) -> float:
    unit, began = unit_s(), time.thread_time()
    read()
    return (time.thread_time() - began) / unit


def test_searches_of_ended_studies_are_remembered_only_when_nothing_is_open(store: SqlStore) -> None:
    lease, (search, _) = leased(store, definition())
    open_run = run(store, lease, search, 0, None)
    store.set_study_state(lease, StudyState.FAILED, reason="for the test")
    (view,) = list_studies(store.engine).items
    assert (view.state, view.searches[0].n_running, view.searches[0].n_complete) == ("FAILED", 1, 0)
    store.finish_run(lease, open_run.id, complete(0.5))
    for _ in range(2):  # read, then remembered
        (view,) = list_studies(store.engine).items
        assert (view.searches[0].n_running, view.searches[0].n_complete) == (0, 1)
        assert view.searches[0].best_value == 0.5


def test_a_lost_trial_adds_the_one_in_its_place_to_those_that_the_search_will_run(store: SqlStore) -> None:
    lease, (admetar, _) = leased(store, definition("lost"))
    for number, kind in enumerate([FailureKind.LOST, FailureKind.ERROR, FailureKind.DIVERGED, FailureKind.LOST]):
        outcome = RunOutcome(state=RunState.FAIL, failure=kind, error="it failed")
        run(store, lease, admetar, number, outcome, params={"lr": 0.1 if kind is FailureKind.LOST else 0.2})
    view = get_study_view(store.engine, lease.study_id)
    assert [(search.n_trials, search.stage) for search in view.searches] == [(5, "search"), (4, "search")]


def test_a_budget_in_epochs_is_shown_with_what_is_spent_of_it(store: SqlStore) -> None:
    """Two epochs of ten a trial, and a baseline's one trial, which has no such budget."""
    budget = {"epochs_per_optimizer": 10, "gpu_hours_per_optimizer": 4.0}
    lease, (admetar, _, baseline) = leased(store, definition("epochs", budget=budget, baseline=["sgdm"]))

    def views() -> Sequence[SearchView]:
        return get_study_view(store.engine, lease.study_id).searches

    assert [(v.n_trials, v.n_epochs, v.max_epochs, v.max_gpu_hours) for v in views()] == [
        (1, 0, 10, 4.0), (1, 0, 10, 4.0), (1, 0, None, None)
    ]  # fmt: skip
    points = [replace(point, cost=Cost(gpu_s=1800.0)) for point in curve(0.4, 0.5)]
    run(store, lease, admetar, 0, complete(0.5), points=points)
    (view, *_) = views()
    assert (view.n_trials, view.n_epochs, view.gpu_hours) == (
        4,
        2,
        1.0,
    )  # a quarter of the hours, a fifth of the epochs
    for number in range(1, 5):
        run(store, lease, admetar, number, complete(0.5), points=curve(0.4, 0.5))
    (view, *_) = views()
    assert (view.n_trials, view.n_epochs, view.stage) == (5, 10, "confirm")
    assert baseline.label == "sgdm.defaults"
