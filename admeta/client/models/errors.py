"""What every error says."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from admeta.client.models.base import View


class ErrorView(View):
    """Every error: what went wrong, which value and rule, and the next step."""

    error: str = Field(description="A short machine-readable name.", examples=["study_not_found"])
    detail: str = Field(description="What is wrong, with the value and the rule.")
    hint: str = Field(description="What to do next.")
    fields: list[FieldError] = Field(default=[], description="422 only: each field at fault.")


class FieldError(View):
    """One field of a request body that breaks a rule."""

    field: str = Field(examples=["optimizers.0.space.lr.low"])
    value: Any = None
    rule: str
