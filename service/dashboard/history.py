"""All trials of one search, small enough to plot: number, state, value, params and the running best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, func, select

from search.analysis import best_so_far, finite_or_none
from search.states import RunState, Stage
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
    epoch: list[int]
    runs: list[int]
    failure: list[str | None]


def search_history(engine: Engine, study: StudyView, label: str) -> History:
    """The trials of a search of this study."""
    query = (
        select(Run.trial_number, Run.state, Run.value, Run.params, Run.epoch, Run.failure)
        .join(Search, Search.id == Run.search_id)
        .where(Search.study_id == study.id, Search.label == label, Run.stage == Stage.SEARCH)
        .order_by(Run.trial_number)
    )
    per_trial = (
        select(Run.trial_number, func.count())
        .join(Search, Search.id == Run.search_id)
        .where(Search.study_id == study.id, Search.label == label, Run.stage == Stage.CONFIRM)
        .group_by(Run.trial_number)
    )
    with reading(engine) as session:
        found = session.execute(query).all()
        confirmed = {number: n for number, n in session.execute(per_trial)}
    values = [finite_or_none(value) for _, _, value, *_ in found]
    counted = [
        value if state == RunState.COMPLETE else None for (_, state, *_), value in zip(found, values, strict=True)
    ]
    all_params = [params for _, _, _, params, *_ in found]
    names = sorted({name for params in all_params for name in params}, key=lambda name: (name not in _FIRST, name))
    return History(
        metric=study.metric,
        direction=study.direction,
        number=[number for number, *_ in found],
        state=[str(state) for _, state, *_ in found],
        value=values,
        best=best_so_far(counted, direction=study.direction),
        params={name: [params.get(name) for params in all_params] for name in names},
        epoch=[epoch for *_, epoch, _ in found],
        runs=[1 + confirmed.get(number, 0) for number, *_ in found],
        failure=[failure for *_, failure in found],
    )


_FIRST = ("lr", "lambd")


def rows(history: History) -> Iterator[tuple[Any, ...]]:
    """The history as a table, with its header."""
    yield ("trial", "state", history.metric, "best", *history.params)
    yield from zip(history.number, history.state, history.value, history.best, *history.params.values(), strict=True)
