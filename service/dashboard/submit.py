"""Submitting a study from a page: a form that writes YAML, checks of the YAML while it is typed, the submission."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field
from sqlalchemy import Engine

import admeta.registry
import tasks.registry
from admeta.client import studyfile
from admeta.client.errors import StudyFileError
from admeta.client.formatting import searched_in
from admeta.client.models import DetectableView, FieldError, StudyView
from search.advice import warnings_for
from search.definition import StudyDefinition, expand_names
from search.errors import StudyConflictError, StudyNotFoundError
from search.named_spaces import PAPER_BEST, named_spaces
from search.space import from_registry
from service.api.catalog import known_task
from service.api.errors import ApiError
from service.api.requests import Database, Filters, Limits, check_in_thread, parse_object
from service.api.studies import check_limits, parse_definition
from service.dashboard import form
from service.dashboard.form import Filled
from service.dashboard.pages import page
from service.database import queries, studies
from service.database.errors import QueueFullError
from service.settings import Quotas
from tasks.errors import UnknownTaskError

router = APIRouter(include_in_schema=False)
FIRST_TASK = "digits"
FIRST_OPTIMIZERS = ("admetar", "admetas", "adamw", "sgdm")
MAX_FIELDS = 500
MAX_CHARACTERS = 30_000  # the YAML reader takes half a second for it at worst
MAX_FORM = 6 * MAX_CHARACTERS  # bytes; an encoded one takes three


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of checking a text.

    Attributes:
        definition: the study, where it is one.
        problem, hint: an error of the whole text, and the next step.
        fields: the errors of single fields.
        warnings: what is allowed but not advisable.
        n_runs: runs that it asks for in all.
        detectable: the difference that it can show; None where it has one optimizer.
        same_name: a study that already has the name.
    """

    definition: StudyDefinition | None = None
    problem: str = ""
    hint: str = ""
    fields: Sequence[FieldError] = ()
    warnings: Sequence[str] = field(default_factory=list)
    n_runs: int = 0
    detectable: DetectableView | None = None
    same_name: StudyView | None = None


async def _filled(request: Request) -> Filled:
    """The form in the request's body."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        if len(body) > MAX_FORM:
            raise ValueError
        return parse_qs(body, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        detail = f"the form has more than {MAX_FIELDS} fields or {MAX_FORM} bytes."
        raise ApiError(400, "invalid_form", detail, hint="Send the form of /submit again, with less.") from None


Form = Annotated[Filled, Depends(_filled)]


async def _checked(request: Request, engine: Database, limits: Limits, filled: Form) -> Verdict:
    """The result of checking the form's YAML."""
    return await check_in_thread(request, check_text, engine, limits, _text(filled, "definition"))


Checked = Annotated[Verdict, Depends(_checked)]


class SubmitFilters(Filters):
    """What the page begins with."""

    task: str = Field(default=FIRST_TASK, max_length=100)
    again: str | None = Field(default=None, max_length=100, description="A study to take the definition of.")
    wider: bool = Field(default=False, description="With the wider spaces that its comparison advises.")


@router.get("/submit")
def submit_page(
    request: Request, engine: Database, limits: Limits, filters: Annotated[SubmitFilters, Query()]
) -> Response:
    """The form with sensible defaults, and the study that it makes as YAML."""
    known_task(filters.task, status=422)
    filled = _sensible(filters.task)
    text = _composed(filled)
    if filters.again is not None:
        old = queries.get_study_view(engine, filters.again)
        definition = {**(old.definition or {}), "name": f"{old.name[:90]}-again"}
        if filters.wider:
            definition = queries.comparison(engine, old.id).wider or definition
        text = to_yaml(definition)
        return _page(request, _shown_by(text), text, check_text(engine, limits, text))
    return _page(request, filled, text, check_text(engine, limits, text))


@router.post("/submit/compose")
def compose(request: Request, engine: Database, limits: Limits, filled: Form) -> Response:
    """The filled form as YAML, with the result of the check; a whole page for a browser without JavaScript."""
    info = known_task(_text(filled, "task.name"), status=422)
    task = info.name
    now, before = (info.config.defaults_of(_text(filled, name)) for name in ("task.model", "shown_model"))
    changed = task != _text(filled, "shown_task") or (now != before and not _text(filled, "base"))
    if changed:  # the fields are still those of the task or model before
        filled = _of_another_task(filled, task)
    text = _composed(filled)
    verdict = check_text(engine, limits, text)
    if "hx-request" not in request.headers:
        return _page(request, filled, text, verdict)
    parts = _task_parts(filled) if changed else {}
    return page(request, "submit_composed.html", text=text, verdict=verdict, task_changed=changed, **parts)


@router.post("/submit/check")
def check(request: Request, filled: Form, verdict: Checked) -> Response:
    """The result of checking the YAML, with the form as it shows that; nothing is submitted."""
    shown = _shown_by(_text(filled, "definition")) if verdict.definition else None
    return page(request, "submit_checked.html", verdict=verdict, **(_form_parts(shown) if shown else {"base": None}))


@router.post("/submit")
def submit(request: Request, engine: Database, limits: Limits, filled: Form, verdict: Checked) -> Response:
    """Submit the YAML and show the study; if it is not valid, show the form again with the errors."""
    text = _text(filled, "definition")
    if verdict.definition is None:
        return _page(request, None, text, verdict, status=422)
    try:
        view, _ = studies.create_study(engine, verdict.definition, max_queued=limits.max_queued)
        request.app.state.supervisor.notice(view.id)
    except StudyConflictError as error:
        return _page(request, _shown_by(text), text, Verdict(problem=f"{error}."), status=409)
    except QueueFullError as error:
        return _page(request, _shown_by(text), text, Verdict(problem=error.detail, hint=error.hint), status=429)
    return RedirectResponse(f"/studies/{view.id}", status_code=303)


def _shown_by(text: str) -> Filled | None:
    """The form as it shows a study's text; None where it cannot show all of it.

    What the form has no input for stays with it as its base, except comments. The task of an old study may no longer be
    installed.
    """
    if _COMMENT.search(text):
        return None
    definition = expand_names(studyfile.parse(text, source="the study"))
    try:
        return form.fill(definition, _sections(definition["task"]["name"], definition["task"].get("model")))
    except UnknownTaskError:
        return None


_COMMENT = re.compile(r"(^|\s)#", re.MULTILINE)


def _sensible(task: str) -> Filled:
    return {**_begun(task), "optimizer": list(FIRST_OPTIMIZERS)}


def _begun(task: str) -> Filled:
    """A name, the task, and its own model."""
    model = form.default_model(tasks.registry.get(task).config)
    return {"name": [_suggested_name(task)], "task.name": [task], "task.model": [model] if model else []}


def _suggested_name(task: str) -> str:
    return f"{task}-{datetime.now(UTC):%m%d-%H%M}"


def _of_another_task(filled: Filled, task: str) -> Filled:
    """The form with the fields of another task or of another of its models.

    What was changed stays where both have it, except a suggested name.
    """
    before = _text(filled, "shown_task")
    chosen = {"task.name", "task.model", "objective.metric"} if task == before else set()
    model = _text(filled if chosen else _begun(task), "task.model")
    old, new = (
        {field.path: field for field in _task_fields(*of)}
        for of in ((before, _text(filled, "shown_model")), (task, model))
    )
    kept = {
        name: texts
        for name, texts in filled.items()
        if name in chosen
        or not name.startswith(("task.", "objective."))
        or (name in old and name in new and texts and texts[0].strip() not in ("", old[name].text))
    }
    suggested = not chosen and _text(filled, "name").startswith(f"{before}-")
    return {**_begun(task), **kept} | ({"name": [_suggested_name(task)]} if suggested else {})


def _text(filled: Filled, name: str) -> str:
    return next(iter(filled.get(name, ())), "")


def _composed(filled: Filled) -> str:
    try:
        sections = _sections(_text(filled, "task.name"), _text(filled, "task.model"))
        return to_yaml(form.compose(filled, sections))
    except ValueError as error:
        detail = f"the form cannot be read: {error}."
        raise ApiError(400, "invalid_form", detail, hint="Reload the page.") from None


def _sections(task: str, model: str | None) -> list[form.Section]:
    return [form.task_fields(tasks.registry.get(task).config, model), *form.study_sections()]


def _task_fields(task: str, model: str) -> list[form.Field]:
    with suppress(UnknownTaskError):
        section = form.task_fields(tasks.registry.get(task).config, model)
        return [*section.fields, *section.more]
    return []


def _page(request: Request, filled: Filled | None, text: str, verdict: Verdict, *, status: int = 200) -> Response:
    """The page; `filled` is None where the form cannot show the text, which it then replaces only after a question."""
    parts = _form_parts(filled or _sensible(FIRST_TASK))
    return page(
        request, "submit.html", status=status, text=text, verdict=verdict, in_step=filled is not None,
        unsaved=request.method == "POST", **parts,
    )  # fmt: skip


def _form_parts(filled: Filled) -> dict[str, Any]:
    return {
        "tasks": sorted(tasks.registry.all_tasks()),
        "optimizers": _optimizers(),
        "chosen": list(filled.get("optimizer", ())),
        "own": form.own_spaces(filled),
        "base": _text(filled, "base"),
        "sections": form.study_sections(),
        **_task_parts(filled),
    }


def _task_parts(filled: Filled) -> dict[str, Any]:
    info = tasks.registry.get(_text(filled, "task.name"))
    values = {name: texts[0] for name, texts in filled.items() if texts}
    return {
        "task": info,
        "task_section": form.task_fields(info.config, values.get("task.model")),
        "default_model": form.default_model(info.config),
        "filled": values,
    }


def _optimizers() -> list[dict[str, Any]]:
    """The optimizers that there are, with the spaces they may name and what the default one searches."""
    found = []
    for name in sorted(admeta.registry.known_optimizers()):
        info = admeta.registry.get(name)
        space = from_registry(info.default_space)
        found.append(
            {
                "name": name,
                "title": info.title,
                "description": info.description,
                "spaces": [*named_spaces(info), PAPER_BEST],
                "searched": ", ".join(
                    searched_in(key, parameter.model_dump(exclude_none=True)) for key, parameter in space.items()
                ),
            }
        )
    return found


def check_text(engine: Engine, limits: Quotas, text: str) -> Verdict:
    """Whether a YAML or JSON text is a study that the service would take; submits nothing."""
    try:
        definition = read(text)
        check_limits(definition, limits)
    except StudyFileError as error:
        return Verdict(problem=error.detail, hint=error.hint)
    except ApiError as error:
        fields = error.view.fields
        return Verdict(problem="" if fields else error.view.detail, hint=error.view.hint, fields=fields)
    return Verdict(
        definition=definition,
        warnings=warnings_for(definition),
        n_runs=definition.n_runs,
        detectable=queries.detectable(engine, definition),
        same_name=_named(engine, definition.name),
    )


def read(text: str) -> StudyDefinition:
    """The study in a text.

    Raises:
        StudyFileError: it is too long, or not the YAML of one object.
        ApiError: it is not a study.
    """
    if len(text) > MAX_CHARACTERS:
        detail = f"the study has {len(text):,} characters; this page takes at most {MAX_CHARACTERS:,}."
        raise StudyFileError(detail, hint="Send it with `admeta submit FILE`.")
    value = studyfile.parse(text, source="the study")
    return parse_definition(parse_object(json.dumps(value).encode()))


def to_yaml(definition: dict[str, Any]) -> str:
    """A definition as people write it: inner lists and objects on one line."""
    return studyfile.dump(definition)


def _named(engine: Engine, name: str) -> StudyView | None:
    try:
        found = queries.get_study_view(engine, name)
    except StudyNotFoundError:
        return None
    return found if found.name == name else None  # not one that has it for an id
