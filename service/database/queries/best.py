"""The best settings known for a task and an optimizer, over all studies that measured the same thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Engine, Row, Select, case, func, select
from sqlalchemy.orm import Session

import tasks.registry
from search.states import Direction, RunState, Stage
from service.database.engine import reading
from service.database.models import RUN_CONFIRMS, Run, Search, Study
from service.database.queries.evidence import Evidence, test_metric, weigh
from service.database.queries.winners import best_run_id, better_first
from service.database.retry import REQUEST, retried
from service.models import BestView

Filters = list[ColumnElement[bool]]
if TYPE_CHECKING:
    Found = Row[Run, Search, Study]  # not subscriptable so at run time before SQLAlchemy 2.1


@retried(REQUEST)
def best(
    engine: Engine,
    *,
    task: str,
    optimizer: str,
    model: str | None = None,
    metric: str | None = None,
) -> BestView | None:
    """The settings with the best validation result; None where no trial is complete.

    Studies that train fresh weights come before those that start from trained ones, whose results are others'.
    Confirmed settings come before any single run, however good: a single run was selected for being lucky. Among the
    confirmed, those all of whose seeds succeeded come first, then the mean over the seeds decides.

    Args:
        task: a registered task.
        optimizer: the optimizer's name, whatever label a study gave it.
        model: only studies of this model.
        metric: only studies with this objective; the task's default where None.

    Raises:
        UnknownTaskError: the task is not registered.
    """
    info = tasks.registry.get(task)
    metric = metric or info.default_metric
    direction = info.metrics.get(metric, Direction.MAXIMIZE)
    of_interest = [
        Study.task == task,
        Study.metric == metric,
        Study.direction == direction,
        Search.optimizer == optimizer,
    ]
    if model is not None:
        of_interest.append(Study.model == model)
    with reading(engine) as session:
        fresh = [*of_interest, Study.origin.is_(None)]
        found = _best(session, fresh, direction) or _best(session, of_interest, direction)
        if found is None:
            return None
        run, search, study = found
        confirm_runs = session.execute(
            select(Run).where(
                Run.search_id == search.id, Run.trial_number == run.trial_number, Run.stage == Stage.CONFIRM
            )
        ).scalars()
        evidence = weigh(run, list(confirm_runs), metric=metric)
    return view_of(study, search, evidence)


def _best(session: Session, of_interest: Filters, direction: str) -> Found | None:
    return _best_confirmed(session, of_interest, direction) or _best_single(session, of_interest, direction)


def _best_confirmed(session: Session, of_interest: Filters, direction: str) -> Found | None:
    """A trial some of whose seeds still run is not confirmed yet."""
    complete = case((Run.state == RunState.COMPLETE, Run.value))
    failed = case((Run.state == RunState.FAIL, 1), else_=0)
    unfinished = case((Run.state.in_((RunState.WAITING, RunState.RUNNING)), 1), else_=0)
    trial = session.execute(
        select(Run.search_id, Run.trial_number)
        .join(Search, Search.id == Run.search_id)
        .join(Study, Study.id == Search.study_id)
        .where(RUN_CONFIRMS, *of_interest)
        .group_by(Run.search_id, Run.trial_number)
        .having(func.count(complete) > 0, func.sum(unfinished) == 0)
        .order_by(func.sum(failed) > 0, better_first(func.avg(complete), direction), func.min(Run.id))
        .limit(1)
    ).one_or_none()
    if trial is None:
        return None
    search_id, number = trial
    query = _found().where(Run.search_id == search_id, Run.trial_number == number, Run.stage == Stage.SEARCH)
    return session.execute(query).one_or_none()


def _best_single(session: Session, of_interest: Filters, direction: str) -> Found | None:
    winners = (
        select(best_run_id().label("run_id"))
        .select_from(Search)
        .join(Study, Study.id == Search.study_id)
        .where(*of_interest)
        .subquery()
    )
    query = _found().join(winners, winners.c.run_id == Run.id)
    query = query.order_by(better_first(Run.value.expression, direction), Run.id).limit(1)
    return session.execute(query).one_or_none()


def _found() -> Select[Run, Search, Study]:
    return select(Run, Search, Study).join(Search, Search.id == Run.search_id).join(Study, Study.id == Search.study_id)


def view_of(study: Study, search: Search, evidence: Evidence) -> BestView:
    """A result as it is answered."""
    return BestView(
        task=study.task,
        model=study.model,
        optimizer=search.optimizer,
        metric=study.metric,
        direction=study.direction,
        settings={**search.fixed, **evidence.run.params},
        search_value=evidence.run.value,
        validation=evidence.validation,
        test=evidence.test,
        test_metric=test_metric(study.metric),
        study=study.name,
        label=search.label,
        trial=evidence.run.trial_number,
        evidence="confirmed" if evidence.confirmed else "single run",
        init_from=study.origin,
    )
