"""Pages on the results of several studies: the best of all and the paper's tables; across tasks; studies side by side.

Which result is the best is decided by `service.database.queries.best_results`; what the paper prints, and which of our
models counts as its, by `search.paper`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import groupby, takewhile
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy import Engine

import search.paper.tables
import tasks.registry
from admeta.client import formatting, studyfile
from admeta.client.models import (
    OurNumberView,
    PaperCellView,
    PaperTableCellsView,
    ProfileResultView,
    ProfilesView,
    RecommendRequest,
)
from admeta.client.terminal.tables import across, catalog
from admeta.client.text import latex, markdown
from admeta.registry import known_optimizers
from search.paper.comparison import compare_table
from search.states import Direction, TimeUnit
from service.api.requests import Database, Filters
from service.api.results import ProfileFilters, RecipePrefix, ShortName, check_recommendable, studies_to_compare
from service.dashboard import pages
from service.dashboard.pages import as_csv, as_text, page
from service.dashboard.plots import curve_rows
from service.database import queries
from service.database.queries import Axis, BestResult

router = APIRouter(include_in_schema=False)


@router.get("/results")
def results_page(request: Request, engine: Database) -> Response:
    """All results measured here, then each table of the paper with our results."""
    found = queries.best_results(engine)
    return page(request, "results.html", matrix=matrix(found), papers=paper_tables(found), n=len(found))


@router.get("/results.{form}")
def get_results(engine: Database, form: Literal["csv", "json", "tex"]) -> Response:
    """The best of every task and optimizer as data, or the matrix as LaTeX."""
    found = queries.best_results(engine)
    match form:
        case "csv":
            return as_csv(_result_rows(found), name="results")
        case "json":
            return JSONResponse([{**one.best.model_dump(mode="json"), "variant": one.variant} for one in found])
        case "tex":
            return as_text(to_latex(matrix(found)), name="results.tex")


@router.get("/results/{table}.{form}")
def get_paper_table(engine: Database, table: str, form: Literal["csv", "json", "tex", "md"]) -> Response:
    """One of the paper's tables with our results."""
    if table not in search.paper.tables.result_tables():
        raise HTTPException(404)
    found = compare_table(table, queries.measured(queries.best_results(engine)))
    match form:
        case "csv":
            return as_csv(paper_rows(found), name=f"paper-{table}")
        case "json":
            return JSONResponse(found.model_dump(mode="json"))
        case "tex":
            return as_text(latex(*catalog.paper_rows(found)), name=f"paper-{table}.tex")
        case "md":
            return as_text(markdown(*catalog.paper_rows(found)), name=f"paper-{table}.md")


_PAPERS_ORDER = ("sgd", "sgdm", "admetas", "adam", "adamw", "radam", "ranger", "adabelief", "admetar")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A result in a cell, with what its details show. `id` is the details' own within the page."""

    id: str
    result: BestResult
    code: str
    leads: bool


@dataclass(frozen=True, kw_only=True)
class MatrixRow:
    """One recipe; a cell an optimizer, None where nothing was measured. Results are only compared within a recipe.

    Attributes:
        apart: the beginning of the recipe's hash where another row has the same task, model, epochs and metric.
    """

    task: str
    model: str | None
    epochs: int | None
    recipe: str | None
    metric: str
    direction: str
    cells: list[Entry | None]
    apart: str | None


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Tasks by optimizers."""

    optimizers: list[str]
    rows: list[MatrixRow]


def matrix(found: Sequence[BestResult]) -> Matrix:
    """The main results; variants that the paper calls ablations are in its table of them."""
    main = [one for one in found if one.variant is None]
    main.sort(key=lambda one: tuple((part is not None, part or 0) for part in _row_key(one)))
    names = {one.best.optimizer for one in main}
    order = [*_PAPERS_ORDER, *known_optimizers()]
    optimizers = sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))
    n_alike = Counter((task, model, epochs, metric) for task, model, epochs, _, metric, _ in set(map(_row_key, main)))
    rows: list[MatrixRow] = []
    for (task, model, epochs, recipe, metric, direction), group in groupby(main, key=_row_key):
        by_name = {one.best.optimizer: one for one in group}
        cells = [entry(by_name.get(name), place=f"m{len(rows)}-{j}") for j, name in enumerate(optimizers)]
        rows.append(
            MatrixRow(
                task=task,
                model=model,
                epochs=epochs,
                recipe=recipe,
                metric=metric,
                direction=direction,
                cells=_led(cells, direction),
                apart=recipe[:8] if recipe and n_alike[task, model, epochs, metric] > 1 else None,
            )
        )
    return Matrix(optimizers=optimizers, rows=rows)


def _row_key(one: BestResult) -> tuple[str, str | None, int | None, str | None, str, str]:
    best = one.best
    return best.task, best.model, best.epochs, best.recipe, best.metric, best.direction


def entry(result: BestResult | None, *, place: str) -> Entry | None:
    """A cell of the result; `place` is its own within the page."""
    if result is None:
        return None
    code = result.best.code
    return Entry(id=f"cell-{place}", result=result, code=code, leads=False)


def _led(cells: list[Entry | None], direction: str) -> list[Entry | None]:
    """The cells, the best of at least two marked; if there are confirmed results, only they compete.

    A mean of seeds of which others failed never leads.
    """
    there = [cell for cell in cells if cell is not None]
    confirmed = [cell for cell in there if cell.result.best.evidence == "confirmed"]
    single = [cell for cell in there if not cell.result.best.validation.n_failed]
    values = {cell.id: value for cell in confirmed or single if (value := shown_value(cell.result)) is not None}
    if len(there) < 2 or not values:
        return cells
    best = Direction(direction).best(values.values())
    return [
        cell and Entry(id=cell.id, result=cell.result, code=cell.code, leads=values.get(cell.id) == best)
        for cell in cells
    ]


def shown_value(result: BestResult) -> float | None:
    """Validation: the mean over the confirm seeds, or what the search saw."""
    mean = result.best.validation.mean
    return result.best.search_value if mean is None else mean


def _result_rows(found: Sequence[BestResult]) -> Iterator[Sequence[Any]]:
    """All results as a table, with its header."""
    yield (
        "task", "model", "epochs", "recipe", "metric", "direction", "optimizer", "variant", "evidence", "validation",
        "validation_std", "n", "test", "test_std", "study", "label", "trial", "settings",
    )  # fmt: skip
    for one in found:
        best = one.best
        yield (
            best.task, best.model, best.epochs, best.recipe, best.metric, best.direction, best.optimizer, one.variant,
            best.evidence, shown_value(one), best.validation.std, best.validation.n, best.test.mean, best.test.std,
            best.study, best.label, best.trial, formatting.settings(best.chosen),
        )  # fmt: skip


def to_latex(table: Matrix) -> str:
    """The matrix as a booktabs table: validation mean ± standard deviation, the best of a row in bold."""
    return latex(
        ["task", *table.optimizers],
        [[_row_title(row), *map(_cell_text, row.cells)] for row in table.rows],
        bold={(i, j) for i, row in enumerate(table.rows) for j, cell in enumerate(row.cells, 1) if cell and cell.leads},
    )


def _row_title(row: MatrixRow) -> str:
    epochs = [] if row.epochs is None else [f"{row.epochs} epochs"]
    apart = [f"recipe {row.apart}"] if row.apart else []
    return " ".join([row.task, *([row.model] if row.model else []), *epochs, *apart, row.metric])


def _cell_text(cell: Entry | None) -> str:
    value = None if cell is None else shown_value(cell.result)
    if cell is None or value is None:
        return "–"
    validation = cell.result.best.validation
    text = f"{value:.4f}" if validation.std is None else f"{value:.4f} ± {validation.std:.4f}"
    return f"{text} ({formatting.n_runs(validation)})" if validation.n_failed else text


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper for a page. `spans` are the upper headings with their widths; None where there is one level.

    Rows are (headings with the rows each spans, 0 where the heading above continues; cells with the details of ours).
    `ours` marks columns with a result of ours, which are two wide.
    """

    comparison: PaperTableCellsView
    spans: list[tuple[str, int]] | None
    heads: list[str]
    ours: list[bool]
    rows: list[tuple[list[tuple[str, int]], list[tuple[PaperCellView, Entry | None]]]]


def paper_tables(found: Sequence[BestResult]) -> list[PaperTable]:
    """All the paper's result tables, with our test results in them."""
    return [paper_table(name, found) for name in search.paper.tables.result_tables()]


def paper_table(name: str, found: Sequence[BestResult]) -> PaperTable:
    """One of them; the paper's numbers are of test sets (GLUE, SQuAD: development sets), so ours are too."""
    table = compare_table(name, queries.measured(found))
    of_trial = {(one.best.study, one.best.label, one.best.trial): one for one in found}

    def details(ours: OurNumberView | None, place: str) -> Entry | None:
        return None if ours is None else entry(of_trial[ours.study, ours.label, ours.trial], place=place)

    cells = [
        [(cell, details(cell.ours, f"{name}-{i}-{j}")) for j, cell in enumerate(row)]
        for i, row in enumerate(table.cells)
    ]
    two_levels = any(len(column) > 1 for column in table.columns)
    ours = [any(row[j].ours for row in table.cells) for j in range(len(table.columns))]
    spans = [
        (head, sum(2 if ours[j] else 1 for j, _ in group))
        for head, group in groupby(enumerate(table.columns), key=lambda pair: pair[1][0])
    ]
    return PaperTable(
        comparison=table,
        spans=spans if two_levels else None,
        heads=[column[-1] for column in table.columns],
        ours=ours,
        rows=list(zip(_row_heads(table.rows), cells, strict=True)),
    )


def _row_heads(rows: Sequence[Sequence[str]]) -> list[list[tuple[str, int]]]:
    heads: list[list[tuple[str, int]]] = []
    for i, row in enumerate(rows):
        if len(row) == 1:
            heads.append([(row[0], 1)])
            continue
        goes_on = i > 0 and rows[i - 1][0] == row[0]
        same = len(list(takewhile(lambda other: other[0] == row[0], rows[i:])))  # noqa: B023  (used at once)
        heads.append([(row[0], 0 if goes_on else same), (" ".join(row[1:]), 1)])
    return heads


def paper_rows(table: PaperTableCellsView) -> Iterator[Sequence[Any]]:
    """A table of the paper as rows of cells, with a header; numbers in our unit: fractions and seconds."""
    yield ("row", "column", "paper", "paper_std", "ours", "ours_std", "ours_n")
    for head, row in zip(table.rows, table.cells, strict=True):
        for column, cell in zip(table.columns, row, strict=True):
            paper, ours = cell.paper, cell.ours
            yield (
                " ".join(head), " ".join(filter(None, column)), paper and paper.value, paper and paper.std,
                ours and ours.mean, ours and ours.std, ours and ours.n,
            )  # fmt: skip


_FILLED = BeforeValidator(lambda values: [value for value in values if value != ""])  # a form sends "" for any


HOURS = 1.0  # that a recommendation is asked for where the form says none


class RecommendFilters(Filters):
    """What a recommendation is asked for, as a form sends it."""

    task: Annotated[str | None, BeforeValidator(lambda value: value or None)] = Field(default=None, max_length=100)
    model: Annotated[str | None, BeforeValidator(lambda value: value or None)] = Field(default=None, max_length=200)
    gpu_hours: Annotated[float, BeforeValidator(lambda value: HOURS if value == "" else value)] = Field(
        default=HOURS, ge=0, le=1e6, allow_inf_nan=False
    )


@cache
def _askable_tasks() -> list[str]:
    """The tasks that their name and model describe; others have fields without a default, such as a data folder."""
    return sorted(
        name
        for name, info in tasks.registry.all_tasks().items()
        if not any(
            field.is_required() for key, field in info.config.model_fields.items() if key not in ("name", "model")
        )
    )


@router.get("/recommend")
def recommend_page(request: Request, engine: Database, filters: Annotated[RecommendFilters, Query()]) -> Response:
    """What to train with now, how sure that is, and what hours are best spent on; with a form to ask again."""
    found = None
    if filters.task is not None:
        asked = RecommendRequest(task=filters.task, model=filters.model, gpu_hours=filters.gpu_hours)
        check_recommendable(asked)
        found = queries.recommendation(engine, asked)
    return page(
        request,
        "recommend.html",
        found=found,
        filters=filters,
        tasks=_askable_tasks(),
        plan=studyfile.dump(found.plan) if found and found.plan else None,
    )


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
        groups=across.group_numbers(found),
        left_out=across.left_out_by_reason(found),
        results={(one.recipe, one.optimizer): one for one in found.results},
    )


@router.get("/profiles.csv")
def get_profiles(engine: Database, filters: Annotated[ShownFilters, Query()]) -> Response:
    """What each optimizer reached on each task."""
    return as_csv(_profile_rows(queries.profiles(engine, filters.choice(), time=filters.time)), name="profiles")


def _query(filters: ShownFilters) -> str:
    """The filters as the end of an address, with its question mark."""
    chosen = urlencode(filters.model_dump(mode="json", exclude_defaults=True, exclude={"hide"}), doseq=True)
    return f"?{chosen}" if chosen else ""


def _profile_rows(found: ProfilesView) -> Iterator[Sequence[Any]]:
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
        return formatting.searched_in("", value)
    return "–" if value is None else pages.value(value)
