"""Trials with their runs: single with the curve, and in pages.

A trial is its run of stage search; its confirm runs hang on it by trial number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal, TypeVarTuple

from sqlalchemy import ColumnElement, Engine, Select, and_, or_, select
from sqlalchemy.orm import Session

from search.analysis.checks import finite_or_none
from search.states import Direction, RunState, Stage
from service.database.engine import reading
from service.database.errors import TrialNotFoundError
from service.database.lookup import find_study
from service.database.models import RUN_CONFIRMS, Attempt, CurvePoint, Run, Search, Study
from service.database.queries.paging import decode_cursor, encode_cursor
from service.database.queries.winners import better_first
from service.database.retry import REQUEST, retried
from service.models import AttemptView, Page, PointView, RunView, TrialView

Ts = TypeVarTuple("Ts")
TrialOrder = Literal["number", "best"]
Trial = tuple[Run, Search]


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
        order: "number": by search, then trial number; "best": best validation value first, those without last.
        limit: trials on a page.
        cursor: `next_cursor` of the page before, of a list with the same filters and order.

    Raises:
        StudyNotFoundError: no study has this id or name.
        TrialNotFoundError: the study has no search with this label.
        InvalidCursorError: the cursor is not one of this list.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        searches = _searches(session, row) if label is None else [find_search(session, row, label)]
        wanted = [Run.stage == Stage.SEARCH] + ([] if state is None else [Run.state == state])
        if order == "number":
            found = _by_number(session, searches, wanted, limit=limit + 1, cursor=cursor)
        else:
            found = _by_value(session, searches, wanted, limit=limit + 1, cursor=cursor, direction=row.direction)
        page = found[:limit]
        runs = _runs_of(session, page)
    return Page(
        items=[_view(trial, runs[_key(trial[0])]) for trial in page],
        next_cursor=_cursor_after(page[-1], order) if len(found) > limit else None,
    )


@retried(REQUEST)
def get_trial(engine: Engine, study: str, label: str, number: int) -> TrialView:
    """One trial with its runs and the curve of its search run.

    Raises:
        StudyNotFoundError: no study has this id or name.
        TrialNotFoundError: it has no such search, or the search no such trial.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        search = find_search(session, row, label)
        run = session.execute(
            select(Run).where(Run.search_id == search.id, Run.trial_number == number, Run.stage == Stage.SEARCH)
        ).scalar_one_or_none()
        if run is None:
            raise TrialNotFoundError(
                f"search '{label}' of study '{row.name}' has no trial {number}.",
                hint=f"GET /v1/studies/{row.name}/trials?label={label} lists its trials.",
            )
        runs = _runs_of(session, [(run, search)])
        curve = curve_of(session, run.id)
    return _view((run, search), runs[_key(run)]).model_copy(update={"curve": curve})


@retried(REQUEST)
def get_curve(engine: Engine, study: str, run_id: int) -> list[PointView]:
    """The curve of one run, of either stage.

    Raises:
        StudyNotFoundError: no study has this id or name.
        TrialNotFoundError: it has no such run.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        query = select(Run.id).join(Search, Search.id == Run.search_id)
        if session.execute(query.where(Run.id == run_id, Search.study_id == row.id)).scalar_one_or_none() is None:
            raise TrialNotFoundError(
                f"study '{row.name}' has no run {run_id}.",
                hint=f"GET /v1/studies/{row.name}/trials lists trials with their runs.",
            )
        return curve_of(session, run_id)


def find_search(session: Session, study: Study, label: str) -> Search:
    """The study's search with this label.

    Raises:
        TrialNotFoundError: it has none.
    """
    by_label = {search.label: search for search in _searches(session, study)}
    if label not in by_label:
        raise TrialNotFoundError(
            f"study '{study.name}' has no search {label!r}.", hint=f"Its searches are {', '.join(by_label)}."
        )
    return by_label[label]


def _searches(session: Session, study: Study) -> Sequence[Search]:
    query = select(Search).where(Search.study_id == study.id).order_by(Search.position)
    return session.execute(query).scalars().all()


def _by_number(
    session: Session, searches: Sequence[Search], wanted: list[ColumnElement[bool]], *, limit: int, cursor: str | None
) -> list[Trial]:
    """Search after search, each along its index: over all of them at once, each page would sort the whole study."""
    position, number = (-1, -1) if cursor is None else decode_cursor(cursor, int, int)
    found: list[Trial] = []
    for search in searches:
        if search.position < position or len(found) == limit:
            continue
        query = select(Run).where(Run.search_id == search.id, *wanted)
        if search.position == position:
            query = query.where(Run.trial_number > number)
        query = query.order_by(Run.trial_number).limit(limit - len(found))
        found += [(run, search) for run in session.execute(query).scalars()]
    return found


def _by_value(
    session: Session,
    searches: Sequence[Search],
    wanted: list[ColumnElement[bool]],
    *,
    limit: int,
    cursor: str | None,
    direction: str,
) -> list[Trial]:
    by_id = {search.id: search for search in searches}
    query = select(Run).where(Run.search_id.in_(by_id), *wanted).limit(limit)
    runs = session.execute(in_order_of_value(query, cursor, direction)).scalars()
    return [(run, by_id[run.search_id]) for run in runs]


def in_order_of_value(query: Select[*Ts], cursor: str | None, direction: str) -> Select[*Ts]:
    """The query over runs, best value first and those without last, after the cursor (value, id)."""
    query = query.order_by(Run.value.is_(None), better_first(Run.value.expression, direction), Run.id)
    if cursor is None:
        return query
    value, last_id = decode_cursor(cursor, (float, int, type(None)), int)
    tail: ColumnElement[bool] = and_(Run.value.is_(None), Run.id > last_id)
    if value is not None:
        worse = Run.value < value if Direction(direction).is_maximize else Run.value > value
        tail = or_(worse, and_(Run.value == value, Run.id > last_id), Run.value.is_(None))
    return query.where(tail)


def _cursor_after(trial: Trial, order: TrialOrder) -> str:
    run, search = trial
    if order == "number":
        return encode_cursor(search.position, run.trial_number)
    return encode_cursor(run.value, run.id)


def _key(run: Run) -> tuple[int, int]:
    return run.search_id, run.trial_number


def _runs_of(session: Session, trials: Sequence[Trial]) -> dict[tuple[int, int], list[RunView]]:
    """The runs of some trials with their attempts, in two queries: the search run first, then confirm runs by seed."""
    runs = {_key(run): [run] for run, _ in trials}
    query = select(Run).where(
        RUN_CONFIRMS,
        Run.search_id.in_({search_id for search_id, _ in runs}),
        Run.trial_number.in_({number for _, number in runs}),
    )
    for run in session.execute(query.order_by(Run.search_id, Run.trial_number, Run.seed)).scalars():
        if _key(run) in runs:
            runs[_key(run)].append(run)
    attempts = attempts_of(session, [run.id for found in runs.values() for run in found])
    return {key: [RunView(**run_fields(run, attempts[run.id])) for run in found] for key, found in runs.items()}


def attempts_of(session: Session, run_ids: Sequence[int]) -> dict[int, list[AttemptView]]:
    """The attempts of some runs, by run, first to last."""
    attempts: dict[int, list[AttemptView]] = defaultdict(list)
    query = select(Attempt).where(Attempt.run_id.in_(run_ids))
    for attempt in session.execute(query.order_by(Attempt.run_id, Attempt.attempt)).scalars():
        attempts[attempt.run_id].append(_attempt_view(attempt))
    return attempts


def environments_of(session: Session, run_id: int) -> dict[int, dict[str, Any] | None]:
    """What each attempt of a run recorded of where and how it ran, by attempt."""
    query = select(Attempt.attempt, Attempt.environment).where(Attempt.run_id == run_id)
    return {attempt: environment for attempt, environment in session.execute(query)}


def curve_of(session: Session, run_id: int) -> list[PointView]:
    """The curve of a run that exists."""
    query = select(CurvePoint).where(CurvePoint.run_id == run_id).order_by(CurvePoint.epoch)
    return [
        PointView(
            epoch=point.epoch,
            step=point.step,
            value=point.value,
            metrics=_finite(point.metrics),
            lr=point.lr,
        )
        for point in session.execute(query).scalars()
    ]


def _view(trial: Trial, runs: list[RunView]) -> TrialView:
    run, search = trial
    return TrialView(
        number=run.trial_number,
        label=search.label,
        optimizer=search.optimizer,
        state=run.state,
        value=run.value,
        params=run.params,
        settings={**search.fixed, **run.params},
        runs=runs,
    )


def run_fields(run: Run, attempts: list[AttemptView]) -> dict[str, Any]:
    """The fields of a `RunView`."""
    return {
        "id": run.id,
        "stage": run.stage,
        "seed": run.seed,
        "state": run.state,
        "value": run.value,
        "test_metrics": _finite(run.test_metrics),
        "failure": run.failure,
        "error": run.error,
        "epoch": run.epoch,
        "step": run.step,
        "train_s": run.train_s,
        "gpu_s": run.gpu_s,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "attempts": attempts,
    }


def _attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        attempt=attempt.attempt,
        state=attempt.state,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        node=attempt.node,
        device=attempt.device,
        resumed_from_epoch=attempt.resumed_from_epoch,
        error=attempt.error,
    )


def _finite(metrics: dict[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in metrics.items()}
