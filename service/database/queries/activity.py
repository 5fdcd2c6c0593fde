"""Current activity: runs that train, studies that wait or have a driver, and sums over the whole database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Engine, Select, func, select

from admeta.client.models import ActiveRunView, QueuedStudyView
from search.definition import StudyDefinition
from search.records import CompetingStudy
from search.states import AttemptState, RunState, Stage, StudyState
from service.database.engine import reading
from service.database.lease import lease_is_free
from service.database.models import RUN_IS_UNFINISHED, Attempt, Run, Search, Study


def active_runs(engine: Engine, *, study_id: str | None = None, limit: int = 500) -> list[ActiveRunView]:
    """Runs that train, with the node and device of their attempt; the latest first.

    Args:
        study_id: only those of this study.
    """
    query = (
        select(
            *(Run.id.label("run"), Study.name.label("study"), Search.label, Run.trial_number.label("trial")),
            *(Run.stage, Run.seed, Run.epoch, Attempt.node, Attempt.device, Attempt.started_at),
        )
        .join(Attempt, (Attempt.run_id == Run.id) & (Attempt.attempt == Run.attempt))
        .join(Run.search)
        .join(Search.study)
        .where(RUN_IS_UNFINISHED, Attempt.state == AttemptState.RUNNING)
        .order_by(Attempt.started_at.desc(), Run.id)
        .limit(limit)
    )
    if study_id is not None:
        query = query.where(Study.id == study_id)
    with reading(engine) as session:
        return [ActiveRunView.model_validate(row) for row in session.execute(query)]


def queued_studies(engine: Engine, *, limit: int = 100) -> list[QueuedStudyView]:
    """QUEUED studies in the order in which they will start."""
    query = (
        select(Study.id, Study.name, Study.priority, Study.created_at)
        .where(Study.state == StudyState.QUEUED)
        .order_by(Study.priority.desc(), Study.created_at, Study.id)
        .limit(limit)
    )
    with reading(engine) as session:
        return [QueuedStudyView.model_validate(row) for row in session.execute(query)]


def driven_studies(study_id: str, lease_is_free: ColumnElement[bool]) -> Select[Study, int, float]:
    """The other studies that a driver works on, with their unfinished runs and the GPU seconds they used."""
    unfinished = func.count(Run.id).filter(Run.state.in_((RunState.WAITING, RunState.RUNNING)))
    return (
        select(Study, unfinished, func.coalesce(func.sum(Run.gpu_s), 0.0))
        .join(Search, Search.study_id == Study.id)
        .outerjoin(Run, Run.search_id == Search.id)
        .where(Study.id != study_id, Study.state == StudyState.RUNNING, ~lease_is_free)
        .group_by(Study.id)
    )


def competing_study(definition: StudyDefinition, *, n_runs: int, gpu_s: float) -> CompetingStudy:
    """The study as the others on the cluster see it."""
    resources = definition.resources
    gpus = (1.0 if gpu_s > 0 else 0.0) if resources.gpus == "auto" else resources.gpus
    return CompetingStudy(priority=definition.priority, n_runs=n_runs, cpus=resources.cpus, gpus=gpus)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """How much there is of everything; seconds are of all runs together."""

    studies: Mapping[StudyState, int]
    oldest_queued_s: float
    n_leases_held: int
    n_leases_expired: int
    runs: Mapping[tuple[Stage, RunState], int]
    train_s: Mapping[Stage, float]
    gpu_s: Mapping[Stage, float]


def totals(engine: Engine) -> Totals:
    """The totals as they are now; two passes, one over the studies and one over the runs."""
    is_free = lease_is_free(engine)
    has_lease = Study.lease_owner.is_not(None)
    by_state = select(
        Study.state,
        func.count(),
        func.min(Study.created_at),
        func.count().filter(has_lease, ~is_free),
        func.count().filter(has_lease, is_free),
    ).group_by(Study.state)
    by_run = select(Run.stage, Run.state, func.count(), func.sum(Run.train_s), func.sum(Run.gpu_s))
    with reading(engine) as session:
        studies = session.execute(by_state).all()
        runs = session.execute(by_run.group_by(Run.stage, Run.state)).all()
    train_s, gpu_s = dict.fromkeys(Stage, 0.0), dict.fromkeys(Stage, 0.0)
    for stage, _, _, train, gpu in runs:
        train_s[stage] += train
        gpu_s[stage] += gpu
    queued = [oldest for state, _, oldest, _, _ in studies if state == StudyState.QUEUED]
    return Totals(
        studies={state: n for state, n, *_ in studies},
        oldest_queued_s=max(0.0, (datetime.now(UTC) - queued[0]).total_seconds()) if queued else 0.0,
        n_leases_held=sum(held for *_, held, _ in studies),
        n_leases_expired=sum(expired for *_, expired in studies),
        runs={(stage, state): n for stage, state, n, _, _ in runs},
        train_s=train_s,
        gpu_s=gpu_s,
    )
