"""Extending studies that have ended: what becomes of rows, views, verdicts and the history."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Engine

from admeta.client.models import ExtendRequest, StudyView
from search.coordinator import Coordinator
from search.definition import StudyDefinition
from search.errors import StudyConflictError
from search.extension import extended
from search.places import Workplace
from search.recipe import recipe_of
from search.records import Capacity, Lease, RunOutcome, SearchRecord
from search.states import FailureKind, RunState, Stage, StudyState
from service.database import SqlStore, events, extending
from service.database.errors import QueueFullError
from service.database.extending import extend_study
from service.database.idempotency import AnsweredBeforeError, IdempotencyKey
from service.database.lease import close_unfinished
from service.database.queries import comparison, get_study_view, list_studies
from service.database.queries.best import best
from service.database.studies import create_study, request_cancel, request_cancel_trial
from tests.chaos.ledger import look
from tests.search.workers import Cluster, define
from tests.service.database.fill import complete, definition, leased, run


def extend(
    engine: Engine, study: str, *, by: str | None = "ann", max_queued: int | None = None, **asked: Any
) -> StudyView:
    before = get_study_view(engine, study).definition or {}
    request = ExtendRequest(**asked)
    new = StudyDefinition.model_validate(extended(StudyDefinition.model_validate(before), request))
    return extend_study(engine, study, new, before=before, request=request, by="ann", max_queued=max_queued)


def ended(store: SqlStore, study: StudyDefinition, *, seeds: int = 3) -> tuple[Lease, list[SearchRecord]]:
    """Two trials of each optimizer, of which the second is confirmed; admetar is better by far."""
    lease, searches = leased(store, study)
    for search, value in zip(searches, (0.95, 0.80), strict=False):
        for number in range(2):
            run(store, lease, search, number, complete(value + 0.01 * number))
        for seed in range(seeds):
            run(
                store,
                lease,
                search,
                1,
                complete(value + 0.001 * seed),
                stage=Stage.CONFIRM,
                seed=seed,
                params={"lr": 0.2},
            )
    store.set_study_state(lease, StudyState.COMPLETED)
    store.release_lease(lease)
    return lease, searches


def two_trials(name: str = "digits", **changes: Any) -> StudyDefinition:
    return definition(name, budget={"trials_per_optimizer": 2}, **changes)


def test_a_study_goes_back_to_the_queue_with_its_past(store: SqlStore, engine: Engine) -> None:
    lease, _ = ended(store, two_trials(baseline=["sgdm"]))
    first_end = get_study_view(engine, "digits").finished_at
    view = extend(engine, "digits", trials=6, seeds=5, optimizers=["adamw"])
    assert (view.state, view.reason, view.finished_at) == ("QUEUED", None, None)
    assert [(search.label, search.n_trials, search.n_confirm_runs) for search in view.searches] == [
        ("admetar", 6, 5),
        ("sgdm", 6, 5),
        ("adamw", 6, 5),
        ("sgdm.defaults", 1, 5),
    ]
    (entry,) = view.extensions
    assert (entry.by, entry.state, entry.verdicts_seen, entry.ended_at) == ("ann", "COMPLETED", True, first_end)
    assert entry.changes == ["6 trials of each optimizer, before 2", "5 confirm seeds, before 3", "adamw added"]
    assert (view.definition or {})["budget"]["trials_per_optimizer"] == 6
    record = store.get_study(lease.study_id)
    assert (record.n_extensions, record.n_seen, len(store.runs(lease.study_id))) == (1, 1, 10)
    assert record.ended_s == pytest.approx((entry.at - first_end).total_seconds())  # type: ignore[operator]
    told = [event for event in events.read_events(engine, after=0) if event.kind == "study.extended"]
    assert [json.loads(event.data)["changes"] for event in told] == [entry.changes]
    assert events.read_events(engine, after=told[0].id)[0].kind == "study.state"


def test_the_definition_as_it_was_before_finds_the_extended_study(store: SqlStore, engine: Engine) -> None:
    ended(store, two_trials())
    extend(engine, "digits", trials=6)
    view, created = create_study(engine, two_trials())
    assert (view.state, created) == ("QUEUED", False)
    with pytest.raises(StudyConflictError, match="exists with another definition"):
        create_study(engine, definition(budget={"trials_per_optimizer": 3}))


def test_the_same_totals_again_change_nothing(store: SqlStore, engine: Engine) -> None:
    ended(store, two_trials())
    first = extend(engine, "digits", trials=6)
    assert extend(engine, "digits", trials=6) == first
    with pytest.raises(StudyConflictError, match="is QUEUED; only COMPLETED, FAILED or CANCELLED studies can be"):
        extend(engine, "digits", trials=7)


def test_a_search_that_failed_from_the_start_goes_on(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, sgdm) = leased(store, definition(budget={"trials_per_optimizer": 6}))
    failed = RunOutcome(state=RunState.FAIL, failure=FailureKind.ERROR, error="ValueError: no")
    for number in range(5):
        run(store, lease, admetar, number, failed)
    for number in range(6):
        run(store, lease, sgdm, number, failed if number else complete(0.5))
    store.set_study_state(lease, StudyState.COMPLETED)
    store.release_lease(lease)
    assert extend(engine, "digits", seeds=3).state == "COMPLETED"  # as it has: something else was asked for
    assert extend(engine, "digits").state == "QUEUED"


def test_two_requests_at_once_are_not_mixed(store: SqlStore, engine: Engine) -> None:
    ended(store, two_trials())
    before = get_study_view(engine, "digits").definition or {}
    extend(engine, "digits", trials=6)
    with pytest.raises(StudyConflictError, match="was extended by another request meanwhile"):
        extend_study(engine, "digits", two_trials(), before=before, request=ExtendRequest(), by=None)


def test_one_request_sent_twice_at_once_has_one_answer(store: SqlStore, engine: Engine) -> None:
    ended(store, two_trials())
    before, request = get_study_view(engine, "digits").definition or {}, ExtendRequest(trials=6)
    new = StudyDefinition.model_validate(extended(two_trials(), request))
    key = IdempotencyKey(caller="", key="k", request_sha256="of the request")
    ready = Barrier(4)

    def send(_: int) -> str:
        ready.wait()
        try:
            return extend_study(engine, "digits", new, before=before, request=request, by=None, key=key).state
        except AnsweredBeforeError as error:
            return json.loads(error.answer.body)["state"]  # type: ignore[no-any-return]

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(send, range(4))) == {"QUEUED"}
    assert len(get_study_view(engine, "digits").extensions) == 1


def test_not_before_its_driver_has_let_go_and_not_into_a_full_queue(store: SqlStore, engine: Engine) -> None:
    lease, _ = leased(store, two_trials())
    request_cancel(engine, "digits")
    with pytest.raises(StudyConflictError, match="its driver is still stopping its runs"):
        extend(engine, "digits", trials=6)
    store.release_lease(lease)
    create_study(engine, definition("waiting"))
    with pytest.raises(QueueFullError, match="1 studies are queued"):
        extend(engine, "digits", trials=6, max_queued=1)
    assert extend(engine, "digits", trials=6).state == "QUEUED"


def test_verdicts_that_were_seen_before_cost_nothing_again(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = ended(store, two_trials())

    def end(owner: str) -> Lease:
        again = store.acquire_lease(lease.study_id, owner=owner, ttl_s=60)
        assert again is not None
        store.set_study_state(again, StudyState.RUNNING)
        return again

    extend(engine, "digits", trials=6)
    again = end("second")
    request_cancel(engine, "digits")  # before any run
    store.release_lease(again)
    extend(engine, "digits", trials=8)
    again = end("third")
    run(store, again, admetar, 0, complete(0.9), stage=Stage.CONFIRM, seed=7)
    store.set_study_state(again, StudyState.COMPLETED)
    store.release_lease(again)
    view = extend(engine, "digits", trials=9)
    assert [one.verdicts_seen for one in view.extensions] == [True, False, True]
    assert store.get_study(lease.study_id).n_seen == 2


def test_what_was_cancelled_is_replaced(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, sgdm) = leased(store, two_trials())
    run(store, lease, admetar, 0, complete(0.9))
    run(store, lease, admetar, 1, None)
    run(store, lease, sgdm, 0, complete(0.8))
    confirm = run(store, lease, sgdm, 0, None, stage=Stage.CONFIRM, seed=0)
    request_cancel(engine, "digits")
    store.release_lease(lease)
    assert close_unfinished(store, lease.study_id)
    view = extend(engine, "digits")
    assert view.extensions[0].changes == []
    assert not view.extensions[0].verdicts_seen
    assert [search.n_trials for search in view.searches] == [3, 2]  # another one in place of the cancelled one
    assert store.cancelled_runs(lease.study_id) == set()
    again = store.acquire_lease(lease.study_id, owner="second", ttl_s=60)
    assert again is not None
    key = {"trial_number": 0, "stage": Stage.CONFIRM, "seed": 0, "params": {"lr": 0.1}}
    revived = store.create_run(again, sgdm.id, **key)  # type: ignore[arg-type]
    assert (revived.id, revived.state, revived.failure, revived.attempt) == (confirm.id, RunState.WAITING, None, 1)
    assert store.create_run(again, sgdm.id, **key) == revived  # type: ignore[arg-type]
    assert store.start_attempt(again, revived.id).attempt == 2
    failures = {one.failure for one in store.runs(lease.study_id) if one.state is RunState.FAIL}
    assert failures == {FailureKind.REPLACED}


def test_what_was_cancelled_in_a_completed_study_is_done_where_nothing_else_is_asked_for(
    store: SqlStore, engine: Engine
) -> None:
    lease, (admetar, _) = leased(store, two_trials())
    run(store, lease, admetar, 0, complete(0.9))
    run(store, lease, admetar, 1, None)
    request_cancel_trial(engine, "digits", "admetar", 1)
    store.set_study_state(lease, StudyState.COMPLETED)
    store.release_lease(lease)
    view = extend(engine, "digits")
    assert (view.state, view.searches[0].n_trials) == ("QUEUED", 3)
    assert extend(engine, "digits") == view


def test_an_added_optimizer_with_a_recipe_of_its_own_is_part_of_the_studys_recipe(
    store: SqlStore, engine: Engine
) -> None:
    lease, _ = leased(store, two_trials())
    store.set_data_fingerprint(lease, "f" * 64)
    request_cancel(engine, "digits")
    store.release_lease(lease)
    warmup = {"schedule.warmup": {"type": "float", "low": 0.0, "high": 0.2}}
    added = [{"name": name, "recipe": warmup} for name in ("adamw", "adam")]
    view = extend(engine, "digits", optimizers=added)
    (note,) = comparison(engine, "digits").remarks
    assert "adamw, adam have their own schedule.warmup; the others train as the study's task says." in note
    new = StudyDefinition.model_validate(view.definition)
    assert (
        view.recipe == recipe_of(new, data_fingerprint="f" * 64) != recipe_of(two_trials(), data_fingerprint="f" * 64)
    )


def test_a_study_is_not_extended_without_end(store: SqlStore, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extending, "MAX_EXTENSIONS", 2)
    create_study(engine, two_trials())
    for n in (3, 4):
        request_cancel(engine, "digits")
        extend(engine, "digits", trials=n)
    request_cancel(engine, "digits")
    with pytest.raises(StudyConflictError, match="was extended 2 times, which is the limit"):
        extend(engine, "digits", trials=5)


def test_what_was_remembered_of_an_ended_study_is_forgotten(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = ended(store, two_trials())
    for _ in range(2):
        assert [search.stage for search in list_studies(engine).items[0].searches] == ["done", "done"]
    extend(engine, "digits", trials=3)
    assert [search.n_trials for search in list_studies(engine).items[0].searches] == [3, 3]
    again = store.acquire_lease(lease.study_id, owner="second", ttl_s=60)
    assert again is not None
    store.set_study_state(again, StudyState.RUNNING)
    run(store, again, admetar, 2, complete(0.5))
    store.set_study_state(again, StudyState.COMPLETED)
    assert [search.n_complete for search in list_studies(engine).items[0].searches] == [3, 2]


def test_verdicts_after_an_extension_have_half_the_alpha_and_say_so(store: SqlStore, engine: Engine) -> None:
    ended(store, two_trials())
    before = comparison(engine, "digits")
    assert (before.pairs[0].confidence, before.remarks) == (0.95, [])
    extend(engine, "digits", seeds=5)
    after = comparison(engine, "digits")
    assert after.pairs[0].confidence == pytest.approx(0.975)
    assert "(97.5% interval" in after.pairs[0].sentence
    (remark,) = after.remarks
    assert remark.startswith("The study was extended once after its verdicts could be seen.")


def test_unequal_budgets_are_told(store: SqlStore, engine: Engine) -> None:
    ended(store, two_trials(), seeds=1)
    extend(engine, "digits", trials_of={"sgdm": 6})
    assert (
        comparison(engine, "digits")
        .remarks[0]
        .startswith("The budgets are unequal (6 trials: sgdm; 2 trials: admetar)")
    )


def test_the_trial_chosen_before_stays_until_the_one_chosen_now_has_a_result(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = ended(store, two_trials())
    extend(engine, "digits", trials=3)
    again = store.acquire_lease(lease.study_id, owner="second", ttl_s=60)
    assert again is not None
    store.set_study_state(again, StudyState.RUNNING)

    def chosen() -> tuple[int | None, int]:
        row = next(row for row in comparison(engine, "digits").rows if row.label == "admetar")
        return row.trial, row.validation.n

    run(store, again, admetar, 2, complete(0.99))
    assert chosen() == (1, 3)
    key = {"trial_number": 2, "stage": Stage.CONFIRM, "seed": 0, "params": {"lr": 0.3}}
    store.create_run(again, admetar.id, **key)  # type: ignore[arg-type]
    assert chosen() == (1, 3)
    run(store, again, admetar, 2, complete(0.9), stage=Stage.CONFIRM, seed=0, params={"lr": 0.3})
    assert chosen() == (2, 1)  # though the one before was better by its confirm runs
    for seed in (1, 2):
        run(store, again, admetar, 2, complete(0.9), stage=Stage.CONFIRM, seed=seed, params={"lr": 0.3})
    assert chosen() == (2, 3)
    shown = get_study_view(engine, "digits").searches[0]
    assert (shown.n_confirm_finished, shown.n_confirm_runs) == (6, 6)  # those of both choices, and never 6 of 3
    known = best(engine, task="digits", optimizer="admetar")
    assert known is not None
    assert known.trial == 1  # the record of it stays


@pytest.mark.parametrize("kill_after", [1, 4, 8, 11])
def test_drivers_that_are_killed_in_an_extended_study_lose_nothing(
    store: SqlStore, engine: Engine, tmp_path: Path, kill_after: int
) -> None:
    """A cancelled study is extended, and two of its drivers end at any point; each starts from SQL alone."""
    study_id = create_study(engine, define(confirm={"top_k": 1, "seeds": [0, 1]}))[0].id
    snapshots = []
    for owner, n_rounds in (("first", 5), ("second", kill_after), ("third", kill_after), ("last", None)):
        lease = store.acquire_lease(study_id, owner=owner, ttl_s=60)
        assert lease is not None
        store.set_study_state(lease, StudyState.RUNNING)
        each = Capacity(cpus=1, gpus=0)
        workplace = Workplace(storage="checkpoints", data_dir=None, each=each, slots=lambda: 2)
        record = store.get_study(study_id)
        cluster = Cluster(
            Coordinator(store=store, lease=lease, study=record, workplace=workplace, elapsed_s=lambda: 0.0)
        )
        for n in cluster.rounds():
            if n == n_rounds:
                break
        if owner == "first":
            request_cancel(engine, study_id)
            cluster.coordinator.cancel()
        store.release_lease(lease)
        snapshots.append(look(engine, study_id, storage=tmp_path, killed=set()))
        if owner == "first":
            extend(engine, study_id, trials=6, seeds=3, optimizers=["adam"])
    runs = store.runs(study_id)
    replaced = [run for run in runs if run.failure is FailureKind.REPLACED]
    assert len(replaced) == 2
    assert {run.state for run in runs if run not in replaced} == {RunState.COMPLETE}
    labels = {search.id: search.label for search in store.searches(study_id)}
    made = Counter((labels[run.search_id], run.stage) for run in runs if run not in replaced)
    assert {made[label, Stage.SEARCH] for label in labels.values()} == {6}
    assert {row.validation.n for row in comparison(engine, study_id).rows} == {3}
    for snapshot in snapshots:
        attempts = {run.id: run.attempt for run in runs}
        assert {one: attempts[one] for one in snapshot.finished} == dict(snapshot.finished)
