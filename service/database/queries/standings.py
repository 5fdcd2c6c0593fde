"""The best of every optimizer on every task, over all studies: what `best` tells of one, in a few queries for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Engine, case, func, literal, select
from sqlalchemy.orm import Session, aliased

from search.analysis import spread
from search.paper import FINETUNED, variant_of
from search.states import Direction, RunState, Stage
from service.database.engine import reading
from service.database.models import RUN_CONFIRMS, Run, Search, Study
from service.database.queries.best import view_of
from service.database.queries.evidence import Evidence, weigh
from service.database.queries.winners import best_run_id
from service.database.retry import REQUEST, retried
from service.models import BestView, SpreadView

Key = tuple[str, str | None, str, str, str, str | None]
"""Task, model, metric, direction, optimizer, variant."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """An optimizer's best result on a task.

    Attributes:
        best: as `GET /v1/best` gives it.
        study_id: of the study that it comes from.
        variant: the paper's name of the ablation that its settings are, or `FINETUNED` where training started from
            trained weights; None for a main result.
        tested: every test metric over the confirm runs, without `test_`; empty where nothing was tested.
        train_s: seconds of training over the confirm runs.
    """

    best: BestView
    study_id: str
    variant: str | None
    tested: Mapping[str, SpreadView]
    train_s: SpreadView


@dataclass(frozen=True)
class _Candidate:
    confirmed: bool
    any_failed: bool
    value: float
    run_id: int
    first_id: int


@retried(REQUEST)
def standings(engine: Engine) -> list[Standing]:
    """The best of every (task, model, metric, optimizer, variant), chosen as `best` chooses; in order of the key."""
    with reading(engine) as session:
        chosen: dict[Key, _Candidate] = {}
        for row in [*_confirmed(session), *_single(session)]:
            key, candidate = _candidate(row)
            if key not in chosen or _order(key, candidate) < _order(key, chosen[key]):
                chosen[key] = candidate
        found = _load(session, [candidate.run_id for candidate in chosen.values()])
        return [
            _standing(*found[chosen[key].run_id], variant=key[-1])
            for key in sorted(chosen, key=lambda key: tuple(part or "" for part in key))
            if chosen[key].run_id in found
        ]


def _order(key: Key, candidate: _Candidate) -> tuple[bool, bool, float, int]:
    return (not candidate.confirmed, candidate.any_failed, Direction(key[3]).cost(candidate.value), candidate.first_id)


def _candidate(row: Any) -> tuple[Key, _Candidate]:
    task, model, metric, direction, origin, optimizer, fixed, params, *rest = row
    found = variant_of(task=task, model=model, optimizer=optimizer, settings={**fixed, **params})
    variant = found if origin is None else FINETUNED
    return (task, model, metric, direction, optimizer, variant), _Candidate(*rest)


def _columns(confirmed: ColumnElement[Any], *more: Any) -> list[Any]:
    """What a row says of a candidate, as `_candidate` reads it."""
    about = [Study.task, Study.model, Study.metric, Study.direction, Study.origin, Search.optimizer, Search.fixed]
    return [*about, more[0], confirmed, *more[1:]]


def _confirmed(session: Session) -> Sequence[Any]:
    """Trials all of whose confirm runs have ended and one is complete, with their mean."""
    complete: ColumnElement[Any] = case((Run.state == RunState.COMPLETE, Run.value))
    failed = func.sum(case((Run.state == RunState.FAIL, 1), else_=0)) > 0
    unfinished = case((Run.state.in_((RunState.WAITING, RunState.RUNNING)), 1), else_=0)
    trials = (
        select(
            Run.search_id,
            Run.trial_number,
            failed.label("any_failed"),
            func.avg(complete).label("value"),
            func.min(Run.id).label("first_id"),
        )
        .where(RUN_CONFIRMS)
        .group_by(Run.search_id, Run.trial_number)
        .having(func.count(complete) > 0, func.sum(unfinished) == 0)
        .subquery()
    )
    searched, true = aliased(Run), literal(True)  # noqa: FBT003  (a column)
    query = (
        select(*_columns(true, searched.params, trials.c.any_failed, trials.c.value, searched.id, trials.c.first_id))
        .select_from(trials)
        .join(Search, Search.id == trials.c.search_id)
        .join(Study, Study.id == Search.study_id)
        .join(
            searched,
            (searched.search_id == trials.c.search_id)
            & (searched.trial_number == trials.c.trial_number)
            & (searched.stage == Stage.SEARCH),
        )
    )
    return session.execute(query).all()


def _single(session: Session) -> Sequence[Any]:
    """The best run of each search."""
    false = literal(False)  # noqa: FBT003  (a column)
    winners = (
        select(best_run_id().label("run_id")).select_from(Search).join(Study, Study.id == Search.study_id).subquery()
    )
    query = (
        select(*_columns(false, Run.params, false, Run.value, Run.id, Run.id))
        .join(Search, Search.id == Run.search_id)
        .join(Study, Study.id == Search.study_id)
        .join(winners, winners.c.run_id == Run.id)
    )
    return session.execute(query).all()


def _load(session: Session, run_ids: Iterable[int]) -> dict[int, tuple[Run, Search, Study, list[Run]]]:
    """The runs with what they belong to and the confirm runs of their trial."""
    found: dict[int, tuple[Run, Search, Study, list[Run]]] = {}
    ids = list(run_ids)
    confirm = aliased(Run)
    for start in range(0, len(ids), 500):
        query = (
            select(Run, Search, Study, confirm)
            .join(Search, Search.id == Run.search_id)
            .join(Study, Study.id == Search.study_id)
            .outerjoin(
                confirm,
                (confirm.search_id == Run.search_id)
                & (confirm.trial_number == Run.trial_number)
                & (confirm.stage == Stage.CONFIRM),
            )
            .where(Run.id.in_(ids[start : start + 500]))
            .order_by(Run.id, confirm.id)
        )
        for run, search, study, other in session.execute(query):
            runs = found.setdefault(run.id, (run, search, study, []))[3]
            if other is not None:
                runs.append(other)
    return found


def _standing(run: Run, search: Search, study: Study, confirm_runs: list[Run], *, variant: str | None) -> Standing:
    evidence = weigh(run, confirm_runs, metric=study.metric)
    complete = [one for one in evidence.counted if one.state == RunState.COMPLETE] if evidence.confirmed else []
    names = sorted({name for one in complete for name in one.test_metrics})
    return Standing(
        best=view_of(study, search, evidence),
        study_id=study.id,
        variant=variant,
        tested={name.removeprefix("test_"): _spread(evidence, complete, name) for name in names},
        train_s=_view([one.train_s for one in complete]),
    )


def _spread(evidence: Evidence, complete: Sequence[Run], name: str) -> SpreadView:
    n_failed = len(evidence.counted) - len(complete)
    return _view([*(one.test_metrics.get(name) for one in complete), *[None] * n_failed])


def _view(values: Sequence[float | None]) -> SpreadView:
    result = spread(values)
    return SpreadView(mean=result.mean, std=result.std, n=result.n, n_failed=result.n_failed)
