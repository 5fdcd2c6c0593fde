"""What all trials of a study say: the best of n of them, and where the best lies at the edge of its search space."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from admeta.client.models import EdgeView
from search.analysis import BestOfN, best_of_n
from search.definition import StudyDefinition
from search.edge import Searched, edges, is_near_an_end, widened
from search.states import Direction, FailureKind, RunState, Stage
from service.database.models import Run, Search, Study
from service.database.queries.best import TrialSummary

MAX_EXPECTED = 500
"""Trials up to which the expected best is computed: the cost grows with the square of the length."""


def trial_values(session: Session, study: Study) -> dict[int, list[float | None]]:
    """By search, the last value of each trial that says something of its settings; None for one that diverged."""
    values: dict[int, list[float | None]] = defaultdict(list)
    for search_id, failure, value in session.execute(_telling_trials(study, Run.search_id, Run.failure, Run.value)):
        values[search_id].append(None if failure else value)
    return values


def _telling_trials(study: Study, *columns: Any) -> Select[*tuple[Any, ...]]:
    """Columns of the finished trials that say something of their settings: not those lost to an accident."""
    ended = Run.state.in_([RunState.COMPLETE, RunState.PRUNED]) & Run.value.is_not(None)
    diverged = Run.failure.in_([FailureKind.DIVERGED, FailureKind.NO_METRIC])
    return (
        select(*columns)
        .join(Run.search)
        .where(Search.study_id == study.id, Run.stage == Stage.SEARCH, ended | diverged)
        .order_by(Run.search_id, Run.trial_number)
    )


def best_by_search(values: Mapping[int, Sequence[float | None]], *, direction: Direction) -> dict[int, BestOfN]:
    known = [value for of in values.values() for value in of if value is not None]
    worst = direction.worst(known) if known else None
    return {
        search_id: best_of_n(of[:MAX_EXPECTED], direction=direction, worst=worst) for search_id, of in values.items()
    }


def found_edges(
    session: Session, study: Study, labels: Mapping[int, str], chosen: Mapping[int, TrialSummary]
) -> dict[str, Any]:
    """What the best trials have at an end of their spaces, and the study that searches further, by names of the view.

    Of searches that have ended. Reads all trials' parameters only where a best trial is near an end.

    Args:
        labels: by search, that of its optimizer in the definition, or of a baseline, which has no space.
    """
    over = {search_id: one for search_id, one in chosen.items() if one.confirmed or study.state.is_terminal}
    try:
        definition = StudyDefinition.model_validate(study.definition) if over else None
    except ValidationError:  # of another version, or a task that is no longer installed
        definition = None
    if definition is None:
        return {}
    spaces = {one.label: one.space for one in definition.optimizers}
    near = {
        search_id: one.run.params
        for search_id, one in over.items()
        if is_near_an_end(spaces.get(labels[search_id], {}), one.run.params)
    }
    if not near:
        return {}
    trials: dict[int, list[tuple[Mapping[str, Any], float | None]]] = defaultdict(list)
    columns = Run.search_id, Run.params, Run.value, Run.failure
    for search_id, params, value, failure in session.execute(_telling_trials(study, *columns)):
        trials[search_id].append((params, None if failure else value))
    found = edges(
        definition, [Searched(label=labels[one], best=params, trials=trials[one]) for one, params in near.items()]
    )
    return {
        "edges": [EdgeView.model_validate(edge) for edge in found],
        "wider": widened(definition, found).to_json() if found else None,
    }
