"""What both clients send, what they raise, what they repeat."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from admeta.client import AsyncClient, Client, ClientError
from admeta.client.models import StudyView
from tests.admeta.client.conftest import STUDY, Asked
from tests.admeta.client.generate import TARGET, generate

ERROR = {"error": "database_unavailable", "detail": "d", "hint": "h"}


class Canned:
    """Answers in turn, or errors; keeps the requests."""

    def __init__(self, *answers: int | Exception | httpx.Response, body: Any = STUDY) -> None:
        self._answers: Iterator[int | Exception | httpx.Response] = iter(answers)
        self._body = body
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(answer, json=self._body if answer < 400 else ERROR)

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get("Idempotency-Key") for request in self.requests]


def test_the_blocking_client_is_generated_from_the_other() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in sorted(TARGET.glob("*.py"))}
    assert kept == generate(), "run `make client`"


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        names = [name for name in vars(kind) if not name.startswith("_") and name not in ("close", "aclose")]
        return {name: list(inspect.signature(getattr(kind, name)).parameters) for name in names}

    assert methods(Client) == methods(AsyncClient)
    assert inspect.signature(Client.best).return_annotation == "BestView"
    assert inspect.signature(AsyncClient.trials).return_annotation == "AsyncItems[TrialView]"


def test_submit_says_whether_the_study_is_new(asked: Asked) -> None:
    answers = Canned(201, 200)
    assert asked(answers, "submit", {"name": "first"}).created
    again = asked(answers, "submit", {"name": "first"})
    assert not again.created
    assert again.study.name == "first"


def test_nan_reaches_the_service_which_names_the_field(asked: Asked) -> None:
    field = {"field": "budget.target", "value": "nan", "rule": "must be finite"}
    body = {"error": "invalid_definition", "detail": "d", "hint": "h", "fields": [field]}
    answers = Canned(httpx.Response(422, json=body))
    with pytest.raises(ClientError) as caught:
        asked(answers, "submit", {"budget": {"target": float("nan")}})
    assert b"NaN" in answers.requests[0].content
    error = caught.value
    assert (error.status, error.error, error.detail, error.hint) == (422, "invalid_definition", "d", "h")
    assert error.fields[0].field == "budget.target"


def test_numbers_of_numpy_and_paths_are_sent_as_json(asked: Asked, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    answers = Canned(201)
    definition = {
        "budget": {"trials_per_optimizer": numpy.int64(5), "target": numpy.float32(0.5)},
        "confirm": {"seeds": range(3)},
        "task": {"data_dir": tmp_path, "deterministic": numpy.bool_(True)},
        "choices": numpy.array([0.25, 0.5]),
        "betas": (0.9, 0.999),
    }
    asked(answers, "submit", definition)
    assert json.loads(answers.requests[0].content) == {
        "budget": {"trials_per_optimizer": 5, "target": 0.5},
        "confirm": {"seeds": [0, 1, 2]},
        "task": {"data_dir": str(tmp_path), "deterministic": True},
        "choices": [0.25, 0.5],
        "betas": [0.9, 0.999],
    }


def test_a_value_that_json_cannot_express_is_named(asked: Asked) -> None:
    with pytest.raises(ClientError, match=r"optimizers\.0\.space\.lr = .* is a set") as caught:
        asked(Canned(201), "submit", {"optimizers": [{"space": {"lr": {0.1}}}]})
    assert [field.field for field in caught.value.fields] == ["optimizers.0.space.lr"]


def test_token_and_names_are_sent_as_they_must_be(asked: Asked) -> None:
    answers = Canned(200)
    asked(answers, "study", "a/b?c ä", client={"token": "t"})
    assert answers.requests[0].headers["Authorization"] == "Bearer t"
    assert answers.requests[0].url.raw_path == b"/v1/studies/a%2Fb%3Fc%20%C3%A4"


@pytest.mark.parametrize("token", ["adm_secret\r", " adm_secret\n", "adm_secret\r\n"])
def test_blanks_around_a_token_are_left_out(asked: Asked, token: str) -> None:
    answers = Canned(200)
    asked(answers, "study", "x", client={"token": token})
    assert answers.requests[0].headers["Authorization"] == "Bearer adm_secret"


@pytest.mark.parametrize("token", ["adm_se cret", "adm_se\r\ncret", "adm_secrét", "adm_se\x00cret"])
def test_a_token_that_no_header_can_carry_is_refused_without_showing_it(asked: Asked, token: str) -> None:
    with pytest.raises(ClientError, match="access token") as caught:
        asked(Canned(200), "study", "x", client={"token": token})
    assert caught.value.error == "invalid_token"
    assert "adm_" not in str(caught.value)


def test_pages_are_followed_up_to_the_limit(asked: Asked) -> None:
    seen: list[tuple[str | None, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        cursor, limit = request.url.params.get("cursor"), request.url.params["limit"]
        seen.append((cursor, limit))
        start = int(cursor or 0)
        end = min(start + int(limit), 250)
        items = [{**STUDY, "name": f"s{i}"} for i in range(start, end)]
        return httpx.Response(200, json={"items": items, "next_cursor": str(end) if end < 250 else None})

    assert len(asked(answer, "studies", state="QUEUED")) == 250
    assert seen == [(None, "100"), ("100", "100"), ("200", "100")]
    seen.clear()
    assert len(asked(answer, "studies", limit=130)) == 130
    assert seen == [(None, "100"), ("100", "30")]


CUT, REFUSED, LATE = httpx.RemoteProtocolError("cut"), httpx.ConnectError("refused"), httpx.ReadTimeout("late")


@pytest.mark.parametrize("call", [("study", "x"), ("submit", {}), ("clone", "x", "y")])
def test_what_is_safe_to_repeat_is_repeated(asked: Asked, call: tuple[Any, ...], pauses: list[float]) -> None:
    answers = Canned(REFUSED, CUT, 503, 200)
    asked(answers, *call)
    assert pauses == [0.2, 0.4, 0.8]
    assert len(answers.requests) == 4
    if call[0] != "study":
        assert len(set(answers.keys)) == 1
        assert answers.keys[0] is not None
        assert len(answers.keys[0]) >= 32


def test_every_submission_has_a_key_of_its_own_or_the_callers(asked: Asked) -> None:
    answers = Canned(201, 201, 201)
    for _ in range(2):
        asked(answers, "submit", {})
    asked(answers, "submit", {}, idempotency_key="mine")
    first, second, third = answers.keys
    assert first != second
    assert third == "mine"


@pytest.mark.parametrize("call", [("cancel", "x"), ("pause", "x"), ("resume", "x"), ("cancel_trial", "x", "a", 1)])
def test_what_may_have_been_carried_out_is_not_repeated(asked: Asked, call: tuple[Any, ...]) -> None:
    for failure in (CUT, 503):
        answers = Canned(failure)
        with pytest.raises(ClientError):
            asked(answers, *call)
        assert len(answers.requests) == 1


def test_where_nothing_was_sent_everything_is_repeated(asked: Asked) -> None:
    answers = Canned(REFUSED, REFUSED, 200)
    assert asked(answers, "cancel", "x").name == "first"


def test_a_late_answer_is_not_waited_for_again(asked: Asked) -> None:
    with pytest.raises(ClientError, match="did not answer in time") as caught:
        asked(Canned(LATE), "study", "x")
    assert caught.value.status is None


def test_retry_after_is_respected_within_reason(asked: Asked, pauses: list[float]) -> None:
    away = [httpx.Response(503, json=ERROR, headers={"Retry-After": text}) for text in ("1", "3600", "soon")]
    asked(Canned(*away, 200), "study", "x")
    assert pauses == [1, 2, 0.8]


def test_503_is_tried_again_and_then_told(asked: Asked) -> None:
    answers = Canned(503, 503, 503, 503)
    with pytest.raises(ClientError) as caught:
        asked(answers, "study", "x")
    assert (caught.value.status, caught.value.error) == (503, "database_unavailable")


def test_a_service_that_stays_away_is_told_with_the_way_out(asked: Asked) -> None:
    with pytest.raises(ClientError) as caught:
        asked(Canned(*[REFUSED] * 4), "tasks")
    assert caught.value.status is None
    assert "http://service" in caught.value.detail
    assert "admeta serve" in caught.value.hint


@pytest.mark.parametrize(("status", "body"), [(200, "<html>"), (200, "{}"), (404, "nginx"), (500, "")])
def test_answers_of_something_else(asked: Asked, status: int, body: str) -> None:
    for call in (("study", "x"), ("tasks",), ("health",), ("logs", 1)):
        with pytest.raises(ClientError) as caught:
            asked(lambda _: httpx.Response(status, text=body), *call)
        assert caught.value.error == "unexpected_answer"


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://[::1"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ClientError) as caught:
        Client(url).health()
    assert caught.value.error == "unreachable"


def test_address_and_token_from_the_environment(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMETA_URL", "http://elsewhere:9/")
    monkeypatch.setenv("ADMETA_TOKEN", "t")
    answers = Canned(200)
    asked(answers, "study", "x", client={"url": None})
    assert str(answers.requests[0].url) == "http://elsewhere:9/v1/studies/x"
    assert answers.requests[0].headers["Authorization"] == "Bearer t"


def test_an_unwell_service_tells_its_health(asked: Asked) -> None:
    view = {"status": "unavailable", "version": "1", "database": "unavailable: X", "ray": "ok"}
    answers = Canned(httpx.Response(503, json=view))
    assert asked(answers, "health").database == "unavailable: X"


def test_an_export_streams_into_the_file_and_tells_a_refusal(asked: Asked, tmp_path: Any) -> None:
    path = tmp_path / "out.csv"
    with path.open("wb") as file:
        asked(Canned(httpx.Response(200, content=b"a,b\n" * 50_000)), "export", "x", file)
    assert path.read_bytes() == b"a,b\n" * 50_000
    body = {"error": "study_not_found", "detail": "d", "hint": "h"}
    with path.open("wb") as file, pytest.raises(ClientError) as caught:
        asked(Canned(httpx.Response(404, json=body)), "export", "x", file)
    assert caught.value.error == "study_not_found"


def test_the_best_settings_construct_the_optimizer(asked: Asked) -> None:
    torch = pytest.importorskip("torch")
    from admeta import AdmetaR

    settings = {"lr": 0.01, "lambd": 0.2, "betas": [0.9, 0.999], "weight_decay": 1e-4}
    spread = {"mean": 0.9, "std": None, "n": 1, "n_failed": 0}
    best = {
        "task": "digits", "model": None, "optimizer": "admetar", "metric": "val_accuracy", "direction": "maximize",
        "settings": settings, "search_value": 0.9, "validation": spread, "test": spread, "test_metric": None,
        "study": "s", "label": "admetar", "trial": 3, "evidence": "single run",
    }  # fmt: skip
    found = asked(Canned(httpx.Response(200, content=json.dumps(best))), "best", task="digits", optimizer="admetar")
    assert type(found.params) is dict
    optimizer = AdmetaR(torch.nn.Linear(2, 1).parameters(), **found.params)
    assert optimizer.defaults["lambd"] == 0.2


def test_lists_become_dataframes(asked: Asked) -> None:
    pytest.importorskip("pandas")
    study = {**STUDY, "definition": {"budget": {"target": 0.9}}}
    pages = Canned(httpx.Response(200, json={"items": [study, {**study, "name": "second"}], "next_cursor": None}))
    if asked.kind == "blocking":
        with Client("http://service", transport=httpx.MockTransport(pages)) as client:
            frame = client.studies().to_dataframe()
    else:
        frame = asyncio.run(
            AsyncClient("http://service", transport=httpx.MockTransport(pages)).studies().to_dataframe()
        )
    assert list(frame["name"]) == ["first", "second"]
    assert list(frame["definition.budget.target"]) == [0.9, 0.9]


def test_answers_show_themselves_in_notebooks() -> None:
    study = StudyView.model_validate({**STUDY, "reason": "<script>", "tags": ["a"]})
    html = study._repr_html_()
    assert "<th>name</th><td>first</td>" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
