"""A study's text on its way in: read, checked as the API checks it, and summed up in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine

from admeta.client import studyfile
from search.advice import warnings_for
from search.definition import StudyDefinition
from search.errors import StudyNotFoundError
from service.api.body import parse_object
from service.api.errors import ApiError
from service.api.studies import check_size, parse_definition
from service.database import queries
from service.errors import StudyFileError
from service.models import FieldError, StudyView
from service.settings import Quotas

MAX_CHARACTERS = 100_000


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is to be said of a text.

    Attributes:
        definition: the study, where it is one.
        problem, hint: what is wrong as a whole, and what to do.
        fields: what is wrong, field by field.
        warnings: what is allowed, but ill-advised.
        n_runs: runs that it asks for in all.
        same_name: a study that already has the name.
    """

    definition: StudyDefinition | None = None
    problem: str = ""
    hint: str = ""
    fields: Sequence[FieldError] = ()
    warnings: Sequence[str] = field(default_factory=list)
    n_runs: int = 0
    same_name: StudyView | None = None


def check(engine: Engine, limits: Quotas, text: str) -> Verdict:
    """Whether a YAML or JSON text is a study that the service would take; submits nothing."""
    try:
        definition = read(text)
        check_size(definition, limits)
    except StudyFileError as error:
        return Verdict(problem=error.detail, hint=error.hint)
    except ApiError as error:
        fields = error.view.fields
        return Verdict(problem="" if fields else error.view.detail, hint=error.view.hint, fields=fields)
    return Verdict(
        definition=definition,
        warnings=warnings_for(definition),
        n_runs=definition.n_runs,
        same_name=_named(engine, definition.name),
    )


def read(text: str) -> StudyDefinition:
    """The study in a text.

    Raises:
        StudyFileError: it is too long, or not the YAML of one object.
        ApiError: it is no study.
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
