"""Tasks × optimizers: the best results of all studies, and the paper's tables with ours beside."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import JSONResponse

import search.paper
from service.api.dependencies import Database
from service.dashboard import matrix, paper_tables
from service.dashboard.attachments import as_csv, as_text
from service.dashboard.templating import page
from service.database.queries.standings import standings

router = APIRouter(include_in_schema=False)


@router.get("/results")
def results_page(request: Request, engine: Database) -> Response:
    """Everything measured here, then table by table beside the paper."""
    found = standings(engine)
    return page(
        request, "results.html", matrix=matrix.matrix(found), papers=paper_tables.paper_tables(found), n=len(found)
    )


@router.get("/results.{form}")
def get_results(engine: Database, form: Literal["csv", "json", "tex"]) -> Response:
    """The best of every task and optimizer as data, or the matrix as LaTeX."""
    found = standings(engine)
    match form:
        case "csv":
            return as_csv(matrix.rows(found), name="results")
        case "json":
            return JSONResponse([{**one.best.model_dump(mode="json"), "variant": one.variant} for one in found])
        case "tex":
            return as_text(matrix.to_latex(matrix.matrix(found)), name="results.tex")


@router.get("/results/{table}.{form}")
def get_paper_table(engine: Database, table: str, form: Literal["csv", "json", "tex", "md"]) -> Response:
    """One of the paper's tables with ours beside."""
    if table not in search.paper.result_tables():
        raise HTTPException(404)
    found = paper_tables.paper_table(table, standings(engine)).beside
    match form:
        case "csv":
            return as_csv(paper_tables.paper_rows(found), name=f"paper-{table}")
        case "json":
            return JSONResponse(_plain(asdict(found)))
        case "tex":
            return as_text(search.paper.to_latex(found), name=f"paper-{table}.tex")
        case "md":
            return as_text(search.paper.to_markdown(found), name=f"paper-{table}.md")


def _plain(value: Any) -> Any:
    """Mappings and tuples as JSON writes them."""
    if hasattr(value, "items"):
        return {key: _plain(child) for key, child in value.items()}
    return [_plain(child) for child in value] if isinstance(value, list | tuple) else value
