"""What a driver asks about other studies: the best settings of earlier ones, and who shares the cluster now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from search.definition import Objective, StudyDefinition
from search.records import Rival
from search.states import RunState, Stage, StudyState
from service.database.models import Run, Search, Study


def best_settings(
    session: Session, optimizer: str, *, task: str, objective: Objective, studies: Sequence[str] | None, limit: int
) -> list[dict[str, Any]]:
    """See `search.store.Store.best_settings`."""
    order = Run.value.desc() if objective.direction.is_maximize else Run.value.asc()
    query = (
        select(Run.params, Search.fixed)
        .join(Search, Search.id == Run.search_id)
        .join(Study, Study.id == Search.study_id)
        .where(
            Study.task == task,
            Study.metric == objective.metric,
            Study.direction == objective.direction,
            Study.state.in_([state for state in StudyState if state.is_terminal]),
            Search.optimizer == optimizer,
            Run.stage == Stage.SEARCH,
            Run.state == RunState.COMPLETE,
            Run.value.is_not(None),
        )
        .order_by(order, Run.id)
    )
    if studies is not None:
        query = query.where(Study.name.in_(studies))
    best: list[dict[str, Any]] = []
    for params, fixed in session.execute(query).yield_per(100):
        settings = {**fixed, **params}
        if settings not in best:
            best.append(settings)
        if len(best) == limit:
            break
    return best


def at_work(study_id: str, lease_is_free: ColumnElement[bool]) -> Select[Study, int, float]:
    """The other studies that a driver works on, with their unfinished runs and the GPU seconds they used."""
    unfinished = func.count(Run.id).filter(Run.state.in_((RunState.WAITING, RunState.RUNNING)))
    return (
        select(Study, unfinished, func.coalesce(func.sum(Run.gpu_s), 0.0))
        .join(Search, Search.study_id == Study.id)
        .outerjoin(Run, Run.search_id == Search.id)
        .where(Study.id != study_id, Study.state == StudyState.RUNNING, ~lease_is_free)
        .group_by(Study.id)
    )


def rival(definition: StudyDefinition, *, n_runs: int, gpu_s: float) -> Rival:
    """The study as the others on the cluster see it."""
    resources = definition.resources
    gpus = (1.0 if gpu_s > 0 else 0.0) if resources.gpus == "auto" else resources.gpus
    return Rival(priority=definition.priority, n_runs=n_runs, cpus=resources.cpus, gpus=gpus)
