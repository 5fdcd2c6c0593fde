"""The feed alone: nothing lost between catching up and following, slow followers, one query for all."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from sqlalchemy.exc import OperationalError

from service import event_feed as feeds
from service.database.events import StoredEvent
from service.event_feed import PAGE, Feed, Follower
from tests.machine import PATIENCE_S, until


class MemorySource:
    """Events in a list; counts how often it is asked."""

    def __init__(self) -> None:
        self.events: list[StoredEvent] = []
        self.n_reads = 0
        self.failures = 0

    def add(self, n: int, *, study: str = "a") -> None:
        for _ in range(n):
            self.events.append(
                StoredEvent(id=len(self.events) + 1, at=datetime.now(UTC), study_id=study, kind="metric", data="{}")
            )

    def read(self, *, after: int, until: int | None, study_id: str | None) -> Sequence[StoredEvent]:
        self.n_reads += 1
        if self.failures:
            self.failures -= 1
            raise OperationalError("SELECT", {}, Exception("away"))
        found = [e for e in self.events if e.id > after and (until is None or e.id <= until)]
        return [e for e in found if study_id in (None, e.study_id)][:PAGE]

    def kept_range(self) -> tuple[int, int]:
        return (1, len(self.events))


async def take(follower: Follower, n: int) -> list[int]:
    """The ids of the next n events; fails when they do not come."""
    ids: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(ids) < n:
            ids += [made.id for made in await follower.next(timeout_s=0.02)]
    return ids


def test_missed_events_then_new_ones() -> None:
    async def scenario() -> None:
        source = MemorySource()
        source.add(2 * PAGE + 7)
        feed = Feed(source, poll_s=0.001)
        follower = Follower(feed, study_id=None, after=3)
        for n in range(40):
            source.add(n)
        assert await take(follower, len(source.events) - 3) == list(range(4, len(source.events) + 1))
        source.add(5)
        assert await take(follower, 5) == [e.id for e in source.events[-5:]]
        feed.close()

    asyncio.run(scenario())


def test_events_that_come_while_catching_up_are_seen_once() -> None:
    async def scenario() -> None:
        source = MemorySource()
        feed = Feed(source, poll_s=0.0005)
        followers = [Follower(feed, study_id=None, after=0) for _ in range(5)]

        async def write() -> None:
            for _ in range(300):
                source.add(3)
                await asyncio.sleep(0.0005)

        async def late(n: int) -> list[int]:
            await asyncio.sleep(0.02 * n)
            return await take(followers[n], 900)

        writing = asyncio.create_task(write())
        for ids in await asyncio.gather(*(late(n) for n in range(5))):
            assert ids == list(range(1, 901))
        await writing
        feed.close()

    asyncio.run(scenario())


def test_a_follower_of_one_study_gets_its_events_only() -> None:
    async def scenario() -> None:
        source = MemorySource()
        feed = Feed(source, poll_s=0.001)
        follower = Follower(feed, study_id="b", after=0)
        source.add(3, study="a")
        source.add(2, study="b")
        assert await take(follower, 2) == [4, 5]
        source.add(3, study="a")
        source.add(1, study="b")
        assert await take(follower, 1) == [9]
        feed.close()

    asyncio.run(scenario())


def test_a_slow_follower_loses_nothing_and_keeps_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MAX_WAITING", 10)

    async def scenario() -> None:
        source = MemorySource()
        feed = Feed(source, poll_s=0.001)
        follower = Follower(feed, study_id=None, after=0)
        assert await follower.next(timeout_s=0.01) == []
        source.add(500)
        await asyncio.sleep(0.05)
        assert len(follower._waiting) <= 10
        assert await take(follower, 500) == list(range(1, 501))
        source.add(3)
        assert await take(follower, 3) == [501, 502, 503]
        feed.close()

    asyncio.run(scenario())


def test_fifty_followers_cost_one_query_a_poll_and_none_cost_nothing() -> None:
    async def scenario() -> None:
        source = MemorySource()
        poll_s = 0.01
        feed = Feed(source, poll_s=poll_s)
        followers = [Follower(feed, study_id=None, after=0) for _ in range(50)]
        await asyncio.gather(*(follower.next(timeout_s=0.01) for follower in followers))
        before, began = source.n_reads, time.monotonic()  # each has missed nothing, which it had to look for once
        await until(lambda: source.n_reads >= before + 5)
        assert source.n_reads - before <= 1 + (time.monotonic() - began) / poll_s
        source.add(1)
        assert await asyncio.gather(*(take(follower, 1) for follower in followers)) == [[1]] * 50
        assert feed.n_followers == 50
        for follower in followers:
            follower.close()
        await until(lambda: len(asyncio.all_tasks()) == 1)  # the poller has ended
        before = source.n_reads
        await asyncio.sleep(5 * poll_s)
        assert source.n_reads == before

    asyncio.run(scenario())


def test_the_database_away_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        source = MemorySource()
        feed = Feed(source, poll_s=0.001)
        follower = Follower(feed, study_id=None, after=0)
        await follower.next(timeout_s=0.01)
        source.failures = 3
        source.add(1)
        assert await take(follower, 1) == [1]
        feed.close()

    asyncio.run(scenario())
    assert "events cannot be read" in caplog.text


def test_a_frame_is_one_line_of_json() -> None:
    data = json.dumps({"error": "first\nsecond\r\u2028third"})
    event = StoredEvent(id=7, at=datetime(2026, 1, 2, tzinfo=UTC), study_id="ab", kind="trial.finished", data=data)
    lines = feeds.frame(event).content.decode().split("\n")
    assert lines[:2] == ["id: 7", "event: trial.finished"]
    assert lines[3:] == ["", ""]
    assert json.loads(lines[2].removeprefix("data: ")) == {
        "id": 7,
        "at": "2026-01-02T00:00:00Z",
        "study": "ab",
        "kind": "trial.finished",
        "data": {"error": "first\nsecond\r\u2028third"},
    }
