"""Texts of others in our tables: shown as they are."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from service import tables
from service.models import StudyRunView


def test_markup_in_an_error_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    run = StudyRunView(
        id=1, stage="search", seed=0, state="FAIL", value=None, test_metrics={}, failure="error",
        error="Traceback:\nValueError: [/red] [bold] :smile:", epoch=0, step=0, train_s=0, gpu_s=0,
        created_at=datetime.now(UTC), started_at=None, finished_at=None, attempts=[], study="s", label="a",
        optimizer="a", trial=0, settings={},
    )  # fmt: skip
    tables.console().print(tables.run_list([run]))
    assert "error: ValueError: [/red] [bold] :smile:" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (3723, "1:02:03"), (-1, "0:00")])
def test_durations(seconds: float, shown: str) -> None:
    assert tables.duration(seconds) == shown
