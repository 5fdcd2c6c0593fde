"""Settings of earlier studies, for the first trials of a new one (`warm_start`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Select, case, func, select
from sqlalchemy.orm import Session, aliased

from search.definition import StudyDefinition
from search.states import TERMINAL_STATES, Direction, RunState, Stage
from search.warm_start import BEST_OF_EACH, MAX_SEARCHES, EarlierTrial
from service.database.models import CONFIRM, Run, Search, Study
from service.database.queries.lookup import VOID_TAG, has_tag
from service.database.queries.summaries import WITHDRAWN


def best_settings(
    session: Session,
    optimizer: str,
    *,
    recipes: Collection[str],
    direction: Direction,
    studies: Sequence[str] | None,
    limit: int,
) -> list[EarlierTrial]:
    """See `search.store.Store.best_settings`."""
    searches = _ended_searches(optimizer, studies).where(Study.recipe.in_(recipes), Study.direction == direction)
    trials = _ranked(searches).subquery()
    in_order = (trials.c.is_single, trials.c.cost, trials.c.id)
    found: list[EarlierTrial] = []
    for row in session.execute(select(trials).order_by(*in_order)).yield_per(100):
        one = _earlier(row, recipes)
        if all(one.settings != other.settings for other in found):
            found.append(one)
        if len(found) == limit:
            break
    return found


def earlier_trials(
    session: Session,
    optimizer: str,
    *,
    like: StudyDefinition,
    recipes: Collection[str],
    studies: Sequence[str] | None,
) -> list[EarlierTrial]:
    """See `search.store.Store.earlier_trials`."""
    likeness = case(
        (Study.recipe.in_(recipes), 0),
        ((Study.task == like.task.name) & (Study.model == like.task.model), 1),
        (Study.task == like.task.name, 2),
        else_=3,
    )
    searches = _ended_searches(optimizer, studies).where(~has_tag(VOID_TAG))
    searches = searches.order_by(likeness, Study.created_at.desc(), Search.id).limit(MAX_SEARCHES)
    trials = _ranked(searches).subquery()
    query = select(trials).where(trials.c.place <= BEST_OF_EACH).order_by(trials.c.search_id.desc(), trials.c.place)
    return [_earlier(row, recipes) for row in session.execute(query)]


def _ended_searches(optimizer: str, studies: Sequence[str] | None) -> Select[int]:
    """Ids of the optimizer's searches in ended studies."""
    ended = Study.state.in_(TERMINAL_STATES)
    query = select(Search.id).join(Search.study).where(Search.optimizer == optimizer, ended)
    return query if studies is None else query.where(Study.name.in_(studies))


def _ranked(searches: Select[int]) -> Select[*tuple[Any, ...]]:
    """The complete trials of these searches without failed confirm runs, and their places in their searches."""
    of_searches = select(searches.subquery().c.id)
    confirm = (
        select(
            Run.search_id,
            Run.trial_number,
            func.avg(Run.value).label("mean"),
            func.count().filter(Run.state != RunState.COMPLETE).label("n_failed"),
        )
        .where(Run.stage == CONFIRM, Run.search_id.in_(of_searches))
        .where(Run.failure.is_(None) | Run.failure.not_in(WITHDRAWN))
        .group_by(Run.search_id, Run.trial_number)
        .subquery()
    )
    trial = aliased(Run)
    value = func.coalesce(confirm.c.mean, trial.value)
    cost = case((Study.direction == Direction.MAXIMIZE, -value), else_=value).label("cost")
    is_single = case((confirm.c.mean.is_(None), 1), else_=0).label("is_single")
    place = func.row_number().over(partition_by=trial.search_id, order_by=(is_single, cost, trial.id)).label("place")
    of_study = Study.name.label("study"), Study.task, Study.model, Study.metric, Study.recipe
    of_search = Search.label, Search.fixed, trial.search_id
    return (
        select(*of_study, *of_search, trial.id, trial.trial_number, trial.params, is_single, cost, place)
        .join(Search, Search.id == trial.search_id)
        .join(Study, Study.id == Search.study_id)
        .outerjoin(confirm, (confirm.c.search_id == trial.search_id) & (confirm.c.trial_number == trial.trial_number))
        .where(
            trial.search_id.in_(of_searches),
            trial.stage == Stage.SEARCH,
            trial.state == RunState.COMPLETE,
            trial.value.is_not(None),
            func.coalesce(confirm.c.n_failed, 0) == 0,
        )
    )


def _earlier(row: Any, recipes: Collection[str]) -> EarlierTrial:
    return EarlierTrial(
        study=row.study,
        label=row.label,
        trial=row.trial_number,
        task=row.task,
        model=row.model,
        metric=row.metric,
        settings={**row.fixed, **row.params},
        same_recipe=row.recipe in recipes,
        place=row.place,
    )
