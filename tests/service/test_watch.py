"""Following a study: lines and bars, and a service that goes away."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from rich.console import Console

from service.client import AdmetaClient, ClientError
from service.models import SearchView, StudyView
from service.watch import follow


def search(**changes: Any) -> SearchView:
    values = {
        "label": "admetar", "optimizer": "admetar", "optuna_study": "s/admetar", "stage": "search", "n_trials": 4,
        "n_waiting": 0, "n_running": 1, "n_complete": 0, "n_pruned": 0, "n_failed": 0, "n_confirm_runs": 3,
        "n_confirm_finished": 0, "best_value": None, "best_trial": None, "best_params": None,
    }  # fmt: skip
    return SearchView(**{**values, **changes})


def study(state: str, *searches: SearchView) -> StudyView:
    return StudyView(
        id="0", name="s", task="digits", model=None, state=state, reason=None, metric="val_accuracy",
        direction="maximize", priority=0, created_at=datetime.now(UTC), started_at=None, finished_at=None,
        searches=list(searches),
    )  # fmt: skip


STORY = [
    study("QUEUED", search()),
    study("RUNNING", search(n_complete=1, best_value=0.9)),
    study("RUNNING", search(n_complete=1, best_value=0.9)),
    study("RUNNING", search(n_complete=2, n_pruned=1, n_failed=1, best_value=0.95, stage="confirm")),
    study(
        "COMPLETED", search(n_complete=2, n_pruned=1, n_failed=1, best_value=0.95, stage="done", n_confirm_finished=3)
    ),
]


class Story:
    """A client that tells a story, errors included."""

    def __init__(self, *chapters: StudyView | ClientError) -> None:
        self._chapters: Iterator[StudyView | ClientError] = iter(chapters)

    def study(self, _name: str) -> StudyView:
        chapter = next(self._chapters)
        if isinstance(chapter, ClientError):
            raise chapter
        return chapter


def told(*chapters: StudyView | ClientError, terminal: bool = False) -> tuple[StudyView, str]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, highlight=False)
    end = follow(cast(AdmetaClient, Story(*chapters)), "s", console=console, poll_s=0)
    return end, text.getvalue()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.watch.time.sleep", lambda _: None)


def test_lines_where_there_is_no_terminal() -> None:
    end, text = told(*STORY)
    assert end.state == "COMPLETED"
    assert text.splitlines() == [
        "   admetar  0/4 trials · best –",
        "   admetar  1/4 trials · best 0.9",
        "   admetar  4/4 trials · 1 pruned · 1 failed · best 0.95 · confirm 0/3",
        "   admetar  4/4 trials · 1 pruned · 1 failed · best 0.95 · confirm 3/3",
    ]


def test_bars_on_a_terminal() -> None:
    _, text = told(*STORY, terminal=True)
    assert "admetar" in text
    assert "confirm 3/3" in text


def test_a_service_that_comes_back_is_waited_for() -> None:
    away = ClientError("no service answers.", hint="h", status=None, error="unreachable")
    end, text = told(STORY[0], away, away, STORY[-1])
    assert end.state == "COMPLETED"
    assert text.count("waiting for the service") == 1


def test_an_unknown_study_is_not() -> None:
    with pytest.raises(ClientError):
        told(ClientError("unknown", hint="h", status=404, error="study_not_found"))
