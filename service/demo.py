"""`admeta demo`: runs the whole product on one machine, through the client.

Starts the service with everything embedded (SQLite, local Ray), submits a study over HTTP, follows it, and reads the
comparison and the best settings back over HTTP. Takes no settings from the environment.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from admeta.client import TERMINAL_STATES, Client, formatting, studyfile, terminal
from admeta.client.errors import ClientError
from admeta.client.models import StudyView
from admeta.client.terminal.progress import shown
from admeta.client.terminal.tables import comparisons
from service import server, settings

DEFAULT_STUDY = Path(__file__).resolve().parent.parent / "studies" / "digits.yaml"
INTERRUPTED = 130
CLOSING_S = 20.0
TIMEOUT_S = 300.0
"""For the answer to one request: the study's runs use the same machine, which may be small."""
_POLL_S = 0.5
FAILED = 1


def run(*, home: Path, study_file: Path | None = None, console: Console | None = None) -> int:
    """Run the demo; returns the exit code.

    Args:
        home: folder for all that is written.
        study_file: the study to run; default: `studies/digits.yaml` of the project.
        console: where to write.

    Raises:
        ServiceError: the file cannot be read, the service does not start, or it refuses the study.
    """
    console = console or terminal.console()
    definition = studyfile.load(study_file or DEFAULT_STUDY)
    place = settings.load({}, home=home, port=0)
    started = time.monotonic()
    _say(console, "Starting the service: REST, SQLite and a local Ray, all on this machine …")
    try:
        with _terminable(), server.running(place) as url, Client(url, timeout_s=TIMEOUT_S) as client:
            _say(console, f"It answers at {url} (interactive documentation at {url}/docs).")
            study = _follow(client, _submit(client, definition, console), console)
            _report(client, study, console)
    except KeyboardInterrupt:
        _say(console, "Stopped.")
        return INTERRUPTED
    _say(console, f"\nDone in {time.monotonic() - started:.0f} s. All files are in {place.home}.")
    _say(console, f"To see it again: admeta serve --home {home}, then admeta compare {study.name}")
    return 0 if study.state == "COMPLETED" else FAILED


def _follow(client: Client, study: StudyView, console: Console) -> StudyView:
    try:
        with shown(console) as display:
            return client.wait(study.name, poll_s=_POLL_S, on_update=display.show, on_absence=display.away)
    except KeyboardInterrupt:
        _say(console, f"\nInterrupted: cancelling study {study.name} and stopping.")
        _cancel(client, study)
        raise


def _submit(client: Client, definition: dict[str, Any], console: Console) -> StudyView:
    """A new study under the first free name: digits, digits-2, …; or the last one, where it was interrupted."""
    wanted = str(definition.get("name", ""))
    n, latest = 1, None
    while (found := _find(client, _numbered(wanted, n))) is not None:
        n, latest = n + 1, found
    if latest is not None and latest.state not in TERMINAL_STATES:
        _say(console, f"Study {latest.name} was interrupted earlier and continues.")
        return latest
    study = client.submit({**definition, "name": _numbered(wanted, n)}).study
    labels = ", ".join(search.label for search in study.searches)
    _say(console, f"Submitted study {study.name}: {study.task}, {study.model}; {labels}.\n")
    return study


def _find(client: Client, name: str) -> StudyView | None:
    if not re.fullmatch(r"[\w.-]+", name):
        return None  # the service says what a name must be
    try:
        return client.study(name)
    except ClientError as error:
        if error.status == 404:
            return None
        raise


def _numbered(name: str, n: int) -> str:
    return name if n == 1 else f"{name}-{n}"


def _report(client: Client, study: StudyView, console: Console) -> None:
    if study.state != "COMPLETED":
        _say(console, f"\nStudy {study.name} is {study.state}: {study.reason or 'no reason is recorded'}.")
    view = client.comparison(study.name)
    _say(
        console, f"\nComparison by {view.metric}: selected on validation, test only reported; mean ± std over seeds.\n"
    )
    console.print(comparisons.optimizers(view))
    if view.pairs:
        console.print()
        console.print(comparisons.pairs(view))
    _say(console, f"\nBest settings known, as GET /v1/best?task={study.task}&optimizer=… answers:\n")
    for optimizer in dict.fromkeys(search.optimizer for search in study.searches):
        try:
            best = client.best(task=study.task, optimizer=optimizer, model=study.model, metric=study.metric)
        except ClientError as error:
            if error.error != "no_result":
                raise
            _say(console, f"  {optimizer:<10} {error.detail}")
            continue
        _say(console, f"  {optimizer:<10} {formatting.settings(best.chosen)}")
        _say(console, f"  {'':<10} {best.evidence}, study {best.study}, trial {best.trial}")


def _cancel(client: Client, study: StudyView) -> None:
    """Cancel, and give the driver time to close the running trials, so that none stays RUNNING."""
    try:
        study = client.cancel(study.id)
    except ClientError as error:
        if error.status != 409:  # it ended in the meantime
            raise
    deadline = time.monotonic() + CLOSING_S
    while any(search.n_running + search.n_waiting for search in study.searches) and time.monotonic() < deadline:
        time.sleep(0.2)
        study = client.study(study.id)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
