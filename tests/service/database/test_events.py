"""Events: with the change they tell, in the order of commits, on both databases."""

from __future__ import annotations

import itertools
import json
import math
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, event, update

from search.records import Point, RunOutcome
from search.states import FailureKind, RunState, Stage
from service.database import SqlStore
from service.database.engine import writing
from service.database.events import EventKind, StoredEvent, kept_range, prune, read_events, record
from service.database.lease import close_unfinished
from service.database.models import Event
from service.database.retry import is_transient
from service.database.studies import create_study, request_cancel, request_pause, request_resume
from tests.machine import PATIENCE_S
from tests.service.database.fill import complete, curve, definition, leased, run

CRASHED = RunOutcome(state=RunState.FAIL, failure=FailureKind.ERROR, error="out of luck")


def _told(engine: Engine, after: int = 0) -> list[tuple[str, dict[str, object]]]:
    return [(e.kind, json.loads(e.data)) for e in read_events(engine, after=after)]


def test_life_of_a_study(store: SqlStore, engine: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    record_ = run(store, lease, search, 0, None, points=curve(0.1, 0.2))
    store.fail_attempt(lease, record_.id, outcome=CRASHED)
    store.start_attempt(lease, record_.id)
    store.interrupt_attempt(lease, record_.id, reason="paused")
    store.start_attempt(lease, record_.id)
    store.finish_run(lease, record_.id, complete(0.5, test_accuracy=math.nan))
    run(store, lease, search, 0, complete(0.6), stage=Stage.CONFIRM, seed=1)
    told = _told(engine)
    assert [kind for kind, _ in told] == [
        "study.created",
        "study.state",
        "trial.created",
        "trial.started",
        "metric",
        "trial.waiting",
        "trial.started",
        "trial.waiting",
        "trial.started",
        "trial.finished",
        "run.created",
        "run.started",
        "run.finished",
    ]
    data = dict(enumerate(data for _, data in told))
    assert data[1] == {"name": "digits", "state": "RUNNING", "reason": None}
    key = {"run": record_.id, "label": "admetar", "trial": 0, "stage": "search", "seed": 100}
    assert data[3] == key | {"state": "RUNNING", "attempt": 1}
    assert data[4]["points"][1] == {  # type: ignore[index]
        "epoch": 2,
        "step": 20,
        "value": 0.2,
        "metrics": {"val_accuracy": 0.2},
        "lr": 0.1,
    }
    assert data[5] == key | {"state": "WAITING", "attempt": 1, "error": "out of luck", "failure": "error"}
    assert (data[9]["state"], data[9]["value"], data[9]["test_metrics"]) == ("COMPLETE", 0.5, {"test_accuracy": None})
    assert data[12]["seed"] == 1


def test_repeats_tell_nothing(store: SqlStore, engine: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    record_ = run(store, lease, search, 0, complete(0.5), points=curve(0.1))
    _, newest = kept_range(engine)
    create_study(engine, definition())
    store.create_run(lease, search.id, trial_number=0, stage=Stage.SEARCH, seed=100, params={})
    store.start_attempt(lease, record_.id)
    store.add_points(lease, record_.id, curve(0.1))
    store.finish_run(lease, record_.id, complete(0.5))
    assert read_events(engine, after=newest) == []


def test_requests_and_what_is_closed_after_them(store: SqlStore, engine: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    record_ = run(store, lease, search, 0, None)
    _, before = kept_range(engine)
    request_pause(engine, "digits")
    request_resume(engine, "digits")
    request_cancel(engine, "digits")
    store.release_lease(lease)
    assert close_unfinished(store, lease.study_id)
    states = [(kind, data["state"]) for kind, data in _told(engine, before)]
    expected = [("study.state", state) for state in ("PAUSED", "RUNNING", "CANCELLED")]
    assert states == [*expected, ("trial.finished", "FAIL")]
    assert [e.ends_study for e in read_events(engine, after=before)] == [False, False, True, False]
    assert store.runs(lease.study_id)[0].failure == FailureKind.CANCELLED
    assert store.runs(lease.study_id)[0].id == record_.id


def test_a_reason_cannot_look_like_the_end() -> None:
    data = json.dumps({"state": "RUNNING", "reason": '"state": "FAILED"'})
    told = StoredEvent(id=1, at=datetime.now(UTC), study_id="a", kind="study.state", data=data)
    assert not told.ends_study


def test_what_is_rolled_back_is_not_told(engine: Engine) -> None:
    with writing(engine) as session:
        record(session, "a", EventKind.STUDY_STATE, {"state": "FAILED"})
        session.rollback()
    assert read_events(engine, after=0) == []


def test_points_that_are_no_numbers(store: SqlStore, engine: Engine) -> None:
    lease, (search, _) = leased(store, definition())
    bad = Point(epoch=1, step=1, value=math.inf, metrics={"val_loss": math.nan}, lr=0.1)
    run(store, lease, search, 0, None, points=[bad])
    (metric,) = [data for kind, data in _told(engine) if kind == "metric"]
    assert metric["points"][0]["value"] is None  # type: ignore[index]
    assert metric["points"][0]["metrics"] == {"val_loss": None}  # type: ignore[index]


def test_a_reader_misses_nothing_beside_many_writers(engine: Engine) -> None:
    """Commits are held up at random after the id is taken: where ids were not in commit order, some would be missed."""
    n_writers, n_each = 6, 20
    done = threading.Event()

    def write(writer: int) -> None:
        chance = random.Random(writer)
        for n in range(n_each):
            with writing(engine) as session:
                record(session, f"w{writer}", EventKind.METRIC, {"n": n})
                event.listen(session, "before_commit", lambda _: time.sleep(chance.random() * 0.004))
            time.sleep(chance.random() * 0.002)

    def follow() -> list[StoredEvent]:
        seen: list[StoredEvent] = []
        while True:
            last = done.is_set()
            new = read_events(engine, after=seen[-1].id if seen else 0)
            seen += new
            if last and not new:
                return seen

    with ThreadPoolExecutor(n_writers + 1) as pool:
        followed = pool.submit(follow)
        list(pool.map(write, range(n_writers)))
        done.set()
        seen = followed.result()
    assert len(seen) == n_writers * n_each
    assert all(a.id < b.id for a, b in itertools.pairwise(seen))
    for writer in range(n_writers):
        assert [json.loads(e.data)["n"] for e in seen if e.study_id == f"w{writer}"] == list(range(n_each))


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_writer_that_hangs_stops_the_others_for_a_while_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended process, say, between taking the lock and committing. Its driver tries again."""
    monkeypatch.setattr("service.database.events._MAX_HANG", "1s")
    holds, others_wrote = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        holds.set()
        others_wrote.wait(PATIENCE_S)

    def write_and_hang() -> None:
        with writing(engine) as session:
            record(session, "hangs", EventKind.METRIC, {})
            event.listen(session, "before_commit", hang)

    with ThreadPoolExecutor(1) as pool:
        hung = pool.submit(write_and_hang)
        assert holds.wait(PATIENCE_S)
        _write(engine, 1)
        assert not hung.done(), "the others waited for its end"
        others_wrote.set()
        error = hung.exception()
    assert error is not None
    assert is_transient(error)
    assert [e.study_id for e in read_events(engine, after=0)] == ["a"]


def _write(engine: Engine, n: int) -> None:
    with writing(engine) as session:
        for i in range(n):
            record(session, "a", EventKind.METRIC, {"i": i})


def test_pruning_leaves_the_newest(engine: Engine) -> None:
    _write(engine, 20)
    oldest, newest = kept_range(engine)
    assert prune(engine) == 0
    with writing(engine) as session:
        session.execute(update(Event).where(Event.id < oldest + 5).values(at=datetime.now(UTC) - timedelta(days=2)))
    assert prune(engine) == 5
    assert prune(engine, keep_rows=4) == 11
    assert kept_range(engine) == (newest - 3, newest)
    assert prune(engine, keep=timedelta()) == 3
    assert kept_range(engine) == (newest, newest)


def test_pages_and_filters(engine: Engine) -> None:
    assert kept_range(engine) == (1, 0)
    with writing(engine) as session:
        for i in range(6):
            record(session, "ab"[i % 2], EventKind.METRIC, {"i": i})
    first = read_events(engine, after=0, limit=1)[0].id
    assert [e.id - first for e in read_events(engine, after=first, until=first + 4)] == [1, 2, 3, 4]
    assert [e.id - first for e in read_events(engine, after=0, study_id="b")] == [1, 3, 5]
