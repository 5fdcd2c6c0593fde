"""The errors of this package.

SearchError
├── StudyNotFoundError
├── StudyConflictError
├── TooFewTrialsError
└── LeaseLostError
"""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError


class SearchError(Exception):
    """Base of every error raised by `search`."""


class StudyNotFoundError(SearchError):
    """No study has this id or name."""


class StudyConflictError(SearchError):
    """The study's state or definition does not allow what was asked."""


class TooFewTrialsError(SearchError):
    """There are not enough complete trials with different results to tell parameters apart."""


class LeaseLostError(SearchError):
    """Another driver has taken the study over; this one must stop writing."""


def nearest_hint(name: str, known: tuple[str, ...]) -> str:
    """The next step for an unknown name: the nearest known one, and all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    known_names = "known: " + ", ".join(sorted(known))
    return f"did you mean '{near[0]}'? {known_names}" if near else known_names


def field_error(kind: str, message: str, *, at: int | str | tuple[int | str, ...], value: Any) -> ValidationError:
    """An error of one inner field, which pydantic places under the field whose validator raises it.

    Args:
        at: the place under that field.
    """
    error = PydanticCustomError(kind, "{message}", {"message": message})
    location = at if isinstance(at, tuple) else (at,)
    return ValidationError.from_exception_data("", [{"type": error, "loc": location, "input": value}])
