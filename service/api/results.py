"""A study's results for other programs: files, and which parameters mattered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import optuna
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field
from sqlalchemy import Engine

from search.errors import TooFewTrialsError
from search.states import ExportFormat, ImportanceMethod
from service import export
from service.api.dependencies import MAX_PAGE, Database, Filters
from service.database import queries
from service.database.optuna_storage import optuna_storage
from service.database.queries.plots import search_importance
from service.database.retry import REQUEST
from service.models import ErrorView, ImportanceView, SearchView, TrialView

router = APIRouter(prefix="/v1/studies/{study}", tags=["results"], responses={404: {"model": ErrorView}})


class ExportFilters(Filters):
    """In which form."""

    format: ExportFormat = Field(default=ExportFormat.CSV, description="latex: the comparison only.")


class ImportanceFilters(Filters):
    """How to tell."""

    method: ImportanceMethod | None = Field(default=None, description="Default: what suits the number of trials.")


@router.get(
    "/export",
    response_class=Response,
    responses={200: {"content": {form.media_type.split(";")[0]: {"schema": {}} for form in ExportFormat}}},
)
def export_study(engine: Database, study: str, filters: Annotated[ExportFilters, Query()]) -> Response:
    """Download the results: csv and parquet have a row a run, json has the trials, latex the comparison."""
    view = queries.get_study_view(engine, study)
    chosen = filters.format
    headers = {"Content-Disposition": f'attachment; filename="{view.name}.{chosen.suffix}"'}
    if chosen is ExportFormat.LATEX:
        text = export.to_latex(queries.comparison(engine, view.id))
        return Response(text, media_type=chosen.media_type, headers=headers)
    columns = export.columns(view.definition or {})
    trials = _all_trials(engine, view.id)
    chunks: Iterable[bytes]
    match chosen:
        case ExportFormat.CSV:
            chunks = export.to_csv(trials, columns)
        case ExportFormat.PARQUET:
            chunks = export.to_parquet(trials, columns)
        case ExportFormat.JSON:
            chunks = export.to_json(trials)
    return StreamingResponse(chunks, media_type=chosen.media_type, headers=headers)


@router.get("/importance")
def get_importance(
    engine: Database, request: Request, study: str, filters: Annotated[ImportanceFilters, Query()]
) -> list[ImportanceView]:
    """How much each searched parameter mattered, an optimizer's search each."""
    view = queries.get_study_view(engine, study)
    storage = _optuna_storage(request, engine)
    return [_importance(engine, search, storage, filters.method) for search in view.searches]


def _importance(
    engine: Engine, search: SearchView, storage: optuna.storages.BaseStorage, method: ImportanceMethod | None
) -> ImportanceView:
    try:
        result = search_importance(engine, storage, search.optuna_study, method=method)
    except KeyError:
        reason = f"no trial of search '{search.label}' has begun"
    except TooFewTrialsError as error:
        reason = str(error)
    else:
        return ImportanceView(label=search.label, method=result.method, shares=result.shares, n_trials=result.n_trials)
    return ImportanceView(label=search.label, method=None, shares={}, n_trials=search.n_complete, reason=reason)


def _optuna_storage(request: Request, engine: Engine) -> optuna.storages.BaseStorage:
    """One for the application: it remembers the finished trials that it has read."""
    state = request.app.state
    if not hasattr(state, "optuna_storage"):
        state.optuna_storage = optuna_storage(engine, REQUEST)
    storage: optuna.storages.BaseStorage = state.optuna_storage
    return storage


def _all_trials(engine: Engine, study_id: str) -> Iterator[TrialView]:
    cursor: str | None = None
    while True:
        page = queries.list_trials(engine, study_id, limit=MAX_PAGE, cursor=cursor)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return
