"""Runs: what each trained, where, and what it printed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from admeta.client.models import ErrorView, Page, PointView, StudyRunView
from admeta.client.text import without_secrets
from search import run_log
from search.states import FailureKind, RunState, Stage
from service.api.requests import Database, Filters, PageFilters
from service.database import queries
from service.database.errors import RunNotFoundError
from service.settings import Settings
from tasks.engine.folders import inside

router = APIRouter(prefix="/v1", tags=["runs"], responses={404: {"model": ErrorView}})
RunId = Annotated[int, Path(ge=1, lt=2**63)]
ATTEMPT, OFFSET, ENDED = "X-Log-Attempt", "X-Log-Offset", "X-Log-Ended"
_LOG: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Text, in whole lines while the attempt runs. To follow it, ask again with `offset` from "
        f"{OFFSET} until {ENDED} is true.",
        "content": {
            "text/plain": {"schema": {"type": "string"}, "example": "2026-01-01 12:00:00 epoch 1, step 9: …\n"}
        },
        "headers": {
            ATTEMPT: {"description": "The attempt whose log it is.", "schema": {"type": "integer"}},
            OFFSET: {
                "description": "Where the next part begins, in bytes since the attempt began.",
                "schema": {"type": "integer"},
            },
            ENDED: {"description": "true: nothing more will be added.", "schema": {"type": "string"}},
        },
    }
}


class RunFilters(PageFilters):
    """Which runs to list, and in which order."""

    label: str | None = Field(default=None, max_length=100, description="One optimizer's search.")
    trial: int | None = Field(default=None, ge=0, lt=2**31, description="Trials of this number.")
    stage: Stage | None = None
    state: RunState | None = None
    failure: FailureKind | None = None
    order: Literal["id", "best"] = Field(
        default="id", description="best: best validation value first, PRUNED and FAIL last."
    )


class LogFilters(Filters):
    """Which part of the log."""

    attempt: int | None = Field(default=None, ge=1, lt=2**31, description="Default: the latest.")
    offset: int = Field(
        default=0, ge=0, lt=2**63, description=f"Where to begin: {OFFSET} of the answer before. 0: all that is stored."
    )
    tail: int | None = Field(default=None, ge=0, le=1_000_000, description="Only so many lines, the last ones.")


@router.get("/studies/{study}/runs")
def list_runs(engine: Database, study: str, filters: Annotated[RunFilters, Query()]) -> Page[StudyRunView]:
    """A study's runs, of the search stage and of the confirm stage."""
    return queries.list_runs(engine, study, **filters.model_dump())


@router.get("/runs/{run}")
def get_run(engine: Database, request: Request, run: RunId) -> StudyRunView:
    """One run with its attempts."""
    view = queries.get_run(engine, run)
    logs = run_log.logged_attempts(_folder(request, queries.run_files(engine, run).folder))
    return view.model_copy(update={"logs": logs})


@router.get("/runs/{run}/curve")
def get_run_curve(engine: Database, run: RunId) -> list[PointView]:
    """A run's evaluations, first to last."""
    return queries.get_run_curve(engine, run)


@router.get("/runs/{run}/logs", response_class=Response, response_model=None, responses=_LOG)
def get_run_log(engine: Database, request: Request, run: RunId, filters: Annotated[LogFilters, Query()]) -> Response:
    """What an attempt of the run printed, tracebacks included; the last 1 MiB is kept. Secrets are replaced by ***.

    Before the run's first attempt the answer is empty.
    """
    place = queries.run_files(engine, run)
    attempt = filters.attempt or max(place.n_attempts, 1)
    if attempt > max(place.n_attempts, 1):
        raise RunNotFoundError(
            f"run {run} has {place.n_attempts} attempts; there is no attempt {attempt}.",
            hint="Leave `attempt` out for the latest.",
        )
    ended = place.n_attempts > 0 and place.running != attempt
    try:
        folder = _folder(request, place.folder)
        part = run_log.read_log(folder, attempt, offset=filters.offset, tail=filters.tail, whole=ended)
    except OSError as error:
        if ended:
            raise RunNotFoundError(
                f"attempt {attempt} of run {run} has ended, and its log cannot be read: {error.strerror or error}.",
                hint="Workers write logs next to checkpoints, in the service's --storage: all must see this folder.",
            ) from None
        part = run_log.Excerpt(text="", start=filters.offset, end=filters.offset)
    headers = {ATTEMPT: str(attempt), OFFSET: str(part.end), ENDED: "true" if ended else "false"}
    return Response(without_secrets(part.text), media_type="text/plain; charset=utf-8", headers=headers)


def _folder(request: Request, run_folder: str) -> str:
    settings: Settings = request.app.state.settings
    return inside(settings.storage, run_folder)
