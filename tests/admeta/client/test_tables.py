"""Tables: texts of others shown as they are, and nothing cut off."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from admeta.client.models import StudyRunView
from admeta.client.terminal import FittedTable, console
from admeta.client.terminal.tables.studies import run_list


def test_markup_in_an_error_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    run = StudyRunView(
        id=1, stage="search", seed=0, state="FAIL", value=None, test_metrics={}, failure="error",
        error="Traceback:\nValueError: [/red] [bold] :smile:", epoch=0, step=0, train_s=0, gpu_s=0,
        created_at=datetime.now(UTC), started_at=None, finished_at=None, attempts=[], study="s", label="a",
        optimizer="a", trial=0, settings={},
    )  # fmt: skip
    console().print(run_list([run]))
    assert "error: ValueError: [/red] [bold] :smile:" in capsys.readouterr().out


def _drawn(table: FittedTable, width: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False, markup=False).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_nothing_is_cut_off_however_narrow_the_terminal() -> None:
    table = FittedTable("study", "trials", "settings")
    table.add_row("a-long-name", "16/16", "lr=0.01 lambd=0.2742")
    table.add_row("other", "", "lr=0.1")
    assert _drawn(table, 60) == [
        "study        trials  settings",
        "a-long-name  16/16   lr=0.01 lambd=0.2742",
        "other                lr=0.1",
    ]
    assert _drawn(table, 35) == [
        "study        trials  settings",
        "a-long-name  16/16   lr=0.01",
        "                     lambd=0.2742",
        "other                lr=0.1",
    ]
    assert _drawn(table, 25) == [
        "study     a-long-name",
        "trials    16/16",
        "settings  lr=0.01",
        "          lambd=0.2742",
        "",
        "study     other",
        "settings  lr=0.1",
    ]
    with pytest.raises(ValueError, match="2 cells for 3 columns"):
        table.add_row("a", "b")
