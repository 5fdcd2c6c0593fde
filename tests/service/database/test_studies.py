"""What requests change: create, cancel, pause, resume; which studies need a driver; closing what one left behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import Engine, func, select, text

from search.errors import LeaseLostError, StudyConflictError, StudyNotFoundError
from search.states import FailureKind, RunState, StudyState
from service.database import SqlStore
from service.database.engine import reading, writing
from service.database.errors import QueueFullError, TrialNotFoundError
from service.database.lease import close_unfinished, unclosed_studies
from service.database.models import Search, Study
from service.database.queries import get_study_view
from service.database.studies import (
    create_study,
    request_cancel,
    request_cancel_trial,
    request_pause,
    request_resume,
    runnable_studies,
)
from tests.service.database.fill import complete, definition, leased, run


def test_same_definition_is_the_same_study(engine: Engine) -> None:
    first, created = create_study(engine, definition())
    again, created_again = create_study(engine, definition())
    assert (created, created_again) == (True, False)
    assert again == first
    assert first.state == "QUEUED"
    assert first.definition == definition().to_json()
    assert [(s.label, s.n_trials, s.n_confirm_runs) for s in first.searches] == [("admetar", 4, 3), ("sgdm", 4, 3)]


def test_order_of_keys_is_no_difference(engine: Engine) -> None:
    raw = definition().to_json()
    create_study(engine, type(definition()).model_validate(raw))
    backwards = {key: raw[key] for key in reversed(raw)}
    assert not create_study(engine, type(definition()).model_validate(backwards))[1]


@pytest.mark.parametrize(
    "change",
    [
        {"max_failures": 7},
        {
            "objective": {"metric": "val_accuracy", "direction": "minimize"}
        },  # Optuna would keep the old one and say nothing
        {"optimizers": [{"name": "sgdm", "space": {"lr": {"type": "categorical", "choices": [0.1, 0.2]}}}]},
    ],
    ids=["failures", "direction", "choices"],
)
def test_other_definition_is_a_conflict(engine: Engine, change: dict[str, Any]) -> None:
    """The last one is optuna issue 2199: Optuna raises only when the trial after the change is asked for."""
    space = {"lr": {"type": "categorical", "choices": [0.1, 0.3]}}
    before = {"optimizers": [{"name": "sgdm", "space": space}]}
    view, _ = create_study(engine, definition(**before))
    with pytest.raises(StudyConflictError, match=rf"'digits' exists with another definition \(id {view.id}, QUEUED\)"):
        create_study(engine, definition(**(before | change)))


def test_a_warm_start_from_a_study_that_is_not_there_is_warned_of(engine: Engine) -> None:
    """A misspelt name would take nothing over without a word."""
    create_study(engine, definition("first"))
    view, _ = create_study(engine, definition(warm_start={"studies": ["first", "frist"]}))
    assert view.warnings[-1].startswith("warm_start: studies names 'frist', and no study has that name")


def test_many_at_once_make_one_study(engine: Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: create_study(engine, definition()), range(8)))
    assert len({view.id for view, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    with reading(engine) as session:
        assert session.execute(select(func.count(Search.id))).scalar() == 2


def test_never_half_a_study(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The searches cannot be stored: then there is no study either."""
    other, _ = create_study(engine, definition("other"))
    with writing(engine) as session:
        session.execute(text("UPDATE admeta_searches SET optuna_name = 'digits/sgdm' WHERE label = 'sgdm'"))
    with pytest.raises(Exception, match=r"(?i)unique"):
        create_study(engine, definition())
    with reading(engine) as session:
        assert session.execute(select(Study.id)).scalars().all() == [other.id]


def test_grid_has_no_more_trials_than_combinations(engine: Engine) -> None:
    space = {
        "lr": {"type": "categorical", "choices": [0.1, 0.01, 0.001]},
        "weight_decay": {"type": "categorical", "choices": [0.0, 0.1]},
    }
    view, _ = create_study(
        engine,
        definition(
            optimizers=[{"name": "adamw", "space": space}],
            sampler={"name": "grid"},
            budget={"trials_per_optimizer": 50},
        ),
    )
    assert view.searches[0].n_trials == 6


def test_cancel_pause_resume(engine: Engine) -> None:
    create_study(engine, definition())
    assert request_pause(engine, "digits").state == "PAUSED"
    with pytest.raises(StudyConflictError, match="is PAUSED; only QUEUED or RUNNING studies can be paused"):
        request_pause(engine, "digits")
    assert request_resume(engine, "digits").state == "QUEUED"  # it had not started
    with pytest.raises(StudyConflictError, match="is QUEUED; only PAUSED studies can be resumed"):
        request_resume(engine, "digits")
    view = request_cancel(engine, "digits")
    assert (view.state, view.reason) == ("CANCELLED", "cancelled on request")
    assert view.finished_at is not None
    with pytest.raises(
        StudyConflictError, match=r"is CANCELLED; only QUEUED, RUNNING or PAUSED.* Extend it, or submit"
    ):
        request_cancel(engine, view.id)
    for verb in (request_cancel, request_pause, request_resume):
        with pytest.raises(StudyNotFoundError, match="nope"):
            verb(engine, "nope")


def test_resumed_study_that_had_started_goes_on(store: SqlStore, engine: Engine) -> None:
    lease, _ = leased(store, definition())
    request_pause(engine, "digits")
    assert request_resume(engine, lease.study_id).state == "RUNNING"


def test_odd_names_are_not_found(engine: Engine) -> None:
    create_study(engine, definition())
    for name in ("a\0b", "\ud800", "x" * 1000, "' OR 1=1 --", ""):
        with pytest.raises(StudyNotFoundError):
            get_study_view(engine, name)


def test_runnable_studies_by_priority_then_age(store: SqlStore, engine: Engine) -> None:
    ids = {
        name: create_study(engine, definition(name, priority=priority))[0].id
        for name, priority in [("old", 0), ("new", 0), ("urgent", 5), ("paused", 9), ("cancelled", 9), ("driven", 9)]
    }
    request_pause(engine, "paused")
    request_cancel(engine, "cancelled")
    assert store.acquire_lease(ids["driven"], owner="a", ttl_s=60)
    assert runnable_studies(engine) == [ids["urgent"], ids["old"], ids["new"]]
    assert store.acquire_lease(ids["driven"], owner="a", ttl_s=-1)  # its driver died
    assert runnable_studies(engine, limit=2) == [ids["driven"], ids["urgent"]]


def test_closing_a_cancelled_study_whose_driver_died(store: SqlStore, engine: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    study = optuna.create_study(storage=store.optuna_storage(), study_name=search.optuna_name, direction="maximize")
    study.tell(study.ask(), 0.5)
    study.ask()
    study.enqueue_trial({"lr": 0.1})
    run(store, lease, search, 0, complete(0.5))
    running = run(store, lease, search, 1, None)
    request_cancel(engine, "digits")

    assert unclosed_studies(engine) == []  # its driver holds it still, and will see to it
    assert not close_unfinished(store, lease.study_id)
    store.acquire_lease(lease.study_id, owner="driver", ttl_s=60)
    with writing(engine) as session:  # the driver died a while ago
        session.execute(text("UPDATE admeta_studies SET lease_expires_at = '2020-01-01 00:00:00'"))

    assert unclosed_studies(engine) == [lease.study_id]
    assert close_unfinished(store, lease.study_id)
    done, closed = store.runs(lease.study_id)
    assert done.state == RunState.COMPLETE
    assert (closed.id, closed.state, closed.failure) == (running.id, RunState.FAIL, FailureKind.CANCELLED)
    assert closed.error == "the study is CANCELLED"
    assert [t.state for t in study.trials] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.FAIL]
    assert unclosed_studies(engine) == []
    with pytest.raises(LeaseLostError):  # should it have been only asleep
        store.add_points(lease, running.id, [])
    assert close_unfinished(store, lease.study_id)  # again: nothing left to do


def test_studies_that_go_on_are_not_closed(store: SqlStore, engine: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    run(store, lease, search, 0, None)
    store.release_lease(lease)
    assert unclosed_studies(engine) == []
    assert not close_unfinished(store, lease.study_id)
    assert store.get_study(lease.study_id).state == StudyState.RUNNING


def test_the_queue_has_a_limit_also_when_many_submit_at_once(engine: Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        tries = [pool.submit(create_study, engine, definition(f"s{n}"), max_queued=3) for n in range(12)]
    refusals = [tried.exception() for tried in tries if tried.exception() is not None]
    assert len(refusals) == 9
    assert {type(error) for error in refusals} == {QueueFullError}
    assert {str(error).split(".")[0] for error in refusals} == {"3 studies are queued; the limit is 3"}


def test_cancelling_one_trial_ends_it_at_once_and_keeps_it_ended(store: SqlStore, engine: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    run(store, lease, search, 0, complete(0.5))
    hanging, other = run(store, lease, search, 1, None), run(store, lease, search, 2, None)
    view = request_cancel_trial(engine, "digits", "admetar", 1)
    assert (view.state, view.runs[0].failure, view.runs[0].attempts[0].state) == ("FAIL", "cancelled", "FAIL")
    assert store.cancelled_runs(lease.study_id) == {hanging.id}
    # What its driver did not know yet changes nothing, and tells it.
    assert store.finish_run(lease, hanging.id, complete(0.9)).failure is FailureKind.CANCELLED
    assert store.interrupt_attempt(lease, hanging.id, reason="paused").state is RunState.FAIL
    assert store.finish_run(lease, other.id, complete(0.7)).value == 0.7
    for number in (0, 1):
        with pytest.raises(
            StudyConflictError, match=f"trial {number} of search 'admetar'.*has no waiting or running run"
        ):
            request_cancel_trial(engine, "digits", "admetar", number)
    with pytest.raises(TrialNotFoundError):
        request_cancel_trial(engine, "digits", "admetar", 9)
    assert get_study_view(engine, "digits").state == "RUNNING"
