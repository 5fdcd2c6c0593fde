"""Following a study on a terminal: a bar an optimizer, or plain lines where the output is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from service.client import TERMINAL_STATES, AdmetaClient
from service.errors import ClientError
from service.models import SearchView, StudyView
from service.tables import n_finished, number

POLL_S = 0.5
PATIENCE_S = 600.0


def follow(client: AdmetaClient, study: str, *, console: Console, poll_s: float = POLL_S) -> StudyView:
    """Show the study's progress until it has ended; returns it as it then is.

    A service that goes away is waited for, up to ten minutes.

    Raises:
        ClientError: the study is unknown, or the service stays away.
    """
    with _display(console) as display:
        while True:
            view = _patiently(client, study, display)
            display.show(view)
            if view.state in TERMINAL_STATES:
                return view
            time.sleep(poll_s)


class _Display(Protocol):
    def show(self, study: StudyView) -> None: ...

    def note(self, text: str) -> None: ...


@contextmanager
def _display(console: Console) -> Iterator[_Display]:
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(bar_width=28),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield _Bars(progress)


class _Bars:
    """A live bar for every optimizer."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def show(self, study: StudyView) -> None:
        for search in study.searches:
            total = max(search.n_trials + search.n_confirm_runs, 1)
            if search.label not in self._bars:
                self._bars[search.label] = self._progress.add_task(search.label, total=total, text="")
            bar = self._bars[search.label]
            done = total if search.stage == "done" else n_finished(search) + search.n_confirm_finished
            self._progress.update(bar, total=total, completed=done, text=_text(search))

    def note(self, text: str) -> None:
        self._progress.console.print(text)


class _Lines:
    """A line whenever an optimizer's search has moved on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, str] = {}

    def show(self, study: StudyView) -> None:
        for search in study.searches:
            text = _text(search)
            if self._shown.get(search.label) != text:
                self._shown[search.label] = text
                self.note(f"{search.label:>10}  {text}")

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


def _text(search: SearchView) -> str:
    parts = [f"{n_finished(search)}/{search.n_trials} trials"]
    if search.n_pruned:
        parts.append(f"{search.n_pruned} pruned")
    if search.n_failed:
        parts.append(f"{search.n_failed} failed")
    parts.append(f"best {number(search.best_value)}")
    if search.n_confirm_runs and search.stage != "search":
        parts.append(f"confirm {search.n_confirm_finished}/{search.n_confirm_runs}")
    return " · ".join(parts)


def _patiently(client: AdmetaClient, study: str, display: _Display) -> StudyView:
    deadline = time.monotonic() + PATIENCE_S
    told = False
    while True:
        try:
            return client.study(study)
        except ClientError as error:
            passing = error.status is None or error.status >= 500
            if not passing or time.monotonic() > deadline:
                raise
            if not told:
                display.note(f"waiting for the service: {error.detail}")
                told = True
        time.sleep(2.0)
