"""How far the searches of some studies are: two queries, whatever their number.

Reads columns and not objects, and remembers what no longer changes: a page of studies has hundreds of searches, most of
them of studies that ended long ago.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Row, Select, bindparam, func, select
from sqlalchemy.orm import Session, aliased
from sqlalchemy.pool import Pool

from search.states import RunState, Stage
from service.database.models import Run, Search, Study
from service.database.queries.winners import best_run_id
from service.models import SearchView

MAX_SETTLED = 2000
_FINISHED = tuple(state for state in RunState if state.is_finished)


def search_views(session: Session, studies: Sequence[Study]) -> dict[str, list[SearchView]]:
    """By study, its searches in their order."""
    settled = _settled_of(session.get_bind().engine.pool)
    views = {row.id: settled.get(row.id) for row in studies}
    read = _read(session, [row for row in studies if views[row.id] is None])
    for row in studies:
        if row.id in read and row.state.is_terminal and not any(v.n_waiting + v.n_running for v in read[row.id]):
            settled.put(row.id, read[row.id])
    return {study_id: read[study_id] if known is None else known for study_id, known in views.items()}


class _Settled:
    """Searches of studies that have ended and left nothing open, whose numbers stay; the latest `MAX_SETTLED` read."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, list[SearchView]] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, study_id: str) -> list[SearchView] | None:
        with self._changing:
            found = self._known.get(study_id)
            if found is not None:
                self._known.move_to_end(study_id)
            return found

    def put(self, study_id: str, views: list[SearchView]) -> None:
        with self._changing:
            self._known[study_id] = views
            if len(self._known) > MAX_SETTLED:
                self._known.popitem(last=False)


_by_pool: WeakKeyDictionary[Pool, _Settled] = WeakKeyDictionary()


def _settled_of(pool: Pool) -> _Settled:
    """Those of one database: as long as its connections live."""
    return _by_pool.setdefault(pool, _Settled())


def _read(session: Session, studies: Sequence[Study]) -> dict[str, list[SearchView]]:
    if not studies:
        return {}
    by_id = {row.id: row for row in studies}
    found = session.execute(_searches(), {"studies": list(by_id)}).all()
    counted = session.execute(_counts(), {"searches": [search.id for search in found]})
    counts = {row.search_id: row for row in counted}
    views: dict[str, list[SearchView]] = {study_id: [] for study_id in by_id}
    for search in found:
        views[search.study_id].append(_view(by_id[search.study_id], search, counts.get(search.id)))
    return views


@cache  # building it costs more than reading a study's searches
def _searches() -> Select[*tuple[Any, ...]]:
    best = aliased(Run)
    return (
        select(
            Search.id,
            Search.study_id,
            Search.label,
            Search.optimizer,
            Search.optuna_name,
            Search.n_trials,
            Search.n_confirm_runs,
            best.value,
            best.trial_number,
            best.params,
        )
        .join(Study, Study.id == Search.study_id)
        .outerjoin(best, best.id == best_run_id())
        .where(Search.study_id.in_(bindparam("studies", expanding=True)))
        .order_by(Search.study_id, Search.position)
    )


@cache
def _counts() -> Select[*tuple[Any, ...]]:
    """Search, trials by state in the enum's order, confirm runs, finished confirm runs."""
    by_state = [func.count().filter(Run.stage == Stage.SEARCH, Run.state == state) for state in RunState]
    confirms = Run.stage == Stage.CONFIRM
    columns = (*by_state, func.count().filter(confirms), func.count().filter(confirms, Run.state.in_(_FINISHED)))
    chosen = Run.search_id.in_(bindparam("searches", expanding=True))
    return select(Run.search_id, *columns).where(chosen).group_by(Run.search_id)


def _view(study: Study, search: Row[*tuple[Any, ...]], counted: Row[*tuple[Any, ...]] | None) -> SearchView:
    waiting, running, complete, pruned, failed, n_confirm, n_confirmed = (0,) * 7 if counted is None else counted[1:]
    n_finished = complete + pruned + failed
    searched = n_finished >= search.n_trials or n_confirm > 0
    done = study.state.is_terminal or (searched and n_confirmed >= search.n_confirm_runs)
    return SearchView(
        label=search.label,
        optimizer=search.optimizer,
        optuna_study=search.optuna_name,
        stage="done" if done else ("confirm" if searched else "search"),
        n_trials=search.n_trials,
        n_waiting=waiting,
        n_running=running,
        n_complete=complete,
        n_pruned=pruned,
        n_failed=failed,
        n_confirm_runs=search.n_confirm_runs,
        n_confirm_finished=n_confirmed,
        best_value=search.value,
        best_trial=search.trial_number,
        best_params=search.params,
    )
