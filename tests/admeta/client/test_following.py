"""Both clients wait, follow events, and follow logs; over services that go away and come back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from admeta.client import ClientError
from admeta.client.models import StudyView
from tests.admeta.client.conftest import STUDY, Asked

REFUSED = httpx.ConnectError("refused")


def story(*answers: Any) -> tuple[Callable[[httpx.Request], httpx.Response], list[httpx.Request]]:
    """A service that gives these answers, errors included, and the requests that it got."""
    left: Iterator[Any] = iter(answers)
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        told = next(left)
        if isinstance(told, Exception):
            raise told
        return told  # type: ignore[no-any-return]

    return answer, requests


def study(state: str, tag: str = "") -> httpx.Response:
    return httpx.Response(200, json={**STUDY, "state": state}, headers={"ETag": tag} if tag else {})


def events(*ids: int, kind: str = "metric", cut: bool = False) -> httpx.Response:
    frames = [
        f"id: {n}\ndata: " + json.dumps({"id": n, "at": STUDY["created_at"], "study": "a", "kind": kind, "data": {}})
        for n in ids
    ]
    text = "retry: 2000\n\n: alive\n\n" + "".join(f"{frame}\n\n" for frame in frames) + ("data: {" if cut else "")
    return stream(text)


def stream(text: str) -> httpx.Response:
    return httpx.Response(200, text=text, headers={"Content-Type": "text/event-stream"})


def log(text: str, *, attempt: int = 1, offset: int, ended: bool) -> httpx.Response:
    told = "true" if ended else "false"
    headers = {"X-Log-Attempt": str(attempt), "X-Log-Offset": str(offset), "X-Log-Ended": told}
    return httpx.Response(200, text=text, headers=headers)


def run(state: str) -> httpx.Response:
    view = {
        "id": 7, "stage": "search", "seed": 0, "state": state, "value": None, "test_metrics": {}, "failure": None,
        "error": None, "epoch": 0, "step": 0, "train_s": 0, "gpu_s": 0, "created_at": STUDY["created_at"],
        "started_at": None, "finished_at": None, "attempts": [], "study": "a", "label": "b", "optimizer": "c",
        "trial": 0, "settings": {},
    }  # fmt: skip
    return httpx.Response(200, json=view)


def test_wait_asks_for_changes_only(asked: Asked, pauses: list[float]) -> None:
    answer, requests = story(
        study("QUEUED", '"1"'), httpx.Response(304), study("RUNNING", '"2"'), httpx.Response(304), study("COMPLETED")
    )
    seen: list[StudyView] = []
    assert asked(answer, "wait", "first", on_update=seen.append).state == "COMPLETED"
    assert [view.state for view in seen] == ["QUEUED", "RUNNING", "COMPLETED"]
    assert [request.headers.get("If-None-Match") for request in requests] == [None, '"1"', '"1"', '"2"', '"2"']
    assert pauses == [1.0] * 4


def test_a_submission_is_waited_for(asked: Asked) -> None:
    answer, _ = story(httpx.Response(201, json=STUDY), study("FAILED"))
    if asked.kind == "blocking":
        from admeta.client import Client

        with Client("http://service", transport=httpx.MockTransport(answer)) as client:
            assert client.submit({}).wait(progress=True).state == "FAILED"
        return
    import asyncio

    from admeta.client import AsyncClient

    async def scenario() -> str:
        async with AsyncClient("http://service", transport=httpx.MockTransport(answer)) as client:
            return (await (await client.submit({})).wait(progress=True)).state

    assert asyncio.run(scenario()) == "FAILED"


def test_wait_gives_up_in_time(asked: Asked, pauses: list[float]) -> None:
    with pytest.raises(TimeoutError, match="still RUNNING after 2\\.5 s"):
        asked(lambda _: study("RUNNING"), "wait", "first", timeout_s=2.5)
    assert sum(pauses) == 2.5


def test_wait_outlives_a_service_that_comes_back(asked: Asked, pauses: list[float]) -> None:
    away: list[ClientError] = []
    answer, _ = story(study("RUNNING"), *[REFUSED] * 10, study("RUNNING"), *[REFUSED] * 5, study("COMPLETED"))
    asked(answer, "wait", "first", on_absence=away.append)
    assert [error.error for error in away] == ["unreachable"] * 2
    with pytest.raises(ClientError):  # it stays away
        asked(story(study("RUNNING"), *[REFUSED] * 800)[0], "wait", "first")
    assert sum(pauses) > 600  # while the service is started again, or its machine swaps
    with pytest.raises(ClientError):  # it was never there: most likely the address is wrong
        asked(story(*[REFUSED] * 4)[0], "wait", "first")


def test_wait_does_not_wait_for_an_unknown_study(asked: Asked) -> None:
    body = {"error": "study_not_found", "detail": "d", "hint": "h"}
    with pytest.raises(ClientError) as caught:
        asked(story(httpx.Response(404, json=body))[0], "wait", "first")
    assert caught.value.status == 404


def test_events_go_on_after_the_last_one_seen(asked: Asked) -> None:
    cut = httpx.ReadError("cut")
    answer, requests = story(
        events(3, 4), httpx.Response(503), cut, events(7, cut=True), REFUSED, events(), httpx.Response(204)
    )
    assert [event.id for event in asked(answer, "events", "a", after=2)] == [3, 4, 7]
    assert [request.headers.get("Last-Event-ID") for request in requests] == ["2", "4", "4", "4", "7", "7", "7"]


def test_an_event_with_a_line_separator_in_its_text_is_one_event(asked: Asked) -> None:
    """U+2028 and others end a line for `str.splitlines` but not in a stream of events."""
    event = {"id": 1, "at": STUDY["created_at"], "study": "a\u2028b\x85c", "kind": "metric", "data": {}}
    answer, _ = story(stream(f"data: {json.dumps(event, ensure_ascii=False)}\n\n"), httpx.Response(204))
    assert [event.study for event in asked(answer, "events", "a")] == ["a\u2028b\x85c"]


def test_events_end_with_a_study_that_is_deleted(asked: Asked) -> None:
    answer, _ = story(events(9, kind="study.deleted"), httpx.Response(404))
    assert [event.kind for event in asked(answer, "events", "a")] == ["study.deleted"]


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        (lambda: [REFUSED] * 4, "unreachable"),
        (lambda: [events(1), *[REFUSED] * 900], "unreachable"),
        (lambda: [stream("data: {}\n\n")], "unexpected_answer"),
        (lambda: [httpx.Response(200, text="data: {}\n\n")], "unexpected_answer"),
        (
            lambda: [httpx.Response(404, json={"error": "study_not_found", "detail": "d", "hint": "h"})],
            "study_not_found",
        ),
    ],
)
def test_events_that_cannot_be_followed(asked: Asked, answers: Callable[[], list[Any]], error: str) -> None:
    with pytest.raises(ClientError) as caught:
        asked(story(*answers())[0], "events", "a")
    assert caught.value.error == error


def test_logs_are_followed_over_attempts_to_the_end_of_the_run(asked: Asked) -> None:
    answer, requests = story(
        log("one\n", offset=4, ended=False),
        log("", offset=4, ended=False),
        REFUSED,
        log("two\n", offset=8, ended=True),
        log("", offset=8, ended=True),  # no other attempt yet
        run("WAITING"),
        log("", offset=8, ended=True),
        log("", attempt=2, offset=0, ended=False),  # now there is
        log("three\n", attempt=2, offset=6, ended=True),
        log("", attempt=2, offset=6, ended=True),
        run("COMPLETE"),
    )
    parts = asked(answer, "follow_logs", 7, tail=5)
    assert [(part.attempt, part.text) for part in parts] == [(1, "one\n"), (1, "two\n"), (2, "three\n")]
    assert [dict(request.url.params) for request in requests[:2]] == [{"tail": "5"}, {"attempt": "1", "offset": "4"}]


def test_logs_of_one_attempt_end_with_it(asked: Asked) -> None:
    answer, _ = story(log("one\n", offset=4, ended=False), log("two\n", offset=8, ended=True))
    assert [part.text for part in asked(answer, "follow_logs", 7, attempt=1)] == ["one\n", "two\n"]


def test_logs_outlive_a_service_that_is_about_to_start(asked: Asked) -> None:
    """As waiting and events do: an answer, even 503, says that the address is right; silence does not."""
    answer, _ = story(*[httpx.Response(503)] * 9, log("a\n", offset=2, ended=True))
    assert [part.text for part in asked(answer, "follow_logs", 7, attempt=1)] == ["a\n"]
    with pytest.raises(ClientError):
        asked(story(*[REFUSED] * 4)[0], "follow_logs", 7, attempt=1)
