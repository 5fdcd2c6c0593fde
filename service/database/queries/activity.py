"""What goes on now: runs with a living attempt, and studies that wait for their turn."""

from __future__ import annotations

from sqlalchemy import Engine, select

from search.states import AttemptState, StudyState
from service.database.engine import reading
from service.database.models import RUN_IS_UNFINISHED, Attempt, Run, Search, Study
from service.models import ActiveRunView, QueuedStudyView


def active_runs(engine: Engine, *, limit: int = 500) -> list[ActiveRunView]:
    """Runs that train, with the node and device of their attempt; the latest first."""
    query = (
        select(Run, Attempt, Search.label, Study.name)
        .join(Attempt, (Attempt.run_id == Run.id) & (Attempt.attempt == Run.attempt))
        .join(Search, Search.id == Run.search_id)
        .join(Study, Study.id == Search.study_id)
        .where(RUN_IS_UNFINISHED, Attempt.state == AttemptState.RUNNING)
        .order_by(Attempt.started_at.desc(), Run.id)
        .limit(limit)
    )
    with reading(engine) as session:
        return [
            ActiveRunView(
                run=run.id,
                study=study,
                label=label,
                trial=run.trial_number,
                stage=run.stage,
                seed=run.seed,
                node=attempt.node,
                device=attempt.device,
                started_at=attempt.started_at,
            )
            for run, attempt, label, study in session.execute(query)
        ]


def queued_studies(engine: Engine, *, limit: int = 100) -> list[QueuedStudyView]:
    """QUEUED studies in the order in which they will start."""
    query = (
        select(Study.id, Study.name, Study.priority, Study.created_at)
        .where(Study.state == StudyState.QUEUED)
        .order_by(Study.priority.desc(), Study.created_at, Study.id)
        .limit(limit)
    )
    with reading(engine) as session:
        return [QueuedStudyView.model_validate(row._asdict()) for row in session.execute(query)]
