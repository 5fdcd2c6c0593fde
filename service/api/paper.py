"""The paper: its tables with our results beside its numbers, and its studies."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

import search.paper
from search.errors import SearchError
from search.paper.definitions import paper_studies
from search.paper.definitions import paper_study as find_study
from service import paper_comparison
from service.api.dependencies import Database, Filters
from service.api.errors import ApiError
from service.database.queries import best_results
from service.models import ErrorView, PaperStudyView, PaperTableCellsView, PaperTableView

router = APIRouter(prefix="/v1/paper", tags=["paper"])


class StudyForm(StrEnum):
    """What to ask of a study of the paper."""

    FULL = "full"
    SMOKE = "smoke"


class FormFilter(Filters):
    """Which form of a study."""

    form: StudyForm = Field(
        default=StudyForm.FULL, description="smoke: in small, to see that it runs: a tiny model, an epoch, few trials."
    )


@router.get("/tables")
def list_paper_tables(engine: Database) -> list[PaperTableView]:
    """The paper's result tables, in its order, with how many of their numbers have one of ours beside them."""
    return paper_comparison.table_list(best_results(engine))


@router.get("/tables/{table}", responses={404: {"model": ErrorView}})
def get_paper_table(engine: Database, table: str) -> PaperTableCellsView:
    """One of the paper's tables, cell by cell: its number, ours, and the difference."""
    if table not in search.paper.result_tables():
        known = ", ".join(search.paper.result_tables())
        raise ApiError(
            404,
            "paper_table_not_found",
            f"the paper has no result table '{table[:100]}'; known: {known}",
            hint="GET /v1/paper/tables lists them.",
        )
    return paper_comparison.table_view(table, best_results(engine))


@router.get("/studies")
def list_paper_studies() -> list[PaperStudyView]:
    """The studies that measure what the paper's tables report, in the order of the tables."""
    return [paper_comparison.study_view(study) for study in paper_studies().values()]


@router.get("/studies/{paper_study}", responses={404: {"model": ErrorView}})
def get_paper_study(paper_study: str, asked: Annotated[FormFilter, Query()]) -> PaperStudyView:
    """One of them with its definition, which POST /v1/studies takes as it is."""
    try:
        found = find_study(paper_study)
    except SearchError as error:
        hint = "GET /v1/paper/studies lists them."
        raise ApiError(404, "paper_study_not_found", str(error)[:2000], hint=hint) from None
    return paper_comparison.small_study(found) if asked.form is StudyForm.SMOKE else paper_comparison.full_study(found)
