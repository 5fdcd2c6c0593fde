"""The page that shows studies side by side, and the data of its plot."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Engine

from admeta.client.terminal import tables
from service.api.errors import ApiError
from service.api.requests import Database
from service.api.results import MAX_COMPARED
from service.dashboard import pages
from service.dashboard.pages import as_csv, page
from service.dashboard.plots import curve_rows
from service.database import queries
from service.database.queries import Axis

router = APIRouter(prefix="/compare", include_in_schema=False)


class Chosen(BaseModel):
    """Which studies. What else is in the address is the scripts': `address.js`."""

    model_config = ConfigDict(frozen=True)

    study: list[str] = []

    @property
    def studies(self) -> list[str]:
        """Ids or names, each once.

        Raises:
            ApiError: they are not two to eight.
        """
        found = list(dict.fromkeys(self.study))
        if not 2 <= len(found) <= MAX_COMPARED:
            raise ApiError(
                422,
                "studies_to_compare",
                f"{len(found)} studies are chosen; two to {MAX_COMPARED} can be compared.",
                hint="Choose them in the list of studies, by the boxes before their names.",
            )
        return found


class ChosenCurves(Chosen):
    """Which curves of them."""

    axis: Axis = Axis.EPOCH
    metric: str | None = Field(default=None, max_length=100)


@router.get("")
def compare_page(request: Request, engine: Database, chosen: Annotated[Chosen, Query()]) -> Response:
    """Two to eight studies: results, curves of the best, how the definitions differ, verdicts."""
    found = queries.compare_studies(engine, chosen.studies)
    labels = list(dict.fromkeys(row.label for study in found.studies for row in study.rows))
    spaces = {study.id: _searched(engine, study.id) for study in found.studies}
    return page(
        request,
        "compare.html",
        found=found,
        rows={label: [next((r for r in s.rows if r.label == label), None) for s in found.studies] for label in labels},
        spaces=spaces,
        told=_told,
    )


@router.get("/curves.{form}")
def get_best_curves(
    engine: Database, form: Literal["json", "csv"], chosen: Annotated[ChosenCurves, Query()]
) -> Response:
    """Median and quartiles of the learning curves of each study's best."""
    views = [queries.get_study_view(engine, study) for study in chosen.studies]
    studies = [(view, queries.comparison(engine, view.id)) for view in views]
    found = queries.best_curves(engine, studies, axis=chosen.axis, metric=chosen.metric)
    return as_csv(curve_rows(found), name="studies-curves") if form == "csv" else JSONResponse(asdict(found))


def _searched(engine: Engine, study: str) -> dict[str, dict[str, Any]]:
    """By label, the search space of each optimizer of a study."""
    definition = queries.get_study_view(engine, study).definition or {}
    return {one["label"]: one["space"] for one in definition.get("optimizers", [])}


def _told(value: Any) -> str:
    """A field of a definition in words."""
    if isinstance(value, dict) and "type" in value:
        return tables.searched_in("", value)
    return "–" if value is None else pages.value(value)
