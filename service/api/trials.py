"""Trials and the comparison of a study."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field

from search.states import RunState, SignificanceTest
from service.api.dependencies import Database, PageFilters
from service.database import queries, studies
from service.models import ComparisonView, ErrorView, Page, TrialView

router = APIRouter(prefix="/v1/studies/{study}", tags=["trials"], responses={404: {"model": ErrorView}})


class TrialFilters(PageFilters):
    """Which trials to list, and in which order."""

    label: str | None = Field(default=None, max_length=100, description="One optimizer's search.")
    state: RunState | None = None
    order: Literal["number", "best"] = Field(
        default="number", description="best: best validation value first, PRUNED and FAIL last."
    )


@router.get("/trials")
def list_trials(engine: Database, study: str, filters: Annotated[TrialFilters, Query()]) -> Page[TrialView]:
    """Trials with their runs."""
    return queries.list_trials(engine, study, **filters.model_dump())


@router.get("/trials/{label}/{number}")
def get_trial(engine: Database, study: str, label: str, number: Annotated[int, Path(ge=0, lt=2**31)]) -> TrialView:
    """One trial with its runs and the curve of its search run."""
    return queries.get_trial(engine, study, label, number)


@router.post("/trials/{label}/{number}/cancel", responses={409: {"model": ErrorView}})
def cancel_trial(engine: Database, study: str, label: str, number: Annotated[int, Path(ge=0, lt=2**31)]) -> TrialView:
    """Cancel one trial: its worker is ended, the study goes on. 409 when no run of it waits or trains."""
    return studies.request_cancel_trial(engine, study, label, number)


@router.get("/comparison")
def get_comparison(
    engine: Database,
    study: str,
    test: Annotated[
        SignificanceTest,
        Query(description="moderated shares variances among optimizers; wilcoxon pairs runs by seed."),
    ] = SignificanceTest.MODERATED,
) -> ComparisonView:
    """The study's optimizers, best first: validation selects, test is only reported, both over the confirm seeds."""
    return queries.comparison(engine, study, test=test)
