"""The explorer: its page, and what it draws as JSON or CSV."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from service.dashboard import explorer
from service.dashboard.attachments import as_csv
from service.dashboard.explorer import Choice
from service.dashboard.templating import page
from tasks.synthetic.surfaces import SURFACES

router = APIRouter(include_in_schema=False)


@router.get("/explorer")
def explorer_page(request: Request, choice: Annotated[Choice, Query()]) -> Response:
    """EMA against DEMA as a tool; the address holds the choice."""
    return page(
        request,
        "explorer.html",
        choice=choice,
        surfaces={name: (surface.title, explorer.SENSIBLE[name]) for name, surface in SURFACES.items()},
        slow_steps=list(explorer.SLOW_STEPS),
        titles=list(explorer.optimizers(choice)),
        max_steps=explorer.MAX_STEPS,
    )


@router.get("/explorer.json")
def get_explored(choice: Annotated[Choice, Query()]) -> Response:
    """Walks, gains, responses and the stable region."""
    return JSONResponse(explorer.explore(choice))


@router.get("/explorer.csv")
def get_walks(choice: Annotated[Choice, Query()]) -> Response:
    """The walks, a row a step."""
    return as_csv(explorer.rows(explorer.explore(choice)), name="explorer-walks")
