"""Runs by themselves: those of a study in pages, and one by its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Engine, Select, select
from sqlalchemy.orm import Session

from search.coordinator import run_folder
from search.records import RunRecord
from search.states import AttemptState, FailureKind, RunState, Stage
from service.database.engine import reading
from service.database.errors import RunNotFoundError
from service.database.lookup import find_study
from service.database.models import Attempt, Run, Search, Study
from service.database.queries.paging import decode_cursor, encode_cursor
from service.database.queries.trials import (
    attempts_of,
    curve_of,
    environments_of,
    find_search,
    in_order_of_value,
    run_fields,
)
from service.database.retry import REQUEST, retried
from service.models import AttemptView, Page, PointView, StudyRunView

RunOrder = Literal["id", "best"]


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """Where a run keeps its files, and how far its attempts are.

    Attributes:
        folder: under the storage.
        n_attempts: 0 before the first has started.
        going_on: the attempt that lives, as far as SQL knows.
    """

    folder: str
    n_attempts: int
    going_on: int | None


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
    """A page of a study's runs, of both stages.

    Args:
        study: id or name.
        label, trial, stage, state, failure: only such runs.
        order: "id": as they were made; "best": best validation value first, those without last.

    Raises:
        StudyNotFoundError: no study has this id or name.
        TrialNotFoundError: the study has no search with this label.
        InvalidCursorError: the cursor is not one of this list.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        query = _runs().where(Search.study_id == row.id).limit(limit + 1)
        if label is not None:
            query = query.where(Search.id == find_search(session, row, label).id)
        wanted = {Run.trial_number: trial, Run.stage: stage, Run.state: state, Run.failure: failure}
        query = query.where(*(column == value for column, value in wanted.items() if value is not None))
        if order == "best":
            query = in_order_of_value(query, cursor, row.direction)
        else:
            query = query.order_by(Run.id)
            if cursor is not None:
                query = query.where(Run.id > decode_cursor(cursor, int)[0])
        found = session.execute(query).all()
        page = found[:limit]
        attempts = attempts_of(session, [run.id for run, _, _ in page])
    last = page[-1][0] if len(found) > limit else None
    after = None if last is None else encode_cursor(*((last.value, last.id) if order == "best" else (last.id,)))
    return Page(items=[_view(run, search, of, attempts[run.id]) for run, search, of in page], next_cursor=after)


@retried(REQUEST)
def get_run(engine: Engine, run_id: int) -> StudyRunView:
    """One run.

    Raises:
        RunNotFoundError: no run has this id.
    """
    with reading(engine) as session:
        run, search, study = _find(session, run_id)
        environments = environments_of(session, run.id)
        attempts = attempts_of(session, [run.id])[run.id]
    described = [one.model_copy(update={"environment": environments.get(one.attempt)}) for one in attempts]
    return _view(run, search, study, described)


@retried(REQUEST)
def get_run_curve(engine: Engine, run_id: int) -> list[PointView]:
    """A run's curve.

    Raises:
        RunNotFoundError: no run has this id.
    """
    with reading(engine) as session:
        _find(session, run_id)
        return curve_of(session, run_id)


@retried(REQUEST)
def run_place(engine: Engine, run_id: int) -> RunPlace:
    """Where a run keeps its files.

    Raises:
        RunNotFoundError: no run has this id.
    """
    with reading(engine) as session:
        run, search, study = _find(session, run_id)
        living = select(Attempt.attempt).where(Attempt.run_id == run.id, Attempt.state == AttemptState.RUNNING)
        going_on = session.execute(living.order_by(Attempt.attempt.desc()).limit(1)).scalar_one_or_none()
    folder = run_folder(study.id, search.label, run.record(RunRecord))
    return RunPlace(folder=folder, n_attempts=run.attempt, going_on=going_on)


def _runs() -> Select[Run, Search, Study]:
    return select(Run, Search, Study).join(Search, Search.id == Run.search_id).join(Study, Study.id == Search.study_id)


def _find(session: Session, run_id: int) -> tuple[Run, Search, Study]:
    found = session.execute(_runs().where(Run.id == run_id)).one_or_none()
    if found is None:
        raise RunNotFoundError(
            f"no run has the id {run_id}.", hint="GET /v1/studies/{study}/runs lists a study's runs with their ids."
        )
    run, search, study = found
    return run, search, study


def _view(run: Run, search: Search, study: Study, attempts: list[AttemptView]) -> StudyRunView:
    return StudyRunView(
        **run_fields(run, attempts),
        study=study.name,
        label=search.label,
        optimizer=search.optimizer,
        trial=run.trial_number,
        settings={**search.fixed, **run.params},
    )
