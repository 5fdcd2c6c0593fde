"""Optimizers across tasks: performance profiles, scores, and mean ranks with their critical difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator, Field

import tasks.registry
from admeta.client.models import ProfileResultView, ProfilesView
from admeta.client.terminal import tables
from search.states import TimeUnit
from service.api.requests import Database
from service.api.results import ProfileFilters, RecipePrefix, ShortName
from service.dashboard.pages import as_csv, page
from service.database import queries

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
