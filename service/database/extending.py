"""Let a study that has ended go on with an extended definition."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from admeta.client.models import ExtendRequest, StudyView
from search.definition import StudyDefinition
from search.errors import StudyConflictError
from search.extension import changes_in_words
from search.recipe import recipe_of
from search.spending import FIRST_FAILURES
from search.states import FINISHED_STATES, FailureKind, RunState, Stage, StudyState
from service.database import events, idempotency
from service.database.engine import writing
from service.database.events import EventKind
from service.database.idempotency import Answer, IdempotencyKey
from service.database.models import CONFIRM, Run, Search, Study
from service.database.queries.studies import study_view
from service.database.queries.summaries import WITHDRAWN
from service.database.retry import REQUEST, retried
from service.database.studies import check_queue, check_released, definition_sha256, locked, search_rows

MAX_EXTENSIONS = 50
"""Of one study: each is kept with the definition before it, which a submission under the study's name looks at."""


@retried(REQUEST)
@idempotency.repeated_on_conflict
def extend_study(
    engine: Engine,
    study: str,
    definition: StudyDefinition,
    *,
    before: Mapping[str, Any],
    request: ExtendRequest,
    by: str | None,
    max_queued: int | None = None,
    key: IdempotencyKey | None = None,
) -> StudyView:
    """Let a study that has ended go on with an extended definition; QUEUED until a driver takes it.

    Trials and runs that have a result stay as they are. Others take the places of those that had been cancelled.

    Args:
        definition: made from `before` by `search.extension.extended`.
        before: the study's definition as it was read.
        request: what was asked for, for the history.
        by: name of the access token.
        max_queued, key: see `create_study`.

    Returns:
        The study; as it was, where the definition is the present one and nothing of it was cut off.

    Raises:
        StudyNotFoundError: no study has this id or name.
        StudyConflictError: it has not ended, its driver is still stopping its runs, or its definition has changed.
        QueueFullError, AnsweredBeforeError, KeyReusedError: as `create_study`.
    """
    old = StudyDefinition.model_validate(before)
    with writing(engine) as session:
        row = locked(session, study)
        idempotency.check(session, key)  # after the lock, since the same request may have had it
        if row.definition != before:
            raise StudyConflictError(f"study '{row.name}' was extended by another request meanwhile; look at it again.")
        if definition != old or _was_cut_off(session, row, request):
            _check_can_extend(session, row, engine)
            if max_queued is not None:
                check_queue(session, max_queued)
            _extend(session, row, old, definition, request=request, by=by)
        view = study_view(session, row)
        idempotency.keep(session, key, Answer(status=200, location=None, body=view.model_dump_json()))
    return view


def _extend(
    session: Session, row: Study, old: StudyDefinition, new: StudyDefinition, *, request: ExtendRequest, by: str | None
) -> None:
    changes, content = changes_in_words(old, new), new.to_json()
    row.extensions = [*row.extensions, _extension(session, row, changes, request=request, by=by)]
    row.definition, row.definition_sha256 = content, definition_sha256(content)
    row.recipe = recipe_of(new, data_fingerprint=row.data_fingerprint)
    row.state, row.reason, row.finished_at = StudyState.QUEUED, None, None
    _extend_searches(session, row, new)
    events.record_study(session, EventKind.STUDY_EXTENDED, row, changes=changes, by=by)
    events.record_study(session, EventKind.STUDY_STATE, row)
    session.flush()


def _check_can_extend(session: Session, row: Study, engine: Engine) -> None:
    if not row.state.is_terminal:
        how = "Resume it and wait" if row.state is StudyState.PAUSED else "Wait"
        raise StudyConflictError(
            f"study '{row.name}' is {row.state}; only COMPLETED, FAILED or CANCELLED studies can be extended. "
            f"{how} for its end, or cancel it: what has finished is kept, and the extension does the rest."
        )
    if len(row.extensions) >= MAX_EXTENSIONS:
        raise StudyConflictError(
            f"study '{row.name}' was extended {len(row.extensions)} times, which is the limit; clone it."
        )
    check_released(session, row, engine)


def _was_cut_off(session: Session, row: Study, request: ExtendRequest) -> bool:
    """Whether something of the study is left to do.

    Of a COMPLETED study, where nothing else is asked for: what was cancelled, and searches that failed from the start.
    """
    if row.state is not StudyState.COMPLETED:
        return row.state.is_terminal
    if request != ExtendRequest():
        return False
    runs = select(Run.search_id).join(Run.search).where(Search.study_id == row.id)
    trials = runs.where(Run.stage == Stage.SEARCH).group_by(Run.search_id, Search.n_trials)
    gave_up = trials.having(
        func.count() < Search.n_trials,
        func.count().filter(Run.failure == FailureKind.ERROR) >= FIRST_FAILURES,
        func.count().filter(Run.state != RunState.FAIL) == 0,
    )
    cut_off = runs.where(Run.failure == FailureKind.CANCELLED), gave_up
    return any(session.execute(query.limit(1)).first() is not None for query in cut_off)


def _extension(
    session: Session, row: Study, changes: list[str], *, request: ExtendRequest, by: str | None
) -> dict[str, Any]:
    """What is kept of an extension: the fields of `ExtensionView`, and until then the definition and confirm results.

    Verdicts that were seen before the last extension are the same ones, as long as there is no further result.
    """
    counted = select(Run.search_id, func.count()).join(Run.search).group_by(Run.search_id)
    counted = counted.where(Search.study_id == row.id, Run.stage == CONFIRM, Run.state.in_(FINISHED_STATES))
    results = session.execute(counted.where(Run.failure.is_(None) | Run.failure.not_in(WITHDRAWN))).all()
    n_results = sum(n for _, n in results)
    n_before = row.extensions[-1].get("n_results") if row.extensions else None
    return {
        "at": datetime.now(UTC).isoformat(),
        "by": by,
        "changes": changes,
        "request": request.model_dump(mode="json", exclude_defaults=True),
        "state": row.state.value,
        "reason": row.reason,
        "ended_at": None if row.finished_at is None or row.started_at is None else row.finished_at.isoformat(),
        "verdicts_seen": len(results) > 1 and n_results != n_before,
        "n_results": n_results,
        "definition": row.definition,
    }


def _extend_searches(session: Session, row: Study, definition: StudyDefinition) -> None:
    """Give the searches their new numbers and places, add those of new optimizers, and let cancelled runs be replaced.

    A driver that died may have left unfinished runs: the next one continues them.
    """
    known = {one.label: one for one in session.execute(select(Search).where(Search.study_id == row.id)).scalars()}
    for new in search_rows(row.id, definition):
        old = known.get(new.label)
        if old is None:
            session.add(new)
        else:
            old.position, old.n_trials, old.n_confirm_runs = new.position, new.n_trials, new.n_confirm_runs
    cancelled = Run.search_id.in_([one.id for one in known.values()]), Run.failure == FailureKind.CANCELLED
    session.execute(
        update(Run)
        .where(*cancelled, Run.state == RunState.FAIL)
        .values(failure=FailureKind.REPLACED)
        .execution_options(synchronize_session=False)
    )
