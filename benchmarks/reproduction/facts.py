"""What the report tells of each study, by the queries that the service's pages and REST answer from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from admeta.client.models import ComparisonView, ProfilesView, StudyRunView, StudyView
from benchmarks.reproduction.work import database_url
from search.definition import StudyDefinition
from service.database import queries
from service.database.engine import make_engine, reading
from service.database.errors import NoProfileError
from service.database.models import Attempt, Run, Search
from service.database.queries import Axis, Curves, RunChoice, study_curves


@dataclass(frozen=True, kw_only=True)
class StudyFacts:
    """One study.

    Attributes:
        runs: all of them, with their attempts.
        environments: what each attempt recorded of its machine.
    """

    view: StudyView
    definition: StudyDefinition
    comparison: ComparisonView
    curves: Curves
    runs: list[StudyRunView] = field(repr=False)
    environments: list[dict[str, Any]] = field(repr=False)

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def gpu_s(self) -> float:
        """Card seconds, a packed run charged its share."""
        return sum(run.gpu_s for run in self.runs)

    @property
    def train_s(self) -> float:
        return sum(run.train_s for run in self.runs)

    @property
    def is_search(self) -> bool:
        """Whether settings were searched, not only given."""
        return self.definition.budget.trials_per_optimizer > 1

    def span(self) -> tuple[datetime, datetime] | None:
        """When the first attempt began and the last one ended."""
        attempts = [attempt for run in self.runs for attempt in run.attempts]
        ends = [attempt.finished_at for attempt in attempts if attempt.finished_at is not None]
        return (min(attempt.started_at for attempt in attempts), max(ends)) if ends else None


def gather(home: Path) -> list[StudyFacts]:
    """Every study of the home's database that has a finished run, by priority."""
    engine = make_engine(database_url(home))
    try:
        names = [view.name for view in queries.list_studies(engine, limit=100).items]
        found = [_facts(engine, name) for name in names]
    finally:
        engine.dispose()
    told = [study for study in found if any(run.finished_at for run in study.runs)]
    return sorted(told, key=lambda study: (-study.definition.priority, study.name))


def across(home: Path, names: Sequence[str]) -> ProfilesView | None:
    """The optimizers over these completed studies, as `admeta profile`; None where they have none in common."""
    engine = make_engine(database_url(home))
    try:
        return queries.profiles(engine, queries.Choice(studies=names)) if names else None
    except NoProfileError:
        return None
    finally:
        engine.dispose()


def _facts(engine: Engine, name: str) -> StudyFacts:
    view = queries.get_study_view(engine, name)
    comparison = queries.comparison(engine, name)
    return StudyFacts(
        view=view,
        definition=StudyDefinition.model_validate(view.definition),
        comparison=comparison,
        curves=study_curves(engine, view, comparison, runs=RunChoice.BEST, axis=Axis.EPOCH, metric=None),
        runs=list(_runs(engine, name)),
        environments=_environments(engine, view.id),
    )


def _runs(engine: Engine, name: str) -> Iterator[StudyRunView]:
    cursor = None
    while True:
        page = queries.list_runs(engine, name, limit=200, cursor=cursor)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


def _environments(engine: Engine, study_id: str) -> list[dict[str, Any]]:
    query = (
        select(Attempt.environment)
        .join(Run, Run.id == Attempt.run_id)
        .join(Search, Search.id == Run.search_id)
        .where(Search.study_id == study_id)
        .order_by(Attempt.run_id, Attempt.attempt)
    )
    with reading(engine) as session:
        return [environment for environment in session.execute(query).scalars() if environment is not None]
