"""Trials and runs: single with their curves, and in pages.

A trial is its run of stage search; its confirm runs have the same trial number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Engine, Select, and_, case, func, or_, select
from sqlalchemy.orm import Session, contains_eager, joinedload, load_only, selectinload

from admeta.client.models import Page, PointView, StudyRunView, TrialView
from search.records import RunRecord, run_folder
from search.states import AttemptState, Direction, FailureKind, RunState, Stage
from service.database.engine import reading
from service.database.errors import RunNotFoundError, TrialNotFoundError
from service.database.models import Attempt, CurvePoint, Run, Search, Study
from service.database.queries.lookup import better_first, decode_cursor, encode_cursor, find_study, searches_of
from service.database.retry import REQUEST, retried

TrialOrder = Literal["number", "best"]
RunOrder = Literal["id", "best"]


@retried(REQUEST)
def list_trials(
    engine: Engine,
    study: str,
    *,
    label: str | None = None,
    state: RunState | None = None,
    order: TrialOrder = "number",
    limit: int = 50,
    cursor: str | None = None,
) -> Page[TrialView]:
    """A page of a study's trials, without curves.

    Args:
        study: id or name.
        label: only the trials of this search.
        state: only trials in this state.
        order: "number": by search, then trial number; "best": best validation value first, PRUNED and FAIL last.
        limit: trials on a page.
        cursor: `next_cursor` of the page before, of a list with the same filters and order.

    Raises:
        StudyNotFoundError: no study has this id or name.
        TrialNotFoundError: the study has no search with this label.
        InvalidCursorError: the cursor is not one of this list.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        searches = searches_of(session, row, label)
        query = select(Run).where(Run.stage == Stage.SEARCH).options(*_TRIAL)
        if state is not None:
            query = query.where(Run.state == state)
        if order == "number":
            found = _by_number(session, searches, query, limit=limit + 1, cursor=cursor)
        else:
            query = query.where(Run.search_id.in_([search.id for search in searches])).limit(limit + 1)
            found = session.execute(_by_value(query, cursor, row.direction)).scalars().all()
        page = found[:limit]
        items = [TrialView.model_validate(run) for run in page]
    after = None if len(found) <= limit else _cursor(page[-1], order)
    return Page(items=items, next_cursor=after)


@retried(REQUEST)
def get_trial(engine: Engine, study: str, label: str, number: int) -> TrialView:
    """One trial with its runs and the curve of its search run.

    Raises:
        StudyNotFoundError: no study has this id or name.
        TrialNotFoundError: it has no such search, or the search no such trial.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        (search,) = searches_of(session, row, label)
        of_trial = (Run.search_id == search.id, Run.trial_number == number, Run.stage == Stage.SEARCH)
        run = session.execute(select(Run).where(*of_trial).options(*_TRIAL)).scalar_one_or_none()
        if run is None:
            raise TrialNotFoundError(
                f"search '{label}' of study '{row.name}' has no trial {number}.",
                hint=f"GET /v1/studies/{row.name}/trials?label={label} lists its trials.",
            )
        return TrialView.model_validate(run).model_copy(update={"curve": _curve(session, run.id)})


@retried(REQUEST)
def list_runs(
    engine: Engine,
    study: str,
    *,
    label: str | None = None,
    trial: int | None = None,
    stage: Stage | None = None,
    state: RunState | None = None,
    failure: FailureKind | None = None,
    order: RunOrder = "id",
    limit: int = 50,
    cursor: str | None = None,
) -> Page[StudyRunView]:
    """A page of a study's runs, of all stages.

    Args:
        study: id or name.
        label, stage, state, failure: only such runs.
        trial: only runs of trials of this number; with stage "sensitivity", of values of this number.
        order: "id": as they were made; "best": best validation value first, PRUNED and FAIL last.

    Raises:
        StudyNotFoundError: no study has this id or name.
        TrialNotFoundError: the study has no search with this label.
        InvalidCursorError: the cursor is not one of this list.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        searches = searches_of(session, row, label)
        query = select(Run).join(Run.search).where(Search.study_id == row.id).limit(limit + 1)
        query = query.options(contains_eager(Run.search), _ATTEMPTS)
        if label is not None:
            query = query.where(Search.id == searches[0].id)
        wanted = {Run.trial_number: trial, Run.stage: stage, Run.state: state, Run.failure: failure}
        query = query.where(*(column == value for column, value in wanted.items() if value is not None))
        if trial is not None and stage is None:
            query = query.where(Run.stage != Stage.SENSITIVITY)
        if order == "best":
            query = _by_value(query, cursor, row.direction)
        else:
            query = query.order_by(Run.id)
            if cursor is not None:
                query = query.where(Run.id > decode_cursor(cursor, int)[0])
        found = session.execute(query).scalars().all()
        page = found[:limit]
        items = [StudyRunView.model_validate(run) for run in page]
    after = None if len(found) <= limit else _cursor(page[-1], order)
    return Page(items=items, next_cursor=after)


@retried(REQUEST)
def last_failures(engine: Engine, study_id: str) -> dict[str, StudyRunView]:
    """By label, the last failed run of each search's trials."""
    failed = Run.stage == Stage.SEARCH, Run.state == RunState.FAIL
    last = select(func.max(Run.id)).join(Run.search).where(Search.study_id == study_id, *failed).group_by(Run.search_id)
    query = select(Run).where(Run.id.in_(last)).options(_ATTEMPTS, _WITH_STUDY)
    with reading(engine) as session:
        return {run.label: StudyRunView.model_validate(run) for run in session.execute(query).scalars()}


@retried(REQUEST)
def get_run(engine: Engine, run_id: int) -> StudyRunView:
    """One run, with what each of its attempts recorded of where and how it ran.

    Raises:
        RunNotFoundError: no run has this id.
    """
    with reading(engine) as session:
        return StudyRunView.model_validate(_find_run(session, run_id))


@retried(REQUEST)
def get_run_curve(engine: Engine, run_id: int) -> list[PointView]:
    """A run's curve.

    Raises:
        RunNotFoundError: no run has this id.
    """
    with reading(engine) as session:
        _find_run(session, run_id)
        return _curve(session, run_id)


@retried(REQUEST)
def get_curves(engine: Engine, run_ids: Sequence[int]) -> dict[int, list[PointView]]:
    """By run, its evaluations in order; empty for a run that has none."""
    query = select(CurvePoint).where(CurvePoint.run_id.in_(run_ids)).order_by(CurvePoint.run_id, CurvePoint.epoch)
    curves: dict[int, list[PointView]] = {run_id: [] for run_id in run_ids}
    with reading(engine) as session:
        for point in session.execute(query).scalars():
            curves[point.run_id].append(PointView.model_validate(point))
    return curves


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Where a run keeps its files, and how far its attempts are.

    Attributes:
        folder: under the storage.
        n_attempts: 0 before the first has started.
        running: the attempt that runs according to SQL.
    """

    folder: str
    n_attempts: int
    running: int | None


@retried(REQUEST)
def run_files(engine: Engine, run_id: int) -> RunFiles:
    """Where a run keeps its files.

    Raises:
        RunNotFoundError: no run has this id.
    """
    with reading(engine) as session:
        return _files(_find_run(session, run_id))


@retried(REQUEST)
def trial_files(engine: Engine, trial: TrialView) -> dict[int, RunFiles]:
    """By run of the trial, where it keeps its files."""
    with reading(engine) as session:
        runs = session.execute(_WITH_ATTEMPTS.where(Run.id.in_([run.id for run in trial.runs]))).scalars()
        return {run.id: _files(run) for run in runs}


def _files(run: Run) -> RunFiles:
    running = [one.attempt for one in run.attempt_rows if one.state == AttemptState.RUNNING]
    folder = run_folder(run.search.study_id, run.label, run.record(RunRecord))
    return RunFiles(folder=folder, n_attempts=run.attempt, running=max(running, default=None))


_ATTEMPTS = selectinload(Run.attempt_rows).defer(Attempt.environment)
_TRIAL = (_ATTEMPTS, selectinload(Run.confirm_runs).options(_ATTEMPTS))
_WITH_STUDY = joinedload(Run.search).joinedload(Search.study).options(load_only(Study.name))
_WITH_ATTEMPTS = select(Run).options(selectinload(Run.attempt_rows), _WITH_STUDY)


def _find_run(session: Session, run_id: int) -> Run:
    run = session.execute(_WITH_ATTEMPTS.where(Run.id == run_id)).scalar_one_or_none()
    if run is None:
        raise RunNotFoundError(
            f"no run has the id {run_id}.", hint="GET /v1/studies/{study}/runs lists a study's runs with their ids."
        )
    return run


def _curve(session: Session, run_id: int) -> list[PointView]:
    query = select(CurvePoint).where(CurvePoint.run_id == run_id).order_by(CurvePoint.epoch)
    return [PointView.model_validate(point) for point in session.execute(query).scalars()]


def _by_number(
    session: Session, searches: Sequence[Search], query: Select[Run], *, limit: int, cursor: str | None
) -> Sequence[Run]:
    """Search after search, each along its index: over all of them at once, each page would sort the whole study."""
    position, number = (-1, -1) if cursor is None else decode_cursor(cursor, int, int)
    found: list[Run] = []
    for search in searches:
        if search.position < position or len(found) == limit:
            continue
        after = number if search.position == position else -1
        of_search = query.where(Run.search_id == search.id, Run.trial_number > after).order_by(Run.trial_number)
        found += session.execute(of_search.limit(limit - len(found))).scalars()
    return found


_IS_LAST = case((Run.state.in_((RunState.PRUNED, RunState.FAIL)), 1), else_=0)
"""1 for runs whose value does not compare: pruned ones stopped early, failed ones have none or a diverged one."""


def _by_value(query: Select[Run], cursor: str | None, direction: Direction) -> Select[Run]:
    """The query, best value first, then those without one, then PRUNED and FAIL; after the cursor (last, value, id)."""
    query = query.order_by(_IS_LAST, Run.value.is_(None), better_first(Run.value.expression, direction), Run.id)
    if cursor is None:
        return query
    is_last, value, last_id = decode_cursor(cursor, int, (float, int, type(None)), int)
    rest: ColumnElement[bool] = and_(Run.value.is_(None), Run.id > last_id)
    if value is not None:
        worse = Run.value < value if direction.is_maximize else Run.value > value
        rest = or_(worse, and_(Run.value == value, Run.id > last_id), Run.value.is_(None))
    return query.where(or_(is_last < _IS_LAST, and_(is_last == _IS_LAST, rest)))


def _cursor(run: Run, order: TrialOrder | RunOrder) -> str:
    match order:
        case "number":
            return encode_cursor(run.search.position, run.trial_number)
        case "best":
            return encode_cursor(int(run.state in (RunState.PRUNED, RunState.FAIL)), run.value, run.id)
        case "id":
            return encode_cursor(run.id)
