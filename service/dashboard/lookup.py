"""What an address names, and sums that only pages show."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine, func, select

from search import run_log
from service.database import queries
from service.database.engine import reading
from service.database.errors import TrialNotFoundError
from service.database.models import Run, Search
from service.models import RunView, SearchView, StudyView
from tasks.engine.folders import inside


def find_search(engine: Engine, study: str, label: str) -> tuple[StudyView, SearchView]:
    """A study by id or name, and its search with this label.

    Raises:
        StudyNotFoundError: no study has this id or name.
        TrialNotFoundError: it has no search with this label.
    """
    view = queries.get_study_view(engine, study)
    for search in view.searches:
        if search.label == label:
            return view, search
    labels = ", ".join(search.label for search in view.searches)
    raise TrialNotFoundError(f"study '{view.name}' has no search {label!r}.", hint=f"Its searches are {labels}.")


def readable_logs(engine: Engine, storage: str, runs: Sequence[RunView]) -> dict[int, list[int]]:
    """By the id of each run, its attempts whose log there is, and the one that goes on."""
    found = {}
    for run in runs:
        place = queries.run_place(engine, run.id)
        attempts = run_log.logged_attempts(inside(storage, place.folder))
        found[run.id] = sorted({*attempts, *([place.going_on] if place.going_on else [])})
    return found


def gpu_seconds(engine: Engine, study_ids: Sequence[str]) -> dict[str, float]:
    """Seconds of GPU that all runs of each study took."""
    query = (
        select(Search.study_id, func.sum(Run.gpu_s))
        .join(Run, Run.search_id == Search.id)
        .where(Search.study_id.in_(study_ids))
        .group_by(Search.study_id)
    )
    with reading(engine) as session:
        found = {study_id: total for study_id, total in session.execute(query)}
    return {study_id: found.get(study_id) or 0.0 for study_id in study_ids}
