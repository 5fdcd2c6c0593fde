"""Studies, trials and runs: submit, list, read, change, cancel, pause, resume, extend, clone, compare, delete; logs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field, ValidationError
from sqlalchemy import Engine

from admeta.client.models import (
    CloneRequest,
    ComparisonView,
    ErrorView,
    ExtendRequest,
    FieldError,
    Page,
    PointView,
    StudyChanges,
    StudyRunView,
    StudyView,
    TrialView,
)
from admeta.client.text import without_secrets
from admeta.errors import ImportPathError
from admeta.imports import check_allowed
from search import run_log
from search.definition import StudyDefinition, expand_names
from search.extension import extended
from search.named_spaces import with_space
from search.states import FailureKind, RunState, SignificanceTest, Stage, StudyState
from service.api.errors import invalid_definition
from service.api.invalid import definition_fields, query_fields
from service.api.openapi import CLONE, EXTEND, STUDY_BODY, json_body, refusals
from service.api.requests import (
    Database,
    Filters,
    JsonBody,
    Limits,
    PageFilters,
    RequestKey,
    caller,
    check_in_thread,
    parse_body,
)
from service.database import extending, queries, studies
from service.database.errors import RunNotFoundError
from service.database.idempotency import IdempotencyKey
from service.logs import driver_log
from service.settings import Quotas, Settings
from tasks.engine.folders import inside, open_folder

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/studies", tags=["studies"])
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": ErrorView}}
trials = APIRouter(prefix="/v1/studies/{study}", tags=["trials"], responses=_NOT_FOUND)
_NOT_NOW = {**_NOT_FOUND, 409: {"model": ErrorView}}
TrialNumber = Annotated[int, Path(ge=0, lt=2**31)]


class StudyFilters(PageFilters):
    """Which studies to list."""

    state: StudyState | None = None
    task: str | None = Field(default=None, max_length=100, description="Name of the task.")
    optimizer: str | None = Field(default=None, max_length=100, description="Studies that search this optimizer.")
    name: str | None = Field(default=None, max_length=100, description="Studies whose name contains this, in any case.")
    tag: str | None = Field(default=None, max_length=40, description="Studies with this tag.")


class TrialFilters(PageFilters):
    """Which trials to list, and in which order."""

    label: str | None = Field(default=None, max_length=100, description="One optimizer's search.")
    state: RunState | None = None
    order: Literal["number", "best"] = Field(
        default="number", description="best: best validation value first, PRUNED and FAIL last."
    )


class Submission(Filters):
    """How to read a submitted study."""

    space: str | None = Field(
        default=None,
        max_length=100,
        description="Named space of every optimizer that names none. 'paper-best' also lets those with a space of "
        "their own begin with the paper's best settings.",
    )


@router.post(
    "",
    status_code=201,
    openapi_extra=STUDY_BODY,
    responses={200: {"model": StudyView}, **refusals(400, 409, 413, 415, 422, 429)},
)
async def submit_study(
    engine: Database,
    limits: Limits,
    request: Request,
    response: Response,
    key: RequestKey,
    raw: JsonBody,
    asked: Annotated[Submission, Query()],
) -> StudyView:
    """Submit a study. 201 the first time, 200 for the same definition again, 409 for another under the same name."""
    wanted = raw if asked.space is None else with_space(expand_names(raw), asked.space)
    definition = await check_in_thread(request, parse_definition, wanted)
    return await _create(engine, limits, request, response, definition, key)


@router.get("")
def list_studies(engine: Database, filters: Annotated[StudyFilters, Query()]) -> Page[StudyView]:
    """Studies, newest first."""
    return queries.list_studies(engine, **filters.model_dump())


@router.get("/{study}", responses=_NOT_FOUND)
def get_study(engine: Database, study: str) -> StudyView:
    """A study by id or name: its state, how far each optimizer's search is, and how long it will still take."""
    view = queries.get_study_view(engine, study)
    left = queries.time_left(engine, view)
    return view if left is None else view.model_copy(update={"remaining_s": round(left.seconds)})


@router.patch(
    "/{study}",
    openapi_extra=json_body(StudyChanges, example={"notes": "lr too high", "tags": ["baseline"]}),
    responses={**_NOT_FOUND, **refusals(400, 413, 415, 422)},
)
async def change_study(engine: Database, study: str, raw: JsonBody) -> StudyView:
    """Change a study's notes and tags; fields that are left out stay as they are."""
    changes = parse_body(StudyChanges, raw)
    return await run_in_threadpool(studies.change_study, engine, study, changes)


@router.post("/{study}/cancel", responses=_NOT_NOW)
def cancel_study(engine: Database, study: str) -> StudyView:
    """Cancel a study: running trials are stopped, finished ones stay. 409 when it has ended already."""
    return studies.request_cancel(engine, study)


@router.post("/{study}/pause", responses=_NOT_NOW)
def pause_study(engine: Database, study: str) -> StudyView:
    """Pause a study: running trials are checkpointed and stopped. 409 unless it is QUEUED or RUNNING."""
    return studies.request_pause(engine, study)


@router.post("/{study}/resume", responses=_NOT_NOW)
def resume_study(engine: Database, study: str) -> StudyView:
    """Resume a paused study. 409 unless it is PAUSED."""
    return studies.request_resume(engine, study)


@router.post(
    "/{study}/clone",
    status_code=201,
    openapi_extra=json_body(CloneRequest, example=CLONE),
    responses={200: {"model": StudyView}, **_NOT_FOUND, **refusals(400, 409, 413, 415, 422, 429)},
)
async def clone_study(
    engine: Database,
    limits: Limits,
    request: Request,
    response: Response,
    study: str,
    key: RequestKey,
    raw: JsonBody,
) -> StudyView:
    """Submit a study's definition under another name, with changes. The answers are those of submitting."""
    asked = parse_body(CloneRequest, raw)
    old = await run_in_threadpool(queries.get_study_view, engine, study)
    wanted = merged(old.definition or {}, asked.changes) | {"name": asked.name}
    definition = await check_in_thread(request, parse_definition, wanted)
    return await _create(engine, limits, request, response, definition, key)


@router.post(
    "/{study}/extend",
    openapi_extra=json_body(ExtendRequest, example=EXTEND),
    responses={
        **_NOT_FOUND,
        **refusals(400, 413, 415, 422, 429),
        409: {"model": ErrorView, "description": "The study has not ended, or its last runs are still being stopped."},
    },
)
async def extend_study(
    engine: Database, limits: Limits, request: Request, study: str, key: RequestKey, raw: JsonBody
) -> StudyView:
    """Let a study that has ended go on, with more trials, more seeds or further optimizers.

    No trial is repeated and none is lost; what was cancelled is done after all. The best trials are chosen again among
    all, and confirm runs of those that stay chosen are kept. 409 unless it is COMPLETED, FAILED or CANCELLED.
    """
    asked = parse_body(ExtendRequest, raw)
    return await check_in_thread(request, partial(extend, engine, limits, study, asked, by=caller(request), key=key))


@router.delete("/{study}", status_code=204, responses=_NOT_NOW, response_model=None)
def remove_study(engine: Database, request: Request, study: str) -> None:
    """Delete an ended study with all results and checkpoints. 409 until it has ended and its last run has stopped."""
    settings: Settings = request.app.state.settings
    study_id = studies.delete_study(engine, study)
    folder = inside(settings.storage, study_id)
    try:
        open_folder(folder).remove_all()
    except OSError as error:
        log.warning("study %s is deleted, but its checkpoints in %s are not: %s; remove them", study_id, folder, error)
    with suppress(OSError):  # it may have run on another machine only
        driver_log(settings.home, study_id).unlink()


@trials.get("/trials")
def list_trials(engine: Database, study: str, filters: Annotated[TrialFilters, Query()]) -> Page[TrialView]:
    """Trials with their runs."""
    return queries.list_trials(engine, study, **filters.model_dump())


@trials.get("/trials/{label}/{number}")
def get_trial(engine: Database, study: str, label: str, number: TrialNumber) -> TrialView:
    """One trial with its runs and the curve of its search run."""
    return queries.get_trial(engine, study, label, number)


@trials.post("/trials/{label}/{number}/cancel", responses={409: {"model": ErrorView}})
def cancel_trial(engine: Database, study: str, label: str, number: TrialNumber) -> TrialView:
    """Cancel one trial: its worker is stopped, the study continues. 409 when none of its runs waits or trains."""
    return studies.request_cancel_trial(engine, study, label, number)


@trials.get("/comparison")
def get_comparison(
    engine: Database,
    study: str,
    test: Annotated[
        SignificanceTest,
        Query(description="moderated shares variances among optimizers; wilcoxon pairs runs by seed."),
    ] = SignificanceTest.MODERATED,
) -> ComparisonView:
    """The study's optimizers, best first: validation selects, test is only reported, both over the confirm seeds."""
    return queries.comparison(engine, study, test=test)


def extend(
    engine: Engine,
    limits: Quotas,
    study: str,
    asked: ExtendRequest,
    *,
    by: str | None,
    key: IdempotencyKey | None = None,
) -> StudyView:
    """Extend a study, after its extended definition was checked as a new one's is; raises ApiError.

    The request of its last extension asks for nothing more.
    """
    view = queries.get_study_view(engine, study)
    last = view.extensions[-1].request if view.extensions else None
    wanted = ExtendRequest() if last == asked.model_dump(mode="json", exclude_defaults=True) else asked
    before = view.definition or {}
    definition = _extended_definition(before, wanted)
    check_limits(definition, limits)
    return extending.extend_study(
        engine, view.id, definition, before=before, request=asked, by=by, max_queued=limits.max_queued, key=key
    )


def _extended_definition(before: Mapping[str, Any], asked: ExtendRequest) -> StudyDefinition:
    try:
        raw = extended(parse_definition(dict(before)), asked)
    except ValidationError as error:
        fields = query_fields(error.errors(include_url=False), known=list(ExtendRequest.model_fields))
        raise invalid_definition(fields, hint="/docs shows the fields; numbers are totals.") from None
    return parse_definition(raw)


async def _create(
    engine: Engine,
    limits: Quotas,
    request: Request,
    response: Response,
    definition: StudyDefinition,
    key: IdempotencyKey | None,
) -> StudyView:
    check_limits(definition, limits)
    view, created = await run_in_threadpool(
        studies.create_study, engine, definition, max_queued=limits.max_queued, key=key
    )
    if created:
        await run_in_threadpool(request.app.state.supervisor.notice, view.id)
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/studies/{view.id}"
    return view


def check_limits(definition: StudyDefinition, limits: Quotas) -> None:
    """Refuse more trials than the service takes, and code that its operator does not allow; raises ApiError."""
    refused = []
    for field, path in definition.imports().items():
        try:
            check_allowed(path, limits.allow_imports)
        except ImportPathError as error:
            refused.append(FieldError(field=field, value=path, rule=str(error)))
    if refused:
        raise invalid_definition(refused)
    n = definition.n_runs
    if n > limits.max_trials:
        asked = f"the study asks for {n} trials, confirm and sensitivity runs in all"
        rule = f"{asked}; this service takes at most {limits.max_trials}"
        n_trials = definition.budget.trials_per_optimizer
        raise invalid_definition([FieldError(field="budget.trials_per_optimizer", value=n_trials, rule=rule)])


def parse_definition(raw: dict[str, Any]) -> StudyDefinition:
    """The study that a JSON object defines.

    Raises:
        ApiError: 422, naming each field at fault with its value and rule.
    """
    raw = expand_names(raw)
    try:
        return StudyDefinition.model_validate(raw)
    except ValidationError as error:
        raise invalid_definition(definition_fields(error, raw)) from None


def merged(definition: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The definition with the changes, by JSON Merge Patch (RFC 7396); neither argument is modified.

    Args:
        definition: JSON object.
        changes: objects are merged key by key, null takes a key away (its default holds again), anything else, lists
            too, replaces what was there.
    """
    result = dict(definition)
    for key, change in changes.items():
        if change is None:
            result.pop(key, None)
        elif isinstance(change, Mapping):
            old = result.get(key)
            result[key] = merged(old if isinstance(old, Mapping) else {}, change)
        else:
            result[key] = change
    return result


runs = APIRouter(prefix="/v1", tags=["runs"], responses={404: {"model": ErrorView}})
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


@runs.get("/studies/{study}/runs")
def list_runs(engine: Database, study: str, filters: Annotated[RunFilters, Query()]) -> Page[StudyRunView]:
    """A study's runs, of the search stage and of the confirm stage."""
    return queries.list_runs(engine, study, **filters.model_dump())


@runs.get("/runs/{run}")
def get_run(engine: Database, request: Request, run: RunId) -> StudyRunView:
    """One run with its attempts."""
    view = queries.get_run(engine, run)
    logs = run_log.logged_attempts(_folder(request, queries.run_files(engine, run).folder))
    return view.model_copy(update={"logs": logs})


@runs.get("/runs/{run}/curve")
def get_run_curve(engine: Database, run: RunId) -> list[PointView]:
    """A run's evaluations, first to last."""
    return queries.get_run_curve(engine, run)


@runs.get("/runs/{run}/logs", response_class=Response, response_model=None, responses=_LOG)
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
