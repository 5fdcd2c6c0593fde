"""What an address names, and sums that only pages show."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine, func, select

from service.database import queries
from service.database.engine import reading
from service.database.errors import TrialNotFoundError
from service.database.models import Run, Search
from service.models import SearchView, StudyView


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
