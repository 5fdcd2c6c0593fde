"""Working on the studies for a while: submit what is new, go on with what is paused, watch, and pause in time."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import func, not_, select

from admeta.client import TERMINAL_STATES, Client
from admeta.client.errors import ClientError
from admeta.client.models import StudyView
from benchmarks.reproduction.installation import Installation
from service.database.engine import make_engine, reading
from service.database.lease import lease_is_free
from service.database.models import Study
from tasks.engine.device import source_commit

PAUSE_TIMEOUT_S = 45.0
SAY_EVERY_S = 20.0
SESSIONS = "sessions.jsonl"

IsOver = Callable[[Sequence[StudyView]], bool]


def work(
    home: Path,
    definitions: Sequence[dict[str, Any]],
    *,
    data: Path | None,
    is_over: IsOver,
    commit: str | None = None,
) -> list[StudyView]:
    """Work on the studies until all have ended or `is_over`; how they stand then.

    Args:
        definitions: what to submit, unless the database has a study of that name.
        is_over: asked every second with how the studies stand; once true they are paused.
        commit: of the source, where it is no checkout; recorded.
    """
    begin, started = time.monotonic(), datetime.now(UTC)
    with Installation(home, data=data) as service, service.client as client:
        _say(begin, f"the service answers; {len(definitions)} studies")
        for definition in definitions:
            _say(begin, f"{definition['name']}: {_begin_or_go_on(client, definition)}")
        names = [definition["name"] for definition in definitions]
        views = _watch(client, names, home=home, begin=begin, is_over=is_over)
        views = _pause(client, views, home=home, begin=begin)
        _say(begin, "stopping the service")
    _note(home, started=started, commit=commit)
    _say(begin, "stopped: " + ", ".join(f"{view.name} {view.state}" for view in views))
    return views


def database_url(home: Path) -> str:
    """Where the service on this home has its database."""
    return f"sqlite:///{home.absolute() / 'admeta.sqlite3'}"


def sessions(home: Path) -> list[dict[str, Any]]:
    """The calls of `work` on this home, oldest first: begin, end, cards, cores, host."""
    file = home / SESSIONS
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def _begin_or_go_on(client: Client, definition: dict[str, Any]) -> str:
    try:
        view = client.study(definition["name"])
    except ClientError as error:
        if error.status != 404:
            raise
        client.submit(definition)
        return "submitted"
    if view.state != "PAUSED":
        return f"is {view.state}"
    client.resume(view.id)
    return "goes on"


def _watch(client: Client, names: Sequence[str], *, home: Path, begin: float, is_over: IsOver) -> list[StudyView]:
    said_at = 0.0
    while True:
        views = [client.study(name) for name in names]
        for view in views:
            if view.state in TERMINAL_STATES:
                drop_checkpoints(home, view)
        if all(view.state in TERMINAL_STATES for view in views):
            return views
        over = is_over(views)
        if over or time.monotonic() - said_at > SAY_EVERY_S:
            said_at = time.monotonic()
            for view in views:
                if view.state == "RUNNING":
                    _say(begin, progress(view))
        if over:
            return views
        time.sleep(1.0)


def drop_checkpoints(home: Path, view: StudyView) -> None:
    """Remove the weights that an ended study left: none of these studies starts from another's, and disks are small."""
    for checkpoint in (home / "checkpoints" / view.id).rglob("*.pt"):
        checkpoint.unlink(missing_ok=True)


def progress(view: StudyView) -> str:
    """How far a study is, in a line."""
    ended = sum(search.n_complete + search.n_pruned + search.n_failed for search in view.searches)
    confirmed = sum(search.n_confirm_finished for search in view.searches)
    n_confirm = sum(search.n_confirm_runs for search in view.searches)
    running = sum(search.n_running for search in view.searches)
    n_trials = sum(search.n_trials for search in view.searches)
    return f"{view.name}: {ended}/{n_trials} trials, {confirmed}/{n_confirm} confirm runs, {running} running"


def _pause(client: Client, views: Sequence[StudyView], *, home: Path, begin: float) -> list[StudyView]:
    """Pause what has not ended, and wait until the drivers have let go: by then every run has left its checkpoint."""
    for view in views:
        if view.state not in TERMINAL_STATES:
            try:
                client.pause(view.id)
            except ClientError as error:
                if error.status != 409:  # it has ended meanwhile
                    raise
    engine = make_engine(database_url(home))
    deadline = time.monotonic() + PAUSE_TIMEOUT_S
    held = select(func.count()).where(Study.id.in_([view.id for view in views]), not_(lease_is_free(engine)))
    try:
        while time.monotonic() < deadline:
            with reading(engine) as session:
                if session.execute(held).scalar_one() == 0:
                    break
            time.sleep(0.3)
        else:
            _say(begin, f"after {PAUSE_TIMEOUT_S:.0f} s runs are still at work: they go on from an older checkpoint")
    finally:
        engine.dispose()
    return [client.study(view.id) for view in views]


def _note(home: Path, *, started: datetime, commit: str | None) -> None:
    with (home / SESSIONS).open("a") as file:
        line = {
            "started_at": started.isoformat(),
            "finished_at": datetime.now(UTC).isoformat(),
            "cards": _cards(),
            "cpus": os.cpu_count(),
            "host": platform.node(),
            "commit": commit or source_commit(),
        }
        file.write(json.dumps(line) + "\n")


def _cards() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.splitlines()
    return []


def _say(begin: float, text: str) -> None:
    print(f"[{time.monotonic() - begin:5.0f} s] {text}", flush=True)
