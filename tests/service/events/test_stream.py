"""Streams over real sockets: resuming, ends, heartbeats, readers that leave or stop reading, and the client."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, update

from admeta.client import Client
from admeta.client.models import EventView
from search.states import RunState, Scope
from service import event_feed
from service.api import events as streams
from service.database import SqlStore, make_engine, tokens
from service.database.engine import writing
from service.database.events import EventKind, kept_range, prune, record
from service.database.models import AccessToken
from service.database.studies import request_cancel
from service.event_feed import Feed
from service.settings import Settings
from tests.machine import PATIENCE_S, until, wait_until
from tests.service.database.fill import complete, curve, definition, leased, run
from tests.service.events.test_feed import MemorySource
from tests.service.fakes import live


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = make_engine(settings.database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def address(settings: Settings, engine: Engine) -> Iterator[str]:
    with live(settings) as address:
        yield address


def _read(address: str, path: str, headers: dict[str, str] | None = None) -> list[EventView]:
    with httpx.stream("GET", f"{address}{path}", headers=headers, timeout=PATIENCE_S) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return list(_parse(response.iter_lines()))


def _parse(lines: Iterable[str]) -> Iterator[EventView]:
    return (EventView.model_validate_json(line[6:]) for line in lines if line.startswith("data: "))


def _finish(engine: Engine) -> str:
    store = SqlStore(engine)
    lease, (search, _) = leased(store, definition())
    run(store, lease, search, 0, complete(0.5), points=curve(0.1))
    request_cancel(engine, "digits")
    return lease.study_id


def test_a_study_is_followed_to_its_end(address: str, engine: Engine) -> None:
    store = SqlStore(engine)
    lease, (search, _) = leased(store, definition())
    seen: list[EventView] = []
    follower = threading.Thread(target=lambda: seen.extend(_read(address, "/v1/studies/digits/events")))
    follower.start()
    run(store, lease, search, 0, complete(0.5), points=curve(0.1))
    with writing(engine) as session:
        record(session, "another", EventKind.STUDY_STATE, {"state": "FAILED"})
    request_cancel(engine, "digits")
    follower.join(timeout=PATIENCE_S)
    assert not follower.is_alive()
    kinds = [event.kind for event in seen]
    assert kinds[:2] == ["study.created", "study.state"]
    assert kinds[2:] == ["trial.created", "trial.started", "metric", "trial.finished", "study.state"]
    assert {event.study for event in seen} == {lease.study_id}
    assert seen[-1].data["state"] == "CANCELLED"
    assert [event.id for event in seen] == sorted({event.id for event in seen})


def test_a_stream_ends_once_its_token_was_revoked_or_has_expired(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reader's token is revoked, another's expires, a third's stays valid."""
    monkeypatch.setattr(event_feed, "CHECK_TOKENS_S", 0.2)
    made = {name: tokens.create_token(engine, name=name, scope=Scope.READ) for name in ("kept", "expired", "revoked")}
    lines: dict[str, list[str]] = {name: [] for name in made}

    def follow(address: str, name: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        with (
            suppress(httpx.HTTPError),
            httpx.stream("GET", f"{address}/v1/events", headers=headers, timeout=PATIENCE_S) as got,
        ):
            assert got.status_code == 200
            lines[name].extend(got.iter_lines())

    with live(replace(settings, require_token=True)) as address:
        threads = {name: threading.Thread(target=follow, args=(address, name, made[name].token)) for name in made}
        for thread in threads.values():
            thread.start()
        keep = {"Authorization": f"Bearer {made['kept'].token}"}
        wait_until(lambda: _metric(address, "admeta_event_followers", keep) == 3, what="all three follow")
        tokens.revoke_token(engine, made["revoked"].id)
        with writing(engine) as session:
            expired = update(AccessToken).where(AccessToken.id == made["expired"].id)
            session.execute(expired.values(expires_at=datetime.now(UTC)))
        for name in ("expired", "revoked"):
            threads[name].join(timeout=PATIENCE_S)
            assert ": the access token was revoked or has expired" in lines[name]
            headers = {"Authorization": f"Bearer {made[name].token}"}
            assert httpx.get(f"{address}/v1/events", headers=headers, timeout=PATIENCE_S).status_code == 401
        assert threads["kept"].is_alive()
    threads["kept"].join(timeout=PATIENCE_S)


def test_resuming_by_header_and_by_parameter(address: str, engine: Engine) -> None:
    _finish(engine)
    events = _read(address, "/v1/studies/digits/events")
    third = events[2].id
    assert _read(address, f"/v1/studies/digits/events?after={third}") == events[3:]
    assert _read(address, "/v1/studies/digits/events?after=0", {"Last-Event-ID": str(third)}) == events[3:]
    assert _read(address, f"/v1/events?after={third}&follow=false") == events[3:]
    ended = httpx.get(f"{address}/v1/studies/digits/events?after={events[-1].id}", timeout=PATIENCE_S)
    assert (ended.status_code, ended.content) == (204, b"")
    head = httpx.head(f"{address}/v1/events", timeout=PATIENCE_S)
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("path", "headers", "status", "part"),
    [
        ("/v1/studies/nope/events", {}, 404, "no study has the id or name 'nope'"),
        ("/v1/events?after=-1", {}, 422, "after"),
        ("/v1/events?after=x", {}, 422, "after"),
        ("/v1/events?after=9223372036854775808", {}, 422, "after"),
        ("/v1/events?since=1", {}, 422, "unknown parameter"),
        ("/v1/events", {"Last-Event-ID": "abc"}, 422, "Last-Event-ID"),
    ],
)
def test_refusals(address: str, path: str, headers: dict[str, str], status: int, part: str) -> None:
    response = httpx.get(f"{address}{path}", headers=headers, timeout=PATIENCE_S)
    assert response.status_code == status
    assert part in response.json()["detail"]


def test_forgotten_events_are_told(address: str, engine: Engine) -> None:
    _finish(engine)
    with httpx.stream("GET", f"{address}/v1/events?after=999999&follow=false", timeout=PATIENCE_S) as response:
        first, *_ = _parse(response.iter_lines())  # of another database
    assert (first.kind, first.data["after"]) == ("gap", 999999)
    prune(engine, keep_rows=2)
    oldest, newest = kept_range(engine)
    gap, *left = _read(address, "/v1/studies/digits/events?after=1")
    assert (gap.kind, gap.data, gap.id) == ("gap", {"after": 1, "oldest": oldest}, oldest - 1)
    assert [event.id for event in left] == [oldest, newest]


def test_fifty_followers_and_no_connection_held(address: str, engine: Engine) -> None:
    store = SqlStore(engine)
    lease, (search, _) = leased(store, definition())
    seen: list[list[EventView]] = [[] for _ in range(50)]
    threads = [
        threading.Thread(target=lambda n=n: seen[n].extend(_read(address, "/v1/studies/digits/events")))
        for n in range(50)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: _metric(address, "admeta_event_followers") == 50, what="50 follow")
    for number in range(5):
        run(store, lease, search, number, complete(0.5))
    # There are more followers than pooled connections.
    assert httpx.get(f"{address}/v1/studies", timeout=PATIENCE_S).status_code == 200
    request_cancel(engine, "digits")
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    assert all(events == seen[0] for events in seen)
    assert len(seen[0]) == 2 + 5 * 3 + 1
    wait_until(lambda: _metric(address, "admeta_event_followers") == 0, what="0 follow")


def test_a_reader_that_leaves_is_noticed(address: str) -> None:
    with httpx.stream("GET", f"{address}/v1/events", timeout=PATIENCE_S) as response:
        chunks = response.iter_raw()
        next(chunks)
        wait_until(lambda: _metric(address, "admeta_event_followers") == 1, what="1 follow")
    wait_until(lambda: _metric(address, "admeta_event_followers") == 0, what="0 follow")


def test_the_client_bridges_a_restart(settings: Settings, engine: Engine) -> None:
    store = SqlStore(engine)
    lease, (search, _) = leased(store, definition())
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    seen: list[EventView] = []
    client = Client(f"http://127.0.0.1:{port}")
    following = threading.Thread(target=lambda: seen.extend(client.events("digits")))
    with live(settings, port=port):
        following.start()
        run(store, lease, search, 0, complete(0.1))
        wait_until(lambda: len(seen) == 5, what="the events have come")
    run(store, lease, search, 1, complete(0.2))
    with live(settings, port=port):
        wait_until(lambda: len(seen) == 8, what="the events have come")
        store.finish_run(lease, run(store, lease, search, 2, None).id, complete(0.3))
        request_cancel(engine, "digits")
        following.join(timeout=PATIENCE_S)
        assert not following.is_alive()
        assert [event.id for event in client.events("digits")] == [event.id for event in seen]
    client.close()
    assert [event.kind for event in seen].count("trial.finished") == 3
    assert all(event.data["state"] == RunState.COMPLETE for event in seen if event.kind == "trial.finished")


class Wire:
    """An ASGI connection in memory; `stalled` makes it take nothing more."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.stalled = False
        self.left = asyncio.Event()

    async def send(self, message: Any) -> None:
        if self.stalled:
            await asyncio.Event().wait()
        self.sent.append(message)

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]


def test_heartbeats_stalls_and_the_end_of_the_service() -> None:
    async def scenario() -> None:
        source = MemorySource()
        feed = Feed(source, poll_s=0.001)

        def stream() -> streams.EventStream:
            return streams.EventStream(feed, study_id=None, after=0, until=None, heartbeat_s=0.02, stall_s=0.05)

        wire = Wire()
        answering = asyncio.create_task(stream()({"type": "http"}, wire.receive, wire.send))
        await until(lambda: wire.bodies.count(b": alive\n\n") >= 2)
        source.add(1)
        wire.stalled = True
        await asyncio.wait_for(answering, PATIENCE_S)
        assert feed.n_followers == 0
        assert wire.sent[-1]["more_body"]  # no regular end: the connection is cut, and the reader resumes

        leaving, closed = Wire(), Wire()
        tasks = [asyncio.create_task(stream()({"type": "http"}, w.receive, w.send)) for w in (leaving, closed)]
        await until(lambda: feed.n_followers == 2)
        leaving.left.set()
        await asyncio.wait_for(tasks[0], PATIENCE_S)
        assert feed.n_followers == 1
        feed.close()
        await asyncio.wait_for(tasks[1], PATIENCE_S)
        assert closed.sent[-1] == {"type": "http.response.body", "body": b""}

    asyncio.run(scenario())


def _metric(address: str, name: str, headers: dict[str, str] | None = None) -> float:
    lines = httpx.get(f"{address}/metrics", headers=headers, timeout=PATIENCE_S).text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), -1)
