"""The pages: overview, study, search, trial."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BeforeValidator, Field

import tasks.registry
from admeta.registry import known_optimizers
from search.states import RunState, StudyState
from service.api.dependencies import Database, Filters
from service.dashboard import assets, cluster_page, data, explorer_pages, results_pages, submit_pages
from service.dashboard.drawing import common_scale
from service.dashboard.lookup import find_search, gpu_seconds, readable_logs
from service.dashboard.python_code import as_python
from service.dashboard.standing import leaders, verdicts
from service.dashboard.templating import page
from service.database import events, queries
from service.settings import Settings

router = APIRouter(include_in_schema=False)
router.include_router(assets.router)
router.include_router(data.router)
router.include_router(results_pages.router)
router.include_router(cluster_page.router)
router.include_router(explorer_pages.router)
router.include_router(submit_pages.router)

_EMPTY = BeforeValidator(lambda value: None if value == "" else value)  # a form sends what was left open as ""
Text = Annotated[Annotated[str, Field(max_length=100)] | None, _EMPTY]
Cursor = Annotated[Annotated[str, Field(max_length=500)] | None, _EMPTY]


class OverviewFilters(Filters):
    """Which studies to show."""

    q: Text = None
    state: Annotated[StudyState | None, _EMPTY] = None
    task: Text = None
    optimizer: Text = None
    cursor: Cursor = None


class SearchFilters(Filters):
    """Which trials the table shows, in which order."""

    state: Annotated[RunState | None, _EMPTY] = None
    order: Literal["number", "best"] = "best"
    cursor: Cursor = None


@router.get("/")
def overview(request: Request, engine: Database, filters: Annotated[OverviewFilters, Query()]) -> Response:
    """All studies, newest first, with their progress."""
    found = queries.list_studies(
        engine,
        state=filters.state,
        task=filters.task,
        optimizer=filters.optimizer,
        name=filters.q,
        limit=50,
        cursor=filters.cursor,
    )
    chosen = filters.model_dump(exclude_none=True, exclude={"cursor"})
    return page(
        request,
        "overview.html",
        studies=found,
        leaders={study.id: leaders(study) for study in found.items},
        gpu_s=gpu_seconds(engine, [study.id for study in found.items]),
        filters=filters,
        filtered=bool(chosen),
        states=[state.value for state in StudyState],
        tasks=sorted(tasks.registry.all_tasks()),
        optimizers=sorted(known_optimizers()),
        newest_event=events.kept_range(engine)[1],
        pages=_pages("/", chosen, filters.cursor, found.next_cursor),
    )


@router.get("/studies/{study}")
def study_page(request: Request, engine: Database, study: str) -> Response:
    """Which optimizer, which settings, how sure."""
    newest_event = events.kept_range(engine)[1]  # before the reading: what happens meanwhile is told again
    view = queries.get_study_view(engine, study)
    standing = queries.comparison(engine, view.id)
    scale = common_scale(standing.rows)
    return page(
        request,
        "study.html",
        study=view,
        standing=standing,
        scale=scale,
        verdicts=verdicts(standing),
        positions={search.label: position for position, search in enumerate(view.searches)},
        ended=StudyState(view.state).is_terminal,
        newest_event=newest_event,
    )


@router.get("/studies/{study}/searches/{label}")
def search_page(
    request: Request, engine: Database, study: str, label: str, filters: Annotated[SearchFilters, Query()]
) -> Response:
    """One optimizer's search: how it went, what mattered, its trials."""
    newest_event = events.kept_range(engine)[1]
    view, search = find_search(engine, study, label)
    trials = queries.list_trials(
        engine, view.id, label=label, state=filters.state, order=filters.order, limit=50, cursor=filters.cursor
    )
    chosen = filters.model_dump(exclude_none=True, exclude={"cursor"})
    return page(
        request,
        "search.html",
        study=view,
        search=search,
        trials=trials,
        names=_names(trial.params for trial in trials.items),
        filters=filters,
        states=[state.value for state in RunState],
        ended=StudyState(view.state).is_terminal,
        newest_event=newest_event,
        pages=_pages(f"/studies/{view.id}/searches/{label}", chosen, filters.cursor, trials.next_cursor),
    )


@router.get("/studies/{study}/trials/{label}/{number}")
def trial_page(
    request: Request, engine: Database, study: str, label: str, number: Annotated[int, Path(ge=0, lt=2**31)]
) -> Response:
    """One trial: its settings, its runs, what went wrong."""
    newest_event = events.kept_range(engine)[1]
    view, search = find_search(engine, study, label)
    trial = queries.get_trial(engine, view.id, label, number)
    settings: Settings = request.app.state.settings
    attempts = queries.get_run(engine, trial.runs[0].id).attempts
    return page(
        request,
        "trial.html",
        study=view,
        search=search,
        trial=trial,
        logs=readable_logs(engine, settings.storage, trial.runs),
        environment=(attempts[-1].environment if attempts else None) or {},
        code=as_python(trial.optimizer, trial.settings),
        ended=StudyState(view.state).is_terminal,
        newest_event=newest_event,
    )


def _names(params: Any) -> list[str]:
    """Names of the parameters in order of first use."""
    return list(dict.fromkeys(name for some in params for name in some))


def _pages(path: str, chosen: dict[str, Any], cursor: str | None, next_cursor: str | None) -> dict[str, str | None]:
    """Addresses of the first and of the next page; None where one is there already, or there is none."""
    first = f"{path}?{urlencode(chosen)}" if chosen else path
    return {
        "first": first if cursor else None,
        "next": f"{path}?{urlencode({**chosen, 'cursor': next_cursor})}" if next_cursor else None,
    }
