"""What a database says of every run, to show that a move to another machine loses none and repeats none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from benchmarks.reproduction.work import database_url
from search.states import RunState
from service.database.engine import make_engine, reading
from service.database.models import Attempt, Run, Search, Study

Key = tuple[str, str, int, str, int]
"""Study, label, trial, stage, seed."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How a run stands: its state, its value, how often it was begun, and from which epoch at the latest."""

    state: str
    value: float | None
    n_attempts: int
    resumed_from: int = 0

    @property
    def finished(self) -> bool:
        return RunState(self.state).is_finished


def read(home: Path) -> dict[Key, Entry]:
    """Every run of the home's database."""
    engine = make_engine(database_url(home))
    query = (
        select(Study.name, Search.label, Run, func.count(Attempt.attempt), func.max(Attempt.resumed_from_epoch))
        .join(Search, Search.study_id == Study.id)
        .join(Run, Run.search_id == Search.id)
        .outerjoin(Attempt, Attempt.run_id == Run.id)
        .group_by(Run.id)
    )
    entries: dict[Key, Entry] = {}
    try:
        with reading(engine) as session:
            for study, label, run, n_attempts, resumed_from in session.execute(query):
                key = (study, label, run.trial_number, run.stage.value, run.seed)
                if key in entries:
                    raise AssertionError(f"run {key} is there twice")
                entries[key] = Entry(
                    state=run.state.value, value=run.value, n_attempts=n_attempts, resumed_from=resumed_from or 0
                )
    finally:
        engine.dispose()
    return entries


def faults(before: Mapping[Key, Entry], after: Mapping[Key, Entry]) -> list[str]:
    """What a later reading has lost or done again of an earlier one: a finished run stays exactly as it was."""
    found = [f"{key} is lost" for key in before if key not in after]
    for key, entry in before.items():
        if entry.finished and key in after and after[key] != entry:
            found.append(f"{key} was finished as {entry} and is now {after[key]}")
    return found
