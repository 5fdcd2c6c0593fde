"""The driver's store on SQL, `search.store.Store`. Calls are repeated while the database cannot be used.

A write locks the study's row and checks that the driver still holds the study: one that lost it can write no more.
Every write first checks whether it was made already, so that a call whose answer was lost may be repeated.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from sqlalchemy import CursorResult, Engine, or_, select, update
from sqlalchemy.orm import Session

from admeta.client.text import secrets_in, without_secrets
from search.definition import StudyDefinition
from search.errors import SearchError, StudyNotFoundError
from search.recipe import recipe_of
from search.records import (
    AttemptStart,
    Capacity,
    CardFacts,
    CompetingStudy,
    Lease,
    Point,
    RunOutcome,
    RunRecord,
    SearchRecord,
    StudyRecord,
)
from search.states import AttemptState, FailureKind, RunState, Stage, StudyState
from search.warm_start import EarlierTrial
from service.database import events, retry
from service.database.engine import insert_for, reading, writing
from service.database.events import EventKind
from service.database.lease import (
    add_points,
    close_attempt,
    describe_attempt,
    finish_run,
    lease_end,
    lease_is_free,
    lease_lost,
    leased,
    leased_run,
)
from service.database.models import Attempt, CurvePoint, FactsOfCard, Run, Search, Study
from service.database.optuna_storage import optuna_storage
from service.database.queries.activity import driven_studies
from service.database.queries.earlier import best_settings, earlier_trials
from service.database.queries.lookup import definition_of

if TYPE_CHECKING:
    import optuna

    from search.store import Store

P = ParamSpec("P")
T = TypeVar("T")
_LEASABLE = (StudyState.QUEUED, StudyState.RUNNING, StudyState.PAUSED)


def _retried(method: Callable[Concatenate[SqlStore, P], T]) -> Callable[Concatenate[SqlStore, P], T]:
    """Repeat the method as the store's policy says."""

    @functools.wraps(method)
    def wrapper(self: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return retry.call(lambda: method(self, *args, **kwargs), self.policy)

    return wrapper


class SqlStore:
    """`search.store.Store` on SQLite or PostgreSQL. The tables must exist: see `service.database.schema.prepare`.

    Args:
        engine: made by `service.database.engine.make_engine`.
        policy: how long each call is repeated while the database cannot be used.
        clock: gives the times in rows. Leases use the database's clock, which all hosts share.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        policy: retry.RetryPolicy = retry.DRIVER,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.engine = engine
        self.policy = policy
        self._clock = clock
        self._optuna: optuna.storages.BaseStorage | None = None
        self._definitions: dict[tuple[str, str], StudyDefinition] = {}
        self._labels: dict[int, str] = {}
        self._searches: set[tuple[str, int]] = set()

    def _masked(self, text: str | None) -> str | None:
        """The text of an error without secrets; what a user's own code raises may contain any."""
        if text is None:
            return None
        return without_secrets(text, known=secrets_in({**os.environ, "password": self.engine.url.password or ""}))

    def __repr__(self) -> str:
        return f"SqlStore({self.engine.url.render_as_string(hide_password=True)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SqlStore cannot be pickled: it would carry the password; make one where it is used")

    def optuna_storage(self) -> optuna.storages.BaseStorage:
        """See `Store`; one storage, and one cache of finished trials, for the life of this store."""
        if self._optuna is None:
            self._optuna = optuna_storage(self.engine, self.policy)
        return self._optuna

    @_retried
    def acquire_lease(self, study_id: str, *, owner: str, ttl_s: float) -> Lease | None:
        with writing(self.engine) as session:
            taken = session.execute(
                update(Study)
                .where(
                    Study.id == study_id,
                    Study.state.in_(_LEASABLE),
                    or_(Study.lease_owner == owner, lease_is_free(self.engine)),
                )
                .values(lease_owner=owner, lease_expires_at=lease_end(self.engine, ttl_s))
            )
        return Lease(study_id=study_id, owner=owner, ttl_s=ttl_s) if _n_rows(taken) else None

    @_retried
    def renew_lease(self, lease: Lease) -> StudyState:
        with writing(self.engine) as session:
            kept = session.execute(
                update(Study)
                .where(Study.id == lease.study_id, Study.lease_owner == lease.owner)
                .values(lease_expires_at=lease_end(self.engine, lease.ttl_s))
            )
            if not _n_rows(kept):
                raise lease_lost(lease)
            return session.execute(select(Study.state).where(Study.id == lease.study_id)).scalar_one()

    @_retried
    def release_lease(self, lease: Lease) -> None:
        with writing(self.engine) as session:
            session.execute(
                update(Study)
                .where(Study.id == lease.study_id, Study.lease_owner == lease.owner)
                .values(lease_owner=None, lease_expires_at=None)
            )

    @_retried
    def get_study(self, study_id: str) -> StudyRecord:
        with reading(self.engine) as session:
            row = session.get(Study, study_id)
        if row is None:
            raise StudyNotFoundError(f"no study has the id '{study_id}'")
        return row.record(StudyRecord, definition=self._definition(row))

    @_retried
    def set_study_state(self, lease: Lease, state: StudyState, *, reason: str | None = None) -> StudyState:
        """See `Store`. A driver that starts does not undo a pause: only a QUEUED study is set RUNNING."""
        reason = self._masked(reason)
        with writing(self.engine) as session:
            row = session.get(Study, lease.study_id, with_for_update=True)
            if row is None or row.lease_owner != lease.owner:
                raise lease_lost(lease)
            paused = state == StudyState.RUNNING and row.state == StudyState.PAUSED
            if row.state.is_terminal or (row.state, row.reason) == (state, reason) or paused:
                return row.state
            row.state, row.reason = state, reason
            if state == StudyState.RUNNING and row.started_at is None:
                row.started_at = self._clock()
            if state.is_terminal:
                row.finished_at = self._clock()
            events.record_study(session, EventKind.STUDY_STATE, row)
            return state

    @_retried
    def set_data_fingerprint(self, lease: Lease, fingerprint: str) -> None:
        with writing(self.engine) as session:
            row = session.get(Study, lease.study_id, with_for_update=True)
            if row is None or row.lease_owner != lease.owner:
                raise lease_lost(lease)
            if row.data_fingerprint is None:
                row.data_fingerprint = fingerprint
                row.recipe = recipe_of(self._definition(row), data_fingerprint=fingerprint)

    @_retried
    def best_settings(
        self,
        optimizer: str,
        *,
        like: StudyDefinition,
        data_fingerprint: str | None = None,
        studies: Sequence[str] | None,
        limit: int,
    ) -> list[EarlierTrial]:
        recipes = {recipe_of(like), recipe_of(like, data_fingerprint=data_fingerprint)}
        with reading(self.engine) as session:
            return best_settings(
                session,
                optimizer,
                recipes=recipes,
                direction=like.objective.direction,
                studies=studies,
                limit=limit,
            )

    @_retried
    def card_facts(self, task_shape: str) -> dict[str, CardFacts]:
        with reading(self.engine) as session:
            rows = session.execute(select(FactsOfCard).where(FactsOfCard.task_shape == task_shape)).scalars()
            return {row.card: row.record(CardFacts, totals=_by_number(row.totals)) for row in rows}

    @_retried
    def keep_card_facts(self, lease: Lease, task_shape: str, card: str, facts: CardFacts) -> None:
        with leased(self.engine, lease) as session:
            found = {**vars(facts), "totals": {str(n): total for n, total in facts.totals.items()}}
            row = insert_for(self.engine.dialect.name)(FactsOfCard).values(task_shape=task_shape, card=card, **found)
            session.execute(row.on_conflict_do_update(index_elements=["task_shape", "card"], set_=found))

    @_retried
    def earlier_trials(
        self,
        optimizer: str,
        *,
        like: StudyDefinition,
        data_fingerprint: str | None = None,
        studies: Sequence[str] | None,
    ) -> list[EarlierTrial]:
        recipes = {recipe_of(like), recipe_of(like, data_fingerprint=data_fingerprint)}
        with reading(self.engine) as session:
            return earlier_trials(session, optimizer, like=like, recipes=recipes, studies=studies)

    @_retried
    def set_run_size(self, lease: Lease, each: Capacity) -> None:
        with leased(self.engine, lease) as session:
            size = {"run_cpus": each.cpus, "run_gpus": each.gpus}
            session.execute(update(Study).where(Study.id == lease.study_id).values(**size))

    @_retried
    def competing_studies(self, study_id: str) -> list[CompetingStudy]:
        query = driven_studies(study_id, lease_is_free(self.engine))
        with reading(self.engine) as session:
            return [CompetingStudy(**row._asdict()) for row in session.execute(query)]

    @_retried
    def searches(self, study_id: str) -> list[SearchRecord]:
        query = select(Search).where(Search.study_id == study_id).order_by(Search.position)
        with reading(self.engine) as session:
            return [row.record(SearchRecord) for row in session.execute(query).scalars()]

    @_retried
    def runs(self, study_id: str) -> list[RunRecord]:
        query = select(Run).join(Run.search).where(Search.study_id == study_id).order_by(Run.id)
        with reading(self.engine) as session:
            return [row.record(RunRecord) for row in session.execute(query).scalars()]

    @_retried
    def find_runs(self, study: str, *, label: str, trial_number: int) -> tuple[str, list[RunRecord]] | None:
        query = (
            select(Run, Search.study_id)
            .join(Run.search)
            .join(Search.study)
            .where(or_(Study.id == study, Study.name == study), Search.label == label)
            .where(Run.trial_number == trial_number, Run.stage != Stage.SENSITIVITY)
            .order_by(Run.id)
        )
        with reading(self.engine) as session:
            rows = session.execute(query).all()
        return (rows[0][1], [row.record(RunRecord) for row, _ in rows]) if rows else None

    @_retried
    def points(self, run_id: int) -> list[Point]:
        query = select(CurvePoint).where(CurvePoint.run_id == run_id).order_by(CurvePoint.epoch)
        with reading(self.engine) as session:
            return [row.record(Point) for row in session.execute(query).scalars()]

    @_retried
    def create_run(
        self,
        lease: Lease,
        search_id: int,
        *,
        trial_number: int,
        stage: Stage,
        seed: int,
        params: Mapping[str, Any],
        taken_from: Sequence[Mapping[str, Any]] = (),
    ) -> RunRecord:
        with leased(self.engine, lease) as session:
            self._check_search(session, lease, search_id)
            key = {"search_id": search_id, "trial_number": trial_number, "stage": stage, "seed": seed}
            content = {"params": dict(params), "state": RunState.WAITING, "created_at": self._clock()}
            content["taken_from"] = [dict(one) for one in taken_from]
            insert = insert_for(self.engine.dialect.name)
            new = insert(Run).values(**key, **content).on_conflict_do_nothing().returning(Run)
            row: Run | None = session.execute(new).scalar_one_or_none()
            if row is not None:
                self._record(session, "created", row, lease)
                return row.record(RunRecord)
            row = session.execute(select(Run).filter_by(**key)).scalar_one()
            if row.failure == FailureKind.REPLACED:
                row.state, row.failure, row.error, row.finished_at = RunState.WAITING, None, None, None
                self._record(session, "waiting", row, lease)
            return row.record(RunRecord)

    @_retried
    def start_attempt(self, lease: Lease, run_id: int) -> RunRecord:
        with leased_run(self.engine, lease, run_id) as (session, run):
            if run.state.is_finished:
                return run.record(RunRecord)
            now = self._clock()
            if run.state == RunState.RUNNING:
                attempt = session.get(Attempt, (run_id, run.attempt))
                if attempt is not None and attempt.owner == lease.owner:
                    return run.record(RunRecord)  # the same call was made before, and its answer was lost
                close_attempt(session, run, AttemptState.LOST, error=None, at=now)
            run.attempt += 1
            run.state = RunState.RUNNING
            run.started_at = run.started_at or now
            new = {"owner": lease.owner, "state": AttemptState.RUNNING, "started_at": now}
            session.add(Attempt(run_id=run_id, attempt=run.attempt, **new))
            self._record(session, "started", run, lease)
            return run.record(RunRecord)

    @_retried
    def add_points(
        self, lease: Lease, run_id: int, points: Sequence[Point], *, start: AttemptStart | None = None
    ) -> None:
        with leased_run(self.engine, lease, run_id) as (session, run):
            if start is not None:
                describe_attempt(session, run, start)
            self._add_points(session, run, points, lease)

    @_retried
    def fail_attempt(self, lease: Lease, run_id: int, *, outcome: RunOutcome) -> RunRecord:
        with leased_run(self.engine, lease, run_id) as (session, run):
            if run.state == RunState.RUNNING:
                run.n_failures += 1
                state = AttemptState(outcome.state.value)
                error = self._masked(outcome.error)
                self._end_attempt(session, run, lease, state, error=error, failure=outcome.failure)
            return run.record(RunRecord)

    @_retried
    def interrupt_attempt(self, lease: Lease, run_id: int, *, reason: str) -> RunRecord:
        with leased_run(self.engine, lease, run_id) as (session, run):
            if run.state == RunState.RUNNING:
                self._end_attempt(
                    session, run, lease, AttemptState.INTERRUPTED, error=self._masked(reason), failure=None
                )
            return run.record(RunRecord)

    def _end_attempt(
        self, session: Session, run: Run, lease: Lease, state: AttemptState, *, error: str | None, failure: Any
    ) -> None:
        close_attempt(session, run, state, error=error, at=self._clock())
        run.state = RunState.WAITING
        self._record(session, "waiting", run, lease, error=error, failure=failure)

    @_retried
    def cancelled_runs(self, study_id: str) -> set[int]:
        query = (
            select(Run.id)
            .join(Run.search)
            .where(Search.study_id == study_id, Run.state == RunState.FAIL, Run.failure == FailureKind.CANCELLED)
        )
        with reading(self.engine) as session:
            return set(session.execute(query).scalars())

    @_retried
    def finish_run(
        self,
        lease: Lease,
        run_id: int,
        outcome: RunOutcome,
        *,
        points: Sequence[Point] = (),
        start: AttemptStart | None = None,
    ) -> RunRecord:
        if not outcome.state.is_finished:
            raise ValueError(f"a run cannot finish as {outcome.state}; use COMPLETE, PRUNED or FAIL")
        outcome = replace(outcome, error=self._masked(outcome.error))
        with leased_run(self.engine, lease, run_id) as (session, run):
            if run.state.is_finished:
                return run.record(RunRecord)
            with session.no_autoflush:  # the run's row is written once, at the end
                state, now = AttemptState(outcome.state.value), self._clock()
                close_attempt(session, run, state, error=outcome.error, at=now, start=start)
                self._add_points(session, run, points, lease)
                finish_run(run, outcome, at=now)
                self._record(session, "finished", run, lease, error=outcome.error)
            return run.record(RunRecord)

    def _add_points(self, session: Session, run: Run, points: Sequence[Point], lease: Lease) -> None:
        new = add_points(session, run, points)
        if new:
            events.record_points(session, run, new, study_id=lease.study_id, label=self._label(session, run))

    def _record(self, session: Session, change: str, run: Run, lease: Lease, **more: Any) -> None:
        label = self._label(session, run)
        events.record_run(session, change, run, study_id=lease.study_id, label=label, **more)

    def _label(self, session: Session, run: Run) -> str:
        if run.search_id not in self._labels:
            self._labels[run.search_id] = session.get_one(Search, run.search_id).label
        return self._labels[run.search_id]

    def _check_search(self, session: Session, lease: Lease, search_id: int) -> None:
        if (lease.study_id, search_id) not in self._searches:
            search = session.get(Search, search_id)
            if search is None or search.study_id != lease.study_id:
                raise SearchError(f"study {lease.study_id} has no search with id {search_id}")
            self._searches.add((lease.study_id, search_id))

    def _definition(self, row: Study) -> StudyDefinition:
        key = row.id, row.definition_sha256  # an extended study has another one
        if key not in self._definitions:
            self._definitions[key] = definition_of(row)
        return self._definitions[key]


def _by_number(totals: Mapping[str, float]) -> dict[int, float]:
    return {int(n): total for n, total in totals.items()}


def _n_rows(result: Any) -> int:
    assert isinstance(result, CursorResult)
    return result.rowcount


if TYPE_CHECKING:
    _conforms: type[Store] = SqlStore
