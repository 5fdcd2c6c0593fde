"""SQL for "the best run of this search": the one place that knows the direction, and who may compete."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, case, select
from sqlalchemy.orm import aliased

from search.states import Direction, RunState, Stage
from service.database.models import Run, Search, Study


@cache  # an expression never changes, and making this one costs more than the query
def best_run_id() -> ColumnElement[int | None]:
    """Id of the best COMPLETE run of stage search; NULL where there is none.

    Correlated to `Study` and `Search` of the enclosing query; one look into an index for each search. The first of
    equals wins.
    """
    return case((Study.direction == Direction.MAXIMIZE, _first(descending=True)), else_=_first(descending=False))


def _first(*, descending: bool) -> ScalarSelect[Any]:
    run = aliased(Run)
    return (
        select(run.id)
        .where(
            run.search_id == Search.id,
            run.stage == Stage.SEARCH,
            run.state == RunState.COMPLETE,
            run.value.is_not(None),
        )
        .order_by(run.value.desc() if descending else run.value.asc(), run.trial_number)
        .limit(1)
        .correlate(Search)
        .scalar_subquery()
    )


def better_first(column: ColumnElement[Any], direction: str) -> ColumnElement[Any]:
    """Sort order of a value that is not NULL."""
    return column.desc() if Direction(direction).is_maximize else column.asc()
