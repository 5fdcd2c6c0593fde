"""A study's progress: a live table with a bar for each optimizer; plain lines where the output is not a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from admeta.client.errors import ClientError
from admeta.client.formatting import duration, number, rough_duration
from admeta.client.models import SearchView, StudyView
from admeta.client.terminal.tables.studies import trials_used
from admeta.client.text import printable

_BAR_WIDTH = 24
_WIDE = 110
_REFRESHES_PER_S = 4


class Display(Protocol):
    """Where progress is shown."""

    def show(self, study: StudyView) -> None:
        """Show the study, which has changed."""

    def away(self, error: ClientError) -> None:
        """Show that the service does not answer."""


@contextmanager
def shown(console: Console | None = None) -> Iterator[Display]:
    """A display that lasts as long as the block; by default on stderr, so that stdout has only results."""
    console = console or Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield _Lines(console)
        return
    picture = _Picture(time.time)
    with Live(picture, console=console, refresh_per_second=_REFRESHES_PER_S):
        yield picture


class _Picture:
    """A line about the study, then a table with a bar for every optimizer. Redrawn while the study runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._study: StudyView | None = None
        self._away = ""

    def show(self, study: StudyView) -> None:
        self._study, self._away = study, ""

    def away(self, error: ClientError) -> None:
        self._away = printable(f"waiting for the service: {error.detail}")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._study is not None:
            table = _table(self._study) if options.max_width >= _WIDE else _narrow_table(self._study)
            yield Group(_headline(self._study, self._clock()), table)
        if self._away:
            yield Text(self._away, style="yellow")


class _Lines:
    """A line whenever the study or an optimizer's search has changed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, str] = {}

    def show(self, study: StudyView) -> None:
        because = f": {printable(study.reason)}" if study.reason else ""
        self._tell("", f"study {study.name} is {study.state}{because}")
        if phase := starting(study):
            self._tell("phase", phase)
        if study.remaining_s is not None and "left" not in self._shown:
            self._tell("left", f"about {rough_duration(study.remaining_s)} left")
        for search in study.searches:
            self._tell(search.label, f"{search.label:>12}  {_told(search)}")

    def away(self, error: ClientError) -> None:
        self._print(printable(f"waiting for the service: {error.detail}"))

    def _tell(self, key: str, text: str) -> None:
        if self._shown.get(key) != text:
            self._shown[key] = text
            self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _headline(study: StudyView, now: float) -> Text:
    where = f"{study.task}, {study.model}" if study.model else study.task
    text = Text(f"study {study.name} ({where}) is {study.state}", style="bold")
    if study.started_at is not None:
        elapsed_s = study.elapsed_s(datetime.fromtimestamp(now, UTC))
        text.append(f"  {duration(elapsed_s)}", style="not bold")
        if study.remaining_s is not None:
            text.append(f", about {rough_duration(study.remaining_s)} left", style="not bold")
    if because := printable(study.reason or "") or starting(study):
        text.append(f"\n{because}", style="not bold")
    return text


def starting(study: StudyView) -> str:
    """How far a study is that has no result yet, in words; empty where it has one, ends, or tells a reason itself."""
    n_ended = sum(search.n_finished for search in study.searches)
    if study.reason or n_ended:
        return ""
    if study.state == "QUEUED":
        return "waiting for Ray to start, or for other studies to end"
    n_running = sum(search.n_running for search in study.searches)
    if study.state != "RUNNING" or not n_running:
        return ""
    return f"{n_running} first trial{'s' if n_running > 1 else ''} in training; none has ended"


def _table(study: StudyView) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("optimizer", no_wrap=True)
    table.add_column("", width=_BAR_WIDTH)
    for column in ("trials", "running", "pruned", "failed", f"best {study.metric}", "confirm"):
        table.add_column(column, justify="right", no_wrap=True)
    for search in study.searches:
        confirm = f"{search.n_confirm_finished}/{search.n_confirm_runs}" if search.n_confirm_runs else ""
        table.add_row(
            search.label,
            _bar(search),
            trials_used(search).replace(", ", "\n"),
            str(search.n_running or ""),
            str(search.n_pruned or ""),
            str(search.n_failed or ""),
            number(search.best_value),
            confirm,
        )
    return table


def _narrow_table(study: StudyView) -> Table:
    """What matters most, for 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(width=_BAR_WIDTH // 2)
    table.add_column(overflow="fold")
    for search in study.searches:
        table.add_row(search.label, _bar(search, width=_BAR_WIDTH // 2), _told(search, n_running=search.n_running))
    return table


def _bar(search: SearchView, *, width: int = _BAR_WIDTH) -> ProgressBar:
    return ProgressBar(total=max(_total(search), 1), completed=max(_done(search), search.stage == "done"), width=width)


def _total(search: SearchView) -> int:
    """All runs of a search; a budget in hours may end it with fewer."""
    if search.stage == "done":
        return _done(search)
    return search.n_trials + search.n_confirm_runs + search.n_sensitivity_runs


def _done(search: SearchView) -> int:
    return search.n_finished + search.n_confirm_finished + search.n_sensitivity_finished


def _told(search: SearchView, *, n_running: int = 0) -> str:
    used = trials_used(search)
    parts = [used if "trials" in used else f"{used} trials"]
    if n_running:
        parts.append(f"{n_running} running")
    if search.n_pruned:
        parts.append(f"{search.n_pruned} pruned")
    if search.n_failed:
        parts.append(f"{search.n_failed} failed")
    parts.append(f"best {number(search.best_value)}")
    if search.n_confirm_runs and search.stage != "search":
        parts.append(f"confirm {search.n_confirm_finished}/{search.n_confirm_runs}")
    if search.n_sensitivity_runs:
        parts.append(f"sensitivity {search.n_sensitivity_finished}/{search.n_sensitivity_runs}")
    return " · ".join(parts)
