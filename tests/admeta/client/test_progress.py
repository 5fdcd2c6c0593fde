"""A study's progress: lines, the live table, and a service that goes away."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console

from admeta.client import ClientError
from admeta.client.models import SearchView, StudyView
from admeta.client.terminal.progress import shown


def search(**changes: Any) -> SearchView:
    values = {
        "label": "admetar", "optimizer": "admetar", "optuna_study": "s/admetar", "stage": "search", "n_trials": 4,
        "n_waiting": 0, "n_running": 1, "n_complete": 0, "n_pruned": 0, "n_failed": 0, "n_confirm_runs": 3,
        "n_confirm_finished": 0, "best_value": None, "best_trial": None, "best_params": None,
    }  # fmt: skip
    return SearchView(**{**values, **changes})


def study(state: str, *searches: SearchView, started_at: datetime | None = None) -> StudyView:
    return StudyView(
        id="0", name="s", task="digits", model="mlp", state=state, reason=None, metric="val_accuracy",
        direction="maximize", priority=0, created_at=datetime.now(UTC), started_at=started_at, finished_at=None,
        searches=list(searches),
    )  # fmt: skip


AWAY = ClientError("no service answers.", hint="h", status=None, error="unreachable")
STORY = [
    study("QUEUED", search()),
    study("RUNNING", search(n_complete=1, best_value=0.9)),
    study("RUNNING", search(n_complete=1, best_value=0.9)),
    study("RUNNING", search(n_complete=2, n_pruned=1, n_failed=1, best_value=0.95, stage="confirm")),
    AWAY,
    study(
        "COMPLETED", search(n_complete=2, n_pruned=1, n_failed=1, best_value=0.95, stage="done", n_confirm_finished=3)
    ),
]


def told(*chapters: StudyView | ClientError, terminal: bool = False, width: int = 120) -> str:
    text = io.StringIO()
    with shown(Console(file=text, force_terminal=terminal, width=width, highlight=False)) as display:
        for chapter in chapters:
            if isinstance(chapter, ClientError):
                display.away(chapter)
            else:
                display.show(chapter)
    return text.getvalue()


def test_a_budget_in_epochs_or_gpu_hours_is_told_as_such() -> None:
    spent = {"n_trials": 9, "n_complete": 2, "n_pruned": 1, "n_epochs": 90, "gpu_hours": 0.5}
    line = told(study("RUNNING", search(**spent, max_epochs=400))).splitlines()[-1]
    assert "3 trials, 90/400 epochs · 1 pruned" in line
    line = told(study("RUNNING", search(**spent, max_gpu_hours=2.0))).splitlines()[-1]
    assert "3 trials, 0.5/2 GPU hours · 1 pruned" in line
    both = search(**{**spent, "n_epochs": 12_345}, max_epochs=40_000, max_gpu_hours=2.5)
    table = told(study("RUNNING", both), terminal=True, width=110)
    for whole in ("admetar", "3 trials", "12345/40000 epochs", "0.5/2.5 GPU hours", "best val_accuracy"):
        assert whole in table


def test_lines_where_there_is_no_terminal() -> None:
    assert told(*STORY).splitlines() == [
        "study s is QUEUED",
        "waiting for Ray to start, or for other studies to end",
        "     admetar  0/4 trials · best –",
        "study s is RUNNING",
        "     admetar  1/4 trials · best 0.9",
        "     admetar  4/4 trials · 1 pruned · 1 failed · best 0.95 · confirm 0/3",
        "waiting for the service: no service answers.",
        "study s is COMPLETED",
        "     admetar  4/4 trials · 1 pruned · 1 failed · best 0.95 · confirm 3/3",
    ]


def test_the_phases_of_a_start() -> None:
    """What the service says before the first epoch, then how many trials train."""
    none = {"n_running": 0}
    starts = study("RUNNING", search(**none)).model_copy(update={"reason": "starts its first workers"})
    chapters = [
        study("QUEUED", search(**none)),
        starts,
        study("RUNNING", search(n_running=2)),
        study("RUNNING", search(n_running=2)).model_copy(update={"remaining_s": 65.0}),
        study("RUNNING", search(n_running=2, n_failed=1)).model_copy(update={"remaining_s": 60.0}),
    ]
    assert [line for line in told(*chapters).splitlines() if line[0] != " "] == [
        "study s is QUEUED",
        "waiting for Ray to start, or for other studies to end",
        "study s is RUNNING: starts its first workers",
        "study s is RUNNING",
        "2 first trials in training; none has ended",
        "about 1 min left",
    ]
    assert "starts its first workers" in told(starts, terminal=True, width=80)


def test_a_live_table_on_a_terminal() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    running = study("RUNNING", search(n_complete=1, n_pruned=1, best_value=0.9), started_at=start)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told(running, AWAY, terminal=True))
    last = text[text.rindex("study s") :]
    assert "study s (digits, mlp) is RUNNING" in last
    assert re.search(r"admetar +━+.* 2/4 +1 +1 +0\.9 +0/3", last)
    assert "waiting for the service" in last


def test_a_narrow_terminal_shows_all_that_matters() -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told(STORY[3], terminal=True, width=80))  # type: ignore[arg-type]
    assert re.search(r"admetar +━+.* 4/4 trials · 1 running · 1 pruned · 1 failed · best 0\.95", text)
    assert "0/3" in text


def test_the_time_left_is_the_services() -> None:
    start = datetime.now(UTC) - timedelta(minutes=10)
    running = study("RUNNING", search(n_complete=2, n_running=2, n_confirm_runs=2), started_at=start)
    for width in (80, 120):
        left = running.model_copy(update={"remaining_s": 1200.0})
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told(left, terminal=True, width=width))
        assert "10:00, about 20 min left" in text
        assert re.search("2 running" if width == 80 else r"2/4 +2 ", text)
    assert "left" not in told(running, terminal=True)


def test_what_a_study_waits_for_is_told() -> None:
    waiting = study("RUNNING", search()).model_copy(update={"reason": "waits for a machine with 4 GPUs"})
    assert told(waiting).splitlines()[0] == "study s is RUNNING: waits for a machine with 4 GPUs"
    assert "waits for a machine with 4 GPUs" in told(waiting, terminal=True, width=80)


def test_bars_are_full_when_a_search_is_done() -> None:
    done = search(n_complete=3, stage="done", n_confirm_runs=0)  # the budget in hours ended it before its last trial
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told(study("COMPLETED", done), terminal=True))
    assert "━" * 24 in text
