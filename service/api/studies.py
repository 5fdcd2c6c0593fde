"""Studies: submit, list, read, cancel, pause, resume, clone, delete."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import Engine

from search.definition import StudyDefinition
from search.named_spaces import with_space
from search.states import StudyState
from service.api.body import check_in_thread, read_json
from service.api.dependencies import Database, Filters, Limits, PageFilters
from service.api.errors import invalid_definition
from service.api.examples import CLONE
from service.api.invalid import definition_fields, query_fields
from service.api.once import RequestedOnce
from service.api.openapi import STUDY_BODY, json_body
from service.checkpoints import remove_checkpoints
from service.cloning import merged
from service.database import queries, studies
from service.database.idempotency import IdempotencyKey
from service.logs import driver_log
from service.models import CloneRequest, ErrorView, FieldError, Page, StudyChanges, StudyView
from service.settings import Quotas, Settings

router = APIRouter(prefix="/v1/studies", tags=["studies"])
Body = TypeVar("Body", bound=BaseModel)
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorView, "description": "The body is not a JSON object, or the Idempotency-Key is none."},
    409: {"model": ErrorView, "description": "Another study has this name."},
    413: {"model": ErrorView, "description": "The body is over the service's limit; by default 1 MiB."},
    415: {"model": ErrorView, "description": "The body is not sent as application/json."},
    422: {"model": ErrorView, "description": "A field breaks its rule; `fields` names field, value and rule."},
    429: {"model": ErrorView, "description": "As many studies are queued as the service takes."},
}


class StudyFilters(PageFilters):
    """Which studies to list."""

    state: StudyState | None = None
    task: str | None = Field(default=None, max_length=100, description="Name of the task.")
    optimizer: str | None = Field(default=None, max_length=100, description="Studies that search this optimizer.")
    name: str | None = Field(default=None, max_length=100, description="Studies whose name contains this, in any case.")
    tag: str | None = Field(default=None, max_length=40, description="Studies with this tag.")


class Submission(Filters):
    """How to take a study."""

    space: str | None = Field(
        default=None,
        max_length=100,
        description="Named space of every optimizer that names none. 'paper-best' also lets those with a space of "
        "their own begin with the paper's best settings.",
    )


@router.post("", status_code=201, openapi_extra=STUDY_BODY, responses={200: {"model": StudyView}, **_REFUSALS})
async def submit_study(
    engine: Database,
    limits: Limits,
    request: Request,
    response: Response,
    once: RequestedOnce,
    raw: Annotated[dict[str, Any], Depends(read_json)],
    asked: Annotated[Submission, Query()],
) -> StudyView:
    """Submit a study. 201 the first time, 200 for the same definition again, 409 for another under the same name."""
    wanted = raw if asked.space is None else with_space(raw, asked.space)
    definition = await check_in_thread(request, parse_definition, wanted)
    return await _create(engine, limits, response, definition, once)


@router.get("")
def list_studies(engine: Database, filters: Annotated[StudyFilters, Query()]) -> Page[StudyView]:
    """Studies, newest first."""
    return queries.list_studies(engine, **filters.model_dump())


@router.get("/{study}", responses={404: {"model": ErrorView}})
def get_study(engine: Database, study: str) -> StudyView:
    """A study by id or name: its state and how far each optimizer's search is."""
    return queries.get_study_view(engine, study)


@router.patch(
    "/{study}",
    openapi_extra=json_body(StudyChanges, example={"notes": "lr too high", "tags": ["baseline"]}),
    responses={404: {"model": ErrorView}, **{status: _REFUSALS[status] for status in (400, 413, 415, 422)}},
)
async def change_study(engine: Database, study: str, raw: Annotated[dict[str, Any], Depends(read_json)]) -> StudyView:
    """Change a study's notes and tags; what is left out stays as it is."""
    changes = _parsed(StudyChanges, raw)
    return await run_in_threadpool(studies.change_study, engine, study, changes)


@router.post("/{study}/cancel", responses={404: {"model": ErrorView}, 409: {"model": ErrorView}})
def cancel_study(engine: Database, study: str) -> StudyView:
    """Cancel a study: running trials are stopped, finished ones stay. 409 when it has ended already."""
    return studies.request_cancel(engine, study)


@router.post("/{study}/pause", responses={404: {"model": ErrorView}, 409: {"model": ErrorView}})
def pause_study(engine: Database, study: str) -> StudyView:
    """Pause a study: running trials are checkpointed and stopped. 409 unless it is QUEUED or RUNNING."""
    return studies.request_pause(engine, study)


@router.post("/{study}/resume", responses={404: {"model": ErrorView}, 409: {"model": ErrorView}})
def resume_study(engine: Database, study: str) -> StudyView:
    """Go on with a paused study. 409 unless it is PAUSED."""
    return studies.request_resume(engine, study)


@router.post(
    "/{study}/clone",
    status_code=201,
    openapi_extra=json_body(CloneRequest, example=CLONE),
    responses={200: {"model": StudyView}, 404: {"model": ErrorView}, **_REFUSALS},
)
async def clone_study(
    engine: Database,
    limits: Limits,
    request: Request,
    response: Response,
    study: str,
    once: RequestedOnce,
    raw: Annotated[dict[str, Any], Depends(read_json)],
) -> StudyView:
    """Submit a study's definition under another name, with changes. Answers as submitting does."""
    asked = _parsed(CloneRequest, raw)
    old = await run_in_threadpool(queries.get_study_view, engine, study)
    wanted = merged(old.definition or {}, asked.changes) | {"name": asked.name}
    definition = await check_in_thread(request, parse_definition, wanted)
    return await _create(engine, limits, response, definition, once)


@router.delete(
    "/{study}", status_code=204, responses={404: {"model": ErrorView}, 409: {"model": ErrorView}}, response_model=None
)
def remove_study(engine: Database, request: Request, study: str) -> None:
    """Delete an ended study with all results and checkpoints. 409 until it has ended and its last run has stopped."""
    settings: Settings = request.app.state.settings
    study_id = studies.delete_study(engine, study)
    remove_checkpoints(settings.storage, study_id)
    with suppress(OSError):  # it may never have had one here
        driver_log(settings.home, study_id).unlink()


async def _create(
    engine: Engine, limits: Quotas, response: Response, definition: StudyDefinition, once: IdempotencyKey | None
) -> StudyView:
    check_size(definition, limits)
    view, created = await run_in_threadpool(
        studies.create_study, engine, definition, max_queued=limits.max_queued, key=once
    )
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/studies/{view.id}"
    return view


def _parsed(model: type[Body], raw: dict[str, Any]) -> Body:
    """The body as its model; raises ApiError 422 that names each field at fault."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise invalid_definition(query_fields(error.errors(), known=list(model.model_fields))) from None


def check_size(definition: StudyDefinition, limits: Quotas) -> None:
    """Refuse more trials than the service takes; raises ApiError."""
    n = definition.n_runs
    if n > limits.max_trials:
        rule = f"the study asks for {n} trials and confirm runs in all; this service takes at most {limits.max_trials}"
        n_trials = definition.budget.trials_per_optimizer
        raise invalid_definition([FieldError(field="budget.trials_per_optimizer", value=n_trials, rule=rule)])


def parse_definition(raw: dict[str, Any]) -> StudyDefinition:
    """The study that a JSON object defines.

    Raises:
        ApiError: 422, naming each field at fault with its value and rule.
    """
    try:
        return StudyDefinition.model_validate(raw)
    except ValidationError as error:
        raise invalid_definition(definition_fields(error, raw)) from None
