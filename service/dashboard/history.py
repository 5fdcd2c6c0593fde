"""All trials of one search, small enough to plot: number, state, value, params and the running best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, select

from search.analysis import best_so_far, finite_or_none
from search.records import RunState, Stage
from service.database.engine import reading
from service.database.models import Run, Search
from service.models import StudyView


@dataclass(frozen=True, kw_only=True)
class History:
    """Columns, one entry a trial, in order of the trial's number. `best` counts complete trials only."""

    metric: str
    direction: str
    number: list[int]
    state: list[str]
    value: list[float | None]
    best: list[float | None]
    params: dict[str, list[Any]]


def search_history(engine: Engine, study: StudyView, label: str) -> History:
    """The trials of a search of this study."""
    query = (
        select(Run.trial_number, Run.state, Run.value, Run.params)
        .join(Search, Search.id == Run.search_id)
        .where(Search.study_id == study.id, Search.label == label, Run.stage == Stage.SEARCH)
        .order_by(Run.trial_number)
    )
    with reading(engine) as session:
        found = session.execute(query).all()
    values = [finite_or_none(value) for _, _, value, _ in found]
    counted = [
        value if state == RunState.COMPLETE else None for (_, state, *_), value in zip(found, values, strict=True)
    ]
    names = sorted({name for *_, params in found for name in params}, key=lambda name: (name not in _FIRST, name))
    return History(
        metric=study.metric,
        direction=study.direction,
        number=[number for number, *_ in found],
        state=[str(state) for _, state, *_ in found],
        value=values,
        best=best_so_far(counted, direction=study.direction),
        params={name: [params.get(name) for *_, params in found] for name in names},
    )


_FIRST = ("lr", "lambd")


def rows(history: History) -> Iterator[tuple[Any, ...]]:
    """The history as a table, with its header."""
    yield ("trial", "state", history.metric, "best", *history.params)
    yield from zip(history.number, history.state, history.value, history.best, *history.params.values(), strict=True)
