"""Pages about several studies: optimizers across tasks (profiles, scores, mean ranks), and studies side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy import Engine

import tasks.registry
from admeta.client.models import ProfileResultView, ProfilesView
from admeta.client.terminal import tables
from search.states import TimeUnit
from service.api.requests import Database
from service.api.results import ProfileFilters, RecipePrefix, ShortName, studies_to_compare
from service.dashboard import pages
from service.dashboard.pages import as_csv, page
from service.dashboard.plots import curve_rows
from service.database import queries
from service.database.queries import Axis

router = APIRouter(include_in_schema=False)
_FILLED = BeforeValidator(lambda values: [value for value in values if value != ""])  # a form sends "" for any


class ShownFilters(ProfileFilters):
    """The filters of GET /v1/profiles, as a form sends them."""

    study: Annotated[list[ShortName], _FILLED] = Field(default=[], max_length=200)
    recipe: Annotated[list[RecipePrefix], _FILLED] = Field(default=[], max_length=200)
    task: Annotated[list[ShortName], _FILLED] = Field(default=[], max_length=200)
    tag: Annotated[str | None, BeforeValidator(lambda value: value or None)] = Field(default=None, max_length=40)
    optimizer: Annotated[list[ShortName], _FILLED] = Field(default=[], max_length=100)
    hide: list[str] = Field(default=[], max_length=100)  # series that the reader hid; kept by the page's script


@router.get("/profiles")
def profiles_page(request: Request, engine: Database, filters: Annotated[ShownFilters, Query()]) -> Response:
    """How optimizers compare over all tasks."""
    found = queries.profiles(engine, filters.choice(), time=filters.time)
    left = {kind: [one.name for one in found.left_out if one.kind == kind] for kind in ("optimizer", "study")}
    studies = {name for task in found.tasks for name in task.studies}
    return page(
        request,
        "profiles.html",
        found=found,
        filters=filters,
        query=_query(filters),
        units=[unit.value for unit in TimeUnit],
        tasks=sorted(tasks.registry.all_tasks()),
        choices={
            "optimizer": sorted({one.name for one in found.optimizers} | {*left["optimizer"], *filters.optimizer}),
            "study": sorted(studies | {*left["study"], *filters.study}),
        },
        groups=tables.group_numbers(found),
        left_out=tables.left_out_by_reason(found),
        results={(one.recipe, one.optimizer): one for one in found.results},
    )


@router.get("/profiles.csv")
def get_results(engine: Database, filters: Annotated[ShownFilters, Query()]) -> Response:
    """What each optimizer reached on each task."""
    return as_csv(_rows(queries.profiles(engine, filters.choice(), time=filters.time)), name="profiles")


def _query(filters: ShownFilters) -> str:
    """The filters as the end of an address, with its question mark."""
    chosen = urlencode(filters.model_dump(mode="json", exclude_defaults=True, exclude={"hide"}), doseq=True)
    return f"?{chosen}" if chosen else ""


def _rows(found: ProfilesView) -> Iterator[Sequence[Any]]:
    """The results as a table, with its header."""
    names = list(ProfileResultView.model_fields)
    yield names
    for one in found.results:
        yield [getattr(one, name) for name in names]


class Chosen(BaseModel):
    """Which studies. What else is in the address is the scripts': `address.js`."""

    model_config = ConfigDict(frozen=True)

    study: list[str] = []


class ChosenCurves(Chosen):
    """Which curves of them."""

    axis: Axis = Axis.EPOCH
    metric: str | None = Field(default=None, max_length=100)


@router.get("/compare")
def compare_page(request: Request, engine: Database, chosen: Annotated[Chosen, Query()]) -> Response:
    """Two to eight studies: results, curves of the best, how the definitions differ, verdicts."""
    found = queries.compare_studies(engine, studies_to_compare(engine, chosen.study))
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


@router.get("/compare/curves.{form}")
def get_best_curves(
    engine: Database, form: Literal["json", "csv"], chosen: Annotated[ChosenCurves, Query()]
) -> Response:
    """Median and quartiles of the learning curves of each study's best."""
    views = [queries.get_study_view(engine, study) for study in studies_to_compare(engine, chosen.study)]
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
