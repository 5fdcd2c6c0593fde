"""Log lines: as text and as JSON, with what they are about, and without secrets."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from admeta.client.text import without_secrets
from service.api.middleware import REQUEST_ID
from service.database.tokens import PREFIX
from service.logs import (
    JsonFormatter,
    Repeats,
    TextFormatter,
    about,
    configure,
    configure_driver,
    driver_log,
)
from service.settings import LogFormat
from tests.service.fakes import definition

TOKEN = PREFIX + "Zk3-" * 10


def _record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("service.x", logging.WARNING, "x.py", 1, message, args, info)


def test_json_lines() -> None:
    try:
        raise ValueError(f"cannot use {TOKEN}\nat all")
    except ValueError as error:
        record = _record("study %s: %s", "abc", "zwei\nZeilen", error=error)
    with about(study="abc", trial=3), about(request="r1"):
        line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("WARNING", "service.x", "study abc: zwei\nZeilen")
    assert (entry["study"], entry["trial"], entry["request"]) == ("abc", 3, "r1")
    assert "ValueError: cannot use adm_***" in entry["traceback"]
    assert entry["time"].endswith("+00:00")


def test_text_lines_begin_with_the_time_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of a cluster may be in several zones, and an hour comes twice where summer ends."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        record = _record("idle")
        record.created, record.msecs = 1_700_000_000.25, 250.0
        assert TextFormatter().format(record) == "2023-11-14T22:13:20.250Z WARNING service.x: idle"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_text_lines_say_what_they_are_about() -> None:
    with about(study="abc", trial=3):
        assert (
            TextFormatter()
            .format(_record("study abc: started"))
            .endswith("WARNING service.x: study abc: started [trial=3]")
        )
    assert TextFormatter().format(_record("idle")).endswith("service.x: idle")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"token {TOKEN} is bad", TOKEN),
        ("cannot reach postgresql://user:hunter2@host:5432/db", "hunter2"),
        ("postgresql+psycopg://user:p@ss/w?rd@host/db", "p@ss/w?rd"),
        ("postgresql://host/db?user=u&password=hunter2", "hunter2"),
        ("postgresql://u:hunter2@x@host/db?sslmode=require&sslpassword=hunter2", "hunter2"),
        ("no service answers at http://u:hun@ter2@host:8000 (refused)", "ter2"),
        ("headers: {'authorization': 'Bearer abc.def'}", "abc.def"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("connection failed: host=h password=hunter2 dbname=d", "hunter2"),
        ("{'password': 'hunter2'}", "hunter2"),
    ],
)
def test_secrets_are_blacked_out(text: str, secret: str) -> None:
    assert secret not in without_secrets(text)
    assert "***" in without_secrets(text)
    for formatter in (TextFormatter(), JsonFormatter()):
        assert secret not in formatter.format(_record("%s", text))
        assert secret not in formatter.format(_record("failed", error=RuntimeError(text)))


def test_other_text_stays() -> None:
    text = "study admeta-1: GET http://127.0.0.1:8000/v1/studies took 3 ms, a@b.c"
    assert without_secrets(text) == text


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    for handler in set(logger.handlers) - set(handlers):
        handler.close()
    logger.handlers[:], logger.level = handlers, level


def test_configured(tmp_path: Path, root: logging.Logger) -> None:
    path = tmp_path / "logs" / "service.log"
    configure(path, format=LogFormat.JSON, console=False)
    with about(study="s"):
        logging.getLogger("service.test").info("hello %s", "world")
    assert json.loads(path.read_text())["study"] == "s"
    configure(path, format=LogFormat.TEXT, console=True)
    assert len(root.handlers) == 2


def test_a_driver_s_lines_say_their_study_in_every_thread(tmp_path: Path, root: logging.Logger) -> None:
    configure_driver("abc", home=tmp_path, format=LogFormat.JSON)
    extra = {"about": {"trial": 3}}
    thread = threading.Thread(target=lambda: logging.getLogger("search.x").warning("lost %s", TOKEN, extra=extra))
    thread.start()
    thread.join()
    line = driver_log(tmp_path, "abc").read_text()
    assert (json.loads(line)["study"], json.loads(line)["trial"]) == ("abc", 3)
    assert TOKEN not in line
    (tmp_path / "file").write_text("")
    configure_driver("abc", home=tmp_path / "file", format=LogFormat.TEXT)  # costs the log alone


def test_requests_have_ids_and_lines(api: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="service.api.middleware"):
        made = api.post("/v1/studies?space=default", json=definition(), headers={REQUEST_ID: "from-the-caller.1"})
        assert made.headers[REQUEST_ID] == "from-the-caller.1"
        read = api.get("/v1/studies", headers={REQUEST_ID: "has spaces"})
        assert len(read.headers[REQUEST_ID]) == 16
        assert api.get("/nowhere%0aforged").headers[REQUEST_ID] != read.headers[REQUEST_ID]
    lines = [(record.getMessage(), record.about["status"]) for record in caplog.records]  # type: ignore[attr-defined]
    assert lines == [("POST /v1/studies", 201), (r"GET /nowhere\nforged", 404)]


def test_a_line_that_repeats_is_counted() -> None:
    now, written = [0.0], list[logging.LogRecord]()
    repeats = Repeats(written.append, every_s=30, clock=lambda: now[0])
    error = OSError(24, "Too many open files")
    assert repeats.filter(_record("no connection", error=error))
    assert [repeats.filter(_record("no connection", error=error)) for _ in range(5)] == [False] * 5
    assert repeats.filter(_record("no connection"))  # another line: it has no traceback
    assert repeats.filter(_record("study %s failed", "abc"))
    assert repeats.filter(_record("study %s failed", "def"))
    assert written == []
    now[0] = 31.0
    assert repeats.filter(_record("idle"))
    [record] = written
    assert "no connection [repeated=5]" in TextFormatter().format(record)
    assert json.loads(JsonFormatter().format(record))["repeated"] == 5
    assert repeats.filter(_record("no connection", error=error))
    assert len(written) == 1


def test_repeated_lines_leave_the_log_as_it_was(tmp_path: Path, root: logging.Logger) -> None:
    path = tmp_path / "service.log"
    configure(path, format=LogFormat.TEXT, console=False)
    root.warning("what mattered")
    for _ in range(2000):
        root.error("socket.accept() out of system resource")
    assert len(path.read_text().splitlines()) == 2
