"""Errors on one inner field, which pydantic places under the field whose validator raises them."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError


def fault(kind: str, message: str, *, at: int | str | tuple[int | str, ...], value: Any) -> ValidationError:
    """The error; `at` is the place under the validator's own field."""
    error = PydanticCustomError(kind, "{message}", {"message": message})
    location = at if isinstance(at, tuple) else (at,)
    return ValidationError.from_exception_data("", [{"type": error, "loc": location, "input": value}])
