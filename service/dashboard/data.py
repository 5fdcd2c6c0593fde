"""What the plots draw, as JSON or CSV: each plot's address is its data's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from search.analysis import finite_or_none
from service.api.dependencies import Database, Filters
from service.dashboard import curves, heat, history
from service.dashboard.attachments import as_csv
from service.dashboard.curves import Axis, RunChoice
from service.dashboard.lookup import find_search
from service.database import queries

router = APIRouter(prefix="/studies/{study}", include_in_schema=False)
Form = Literal["json", "csv"]


class CurveFilters(Filters):
    """Which curves."""

    runs: RunChoice = RunChoice.BEST
    axis: Axis = Axis.EPOCH
    metric: str | None = Field(default=None, max_length=100)


@router.get("/curves.{form}")
def get_curves(engine: Database, study: str, form: Form, filters: Annotated[CurveFilters, Query()]) -> Response:
    """Median and quartiles of the optimizers' learning curves."""
    view = queries.get_study_view(engine, study)
    standing = queries.comparison(engine, view.id)
    found = curves.study_curves(engine, view, standing, **filters.model_dump())
    return as_csv(curves.rows(found), name=f"{view.name}-curves") if form == "csv" else JSONResponse(asdict(found))


@router.get("/expected.csv")
def get_expected(engine: Database, study: str) -> Response:
    """Expected best of 1, 2, … trials by optimizer."""
    view = queries.comparison(engine, study)
    table: list[Sequence[Any]] = [("label", "trials", "expected_best")]
    for row in view.rows:
        table += [(row.label, n, value) for n, value in enumerate(row.expected_best, start=1)]
    return as_csv(table, name=f"{view.study}-expected-best")


@router.get("/searches/{label}/history.{form}")
def get_history(engine: Database, study: str, label: str, form: Form) -> Response:
    """The trials of one search."""
    view, search = find_search(engine, study, label)
    found = history.search_history(engine, view, search.label)
    return as_csv(history.rows(found), name=f"{view.name}-{label}") if form == "csv" else JSONResponse(asdict(found))


class HeatFilters(Filters):
    """Which two parameters."""

    x: str = Field(default="lr", max_length=100)
    y: str = Field(default="lambd", max_length=100)


@router.get("/searches/{label}/heat.{form}")
def get_heat(
    engine: Database, study: str, label: str, form: Form, filters: Annotated[HeatFilters, Query()]
) -> Response:
    """How good the places of two parameters are, from the complete trials around."""
    view, search = find_search(engine, study, label)
    found = heat.heat(history.search_history(engine, view, search.label), filters.x, filters.y)
    return as_csv(heat.rows(found), name=f"{view.name}-{label}-heat") if form == "csv" else JSONResponse(asdict(found))


@router.get("/trials/{label}/{number}/runs.{form}")
def get_runs(
    engine: Database, study: str, label: str, number: Annotated[int, Path(ge=0, lt=2**31)], form: Form
) -> Response:
    """The curves of a trial's runs, by epoch, in every metric."""
    trial = queries.get_trial(engine, study, label, number)
    points = {run.id: queries.get_curve(engine, study, run.id) for run in trial.runs}
    if form == "csv":
        names = sorted({name for found in points.values() for point in found for name in point.metrics})
        table: list[Sequence[Any]] = [("stage", "seed", "epoch", "step", "lr", "value", *names)]
        for run in trial.runs:
            for p in points[run.id]:
                metrics = (p.metrics.get(name) for name in names)
                table.append((run.stage, run.seed, p.epoch, p.step, p.lr, p.value, *metrics))
        return as_csv(table, name=f"{study}-{label}-{number}")
    return JSONResponse(
        [
            {
                "name": f"{run.stage}, seed {run.seed}",
                "epoch": [p.epoch for p in points[run.id]],
                "value": [finite_or_none(p.value) for p in points[run.id]],
                "metrics": {
                    name: [p.metrics.get(name) for p in points[run.id]]
                    for name in sorted({name for p in points[run.id] for name in p.metrics})
                },
            }
            for run in trial.runs
        ]
    )
