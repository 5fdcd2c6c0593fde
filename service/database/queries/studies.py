"""Studies with their progress: single, and in pages, newest first.

Progress takes two queries, whatever the number of studies. They read columns and not objects, and what no longer
changes is remembered: a page of studies has hundreds of searches, most of them of studies that ended long ago.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError
from sqlalchemy import Engine, Select, Text, bindparam, distinct, exists, func, or_, select, type_coerce
from sqlalchemy.orm import Session, aliased, defer
from sqlalchemy.pool import Pool

from admeta.client.models import Page, SearchView, StudyView
from search.advice import warnings_for
from search.definition import StudyDefinition
from search.states import FINISHED_STATES, FailureKind, RunState, Stage, StudyState
from service.database.engine import reading
from service.database.models import Run, Search, Study
from service.database.queries.best import best_run_id
from service.database.queries.lookup import decode_cursor, encode_cursor, find_study, has_tag
from service.database.retry import REQUEST, retried

MAX_ENDED = 2000


@retried(REQUEST)
def get_study_view(engine: Engine, study: str) -> StudyView:
    """A study by id or name, with its definition.

    Raises:
        StudyNotFoundError: no study has this id or name.
    """
    with reading(engine) as session:
        return study_view(session, find_study(session, study))


def study_view(session: Session, row: Study) -> StudyView:
    """The study as a single read gives it."""
    warnings = [*_warnings(json.dumps(row.definition)), *_absent_studies(session, row)]
    return StudyView(**row.columns(), searches=search_views(session, [row])[row.id], warnings=warnings)


def _absent_studies(session: Session, row: Study) -> Iterator[str]:
    """The studies of a warm start that do not exist, before it has been read: a name that is misspelt takes nothing."""
    named = set((row.definition.get("warm_start") or {}).get("studies") or ())
    if not named or row.state is not StudyState.QUEUED:
        return
    known = set(session.execute(select(Study.name).where(Study.name.in_(named))).scalars())
    if absent := sorted(named - known):
        listed = ", ".join(f"'{name}'" for name in absent)
        yield (
            f"warm_start: studies names {listed}, and no study has that name: nothing is taken over from it. Cancel "
            "this one and submit it with names that `admeta list` shows, or let that study end before this one begins."
        )


@lru_cache(maxsize=1000)  # a study that is watched is read every second, and this is most of the work
def _warnings(definition: str) -> tuple[str, ...]:
    try:
        return tuple(warnings_for(StudyDefinition.model_validate_json(definition)))
    except ValidationError:  # of another version, or a task that is no longer installed: there is no advice
        return ()


@retried(REQUEST)
def list_studies(
    engine: Engine,
    *,
    state: StudyState | None = None,
    task: str | None = None,
    optimizer: str | None = None,
    name: str | None = None,
    tag: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[StudyView]:
    """A page of studies, newest first, without their definitions.

    Args:
        state: only studies in this state.
        task: only studies of this task.
        optimizer: only studies that search this optimizer.
        name: only studies whose name contains this; case does not matter.
        tag: only studies with this tag.
        limit: studies on a page.
        cursor: `next_cursor` of the page before.

    Raises:
        InvalidCursorError: the cursor is not one of this list.
    """
    query = select(Study).options(*(defer(one, raiseload=True) for one in (Study.definition, Study.extensions)))
    query = query.order_by(Study.created_at.desc(), Study.id.desc()).limit(limit + 1)
    if state is not None:
        query = query.where(Study.state == state)
    if task is not None:
        query = query.where(Study.task == task)
    if optimizer is not None:
        query = query.where(exists().where(Search.study_id == Study.id, Search.optimizer == optimizer))
    if name is not None:
        query = query.where(Study.name.icontains(name, autoescape=True))
    if tag is not None:
        query = query.where(has_tag(tag))
    if cursor is not None:
        microseconds, last_id = decode_cursor(cursor, int, str)
        time = _time(microseconds)
        query = query.where(Study.created_at <= time, or_(Study.created_at < time, Study.id < last_id))
    with reading(engine) as session:
        rows = session.execute(query).scalars().all()
        page = rows[:limit]
        searches = search_views(session, page)
    last = page[-1] if len(rows) > limit else None
    return Page(
        items=[StudyView(**row.columns(), searches=searches[row.id]) for row in page],
        next_cursor=None if last is None else encode_cursor(_microseconds(last.created_at), last.id),
    )


def gpu_seconds(engine: Engine, study_ids: Sequence[str]) -> dict[str, float]:
    """GPU seconds of all runs of each study."""
    query = select(Search.study_id, func.sum(Run.gpu_s)).join(Run, Run.search_id == Search.id)
    query = query.where(Search.study_id.in_(study_ids)).group_by(Search.study_id)
    with reading(engine) as session:
        found = {study_id: total for study_id, total in session.execute(query)}
    return {study_id: found.get(study_id) or 0.0 for study_id in study_ids}


def study_names(engine: Engine, study_ids: Sequence[str]) -> dict[str, str]:
    """By id, the names of those of the studies that exist."""
    with reading(engine) as session:
        rows = session.execute(select(Study.id, Study.name).where(Study.id.in_(study_ids)).order_by(Study.name))
        return {study_id: name for study_id, name in rows}


def _microseconds(time: datetime) -> int:
    return int(time.timestamp()) * 1_000_000 + time.microsecond


def _time(microseconds: int) -> datetime:
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(min(max(seconds, 0), 2**33), UTC).replace(microsecond=rest)


def search_views(session: Session, studies: Sequence[Study]) -> dict[str, list[SearchView]]:
    """By study, its searches in their order."""
    ended = _ended_by_pool.setdefault(session.get_bind().engine.pool, _Ended())
    views = {row.id: ended.get(row.id, row.finished_at) for row in studies}
    read = _read(session, [row for row in studies if views[row.id] is None])
    for row in studies:
        if row.id in read and row.state.is_terminal and not any(v.n_waiting + v.n_running for v in read[row.id]):
            ended.put(row.id, row.finished_at, read[row.id])
    return {study_id: read[study_id] if known is None else known for study_id, known in views.items()}


class _Ended:
    """Searches of studies that have ended and have no unfinished run; the latest `MAX_ENDED` read.

    They are known by the study's end, which is another one after the study was extended.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, datetime | None], list[SearchView]] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, study_id: str, finished_at: datetime | None) -> list[SearchView] | None:
        with self._changing:
            found = self._known.get((study_id, finished_at))
            if found is not None:
                self._known.move_to_end((study_id, finished_at))
            return found

    def put(self, study_id: str, finished_at: datetime | None, views: list[SearchView]) -> None:
        with self._changing:
            self._known[study_id, finished_at] = views
            if len(self._known) > MAX_ENDED:
                self._known.popitem(last=False)


_ended_by_pool: WeakKeyDictionary[Pool, _Ended] = WeakKeyDictionary()
"""Those of each database, as long as its connections live."""


def _read(session: Session, studies: Sequence[Study]) -> dict[str, list[SearchView]]:
    by_id = {row.id: row for row in studies}
    views: dict[str, list[SearchView]] = {study_id: [] for study_id in by_id}
    if not by_id:
        return views
    found = session.execute(_searches(), {"studies": list(by_id)}).all()
    counted = session.execute(_counts(), {"searches": [search.id for search in found]})
    counts = {row.search_id: row._asdict() for row in counted}
    budgets = _cost_budgets(session, by_id)
    for search in found:
        study = by_id[search.study_id]
        known = {**_NO_RUNS, **search._asdict(), **counts.get(search.id, {})}
        # An extension may choose other trials: the runs of the earlier choice are kept.
        known["n_confirm_runs"] = max(known["n_confirm_runs"], known["n_confirm_created"])
        known["n_trials"] += min(known["n_lost"], known["n_trials"]) + known["n_replaced"]  # as `search.loop` does
        if known["n_trials"] > 1 and study.id in budgets:  # one trial: a baseline's, or a space of one configuration
            known |= budgets[study.id]
            known["n_trials"] = _expected_trials(known, ended=study.state.is_terminal)
        views[study.id].append(SearchView(**known, stage=_stage(known, study.state)))
    return views


def _cost_budgets(session: Session, study_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """By study, what each of its searches may cost, where that is what the budget counts, by the names of the view."""
    definitions = session.execute(select(Study.id, Study.definition).where(Study.id.in_(study_ids)))
    budgets = {study_id: definition.get("budget") or {} for study_id, definition in definitions}
    return {
        study_id: {"max_epochs": of.get("epochs_per_optimizer"), "max_gpu_hours": of.get("gpu_hours_per_optimizer")}
        for study_id, of in budgets.items()
        if of.get("trials_per_optimizer") is None
        and (of.get("epochs_per_optimizer") or of.get("gpu_hours_per_optimizer"))
    }


def _expected_trials(known: Mapping[str, Any], *, ended: bool) -> int:
    """Trials that a budget in epochs or GPU hours will have paid for, if further ones cost what the ended ones did."""
    n_finished = known["n_complete"] + known["n_pruned"] + known["n_failed"]
    n_open = known["n_waiting"] + known["n_running"]
    if ended or known["n_confirm_created"]:
        return int(n_finished)
    limits = ((known["n_epochs"], known["max_epochs"]), (known["gpu_hours"], known["max_gpu_hours"]))
    share = max(spent / limit for spent, limit in limits if limit is not None)
    at_least = max(1, n_finished + n_open + (share < 1))
    expected = math.ceil(n_finished / min(share, 1.0)) if share else 0
    return int(min(max(at_least, expected), known["n_trials"]))


def _stage(known: dict[str, Any], state: StudyState) -> str:
    n_finished = known["n_complete"] + known["n_pruned"] + known["n_failed"]
    searched = n_finished >= known["n_trials"] or known["n_confirm_created"] > 0
    confirmed = searched and known["n_confirm_finished"] >= known["n_confirm_runs"]
    varied = confirmed and known["n_sensitivity_finished"] >= known["n_sensitivity_runs"]
    if varied or state is StudyState.COMPLETED:  # a budget in hours may end it with fewer runs
        return "done"
    if state.is_terminal:
        return "stopped"
    return "sensitivity" if confirmed else "confirm" if searched else "search"


@cache  # building it costs more than reading a study's searches
def _searches() -> Select[*tuple[Any, ...]]:
    best = aliased(Run)
    return (
        select(
            *(Search.id, Search.study_id, Search.label, Search.optimizer, Search.n_trials, Search.n_confirm_runs),
            Search.optuna_name.label("optuna_study"),
            best.value.label("best_value"),
            best.trial_number.label("best_trial"),
            best.params.label("best_params"),
        )
        .join(Search.study)
        .outerjoin(best, best.id == best_run_id())
        .where(Search.study_id.in_(bindparam("studies", expanding=True)))
        .order_by(Search.study_id, Search.position)
    )


_COUNTED = {
    "n_waiting": RunState.WAITING,
    "n_running": RunState.RUNNING,
    "n_complete": RunState.COMPLETE,
    "n_pruned": RunState.PRUNED,
    "n_failed": RunState.FAIL,
}
_FOLLOWED = "n_confirm_finished", "n_sensitivity_runs", "n_sensitivity_finished"
_NO_RUNS = dict.fromkeys(
    [*_COUNTED, "n_lost", "n_replaced", "n_confirm_created", *_FOLLOWED, "n_taken", "n_epochs", "gpu_hours"], 0
)


@cache
def _counts() -> Select[*tuple[Any, ...]]:
    """Of each search its trials by state, and the runs that follow."""
    n_trials = [
        func.count().filter(Run.stage == Stage.SEARCH, Run.state == state).label(name)
        for name, state in _COUNTED.items()
    ]
    failed = (Run.stage == Stage.SEARCH) & (Run.state == RunState.FAIL)
    lost = failed & Run.failure.in_([kind for kind in FailureKind if kind.is_lost])
    n_lost = func.count(distinct(Run.params)).filter(lost).label("n_lost")
    n_replaced = func.count().filter(failed & (Run.failure == FailureKind.REPLACED)).label("n_replaced")
    confirms = Run.stage == Stage.CONFIRM
    created = func.count().filter(confirms).label("n_confirm_created")
    finished = func.count().filter(confirms, Run.state.in_(FINISHED_STATES)).label("n_confirm_finished")
    searched = (Run.stage == Stage.SEARCH) & (Run.attempt > 0)  # as `search.spending` counts what is spent
    n_epochs = func.coalesce(func.sum(Run.n_epochs).filter(searched), 0).label("n_epochs")
    gpu_hours = (func.coalesce(func.sum(Run.gpu_s).filter(searched), 0.0) / 3600).label("gpu_hours")
    varies, is_finished = Run.stage == Stage.SENSITIVITY, Run.state.in_(FINISHED_STATES)
    varied = (
        func.count().filter(varies).label("n_sensitivity_runs"),
        func.count().filter(varies, is_finished).label("n_sensitivity_finished"),
    )
    is_taken = (Run.stage == Stage.SEARCH) & (type_coerce(Run.taken_from, Text) != "[]")
    n_taken = func.count().filter(is_taken).label("n_taken")
    chosen = Run.search_id.in_(bindparam("searches", expanding=True))
    columns = (*n_trials, n_lost, n_replaced, created, finished, *varied, n_taken, n_epochs, gpu_hours)
    return select(Run.search_id, *columns).where(chosen).group_by(Run.search_id)
