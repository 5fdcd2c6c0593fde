"""The base of every answer, a page of a list, and what every error says."""

from __future__ import annotations

import math
from html import escape
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from admeta.spaces import RECIPE

Item = TypeVar("Item")


def finite_or_none(value: float | None) -> float | None:
    """The value as strict JSON can write it: None for NaN and infinities."""
    return value if value is not None and math.isfinite(value) else None


Finite = Annotated[float | None, BeforeValidator(finite_or_none)]
"""A number; NaN and infinities, which JSON has not, become null."""


class View(BaseModel):
    """Base of every answer. It is made from JSON, or from whatever has attributes of the fields' names: a row of SQL.

    Other attributes are left out; numbers that are not finite become null.
    """

    model_config = ConfigDict(frozen=True, from_attributes=True, ser_json_inf_nan="null")

    def _repr_html_(self) -> str:
        """The answer as a table, for notebooks."""
        return _html(self.model_dump(mode="json"))


class SourceView(View):
    """A trial of an earlier study."""

    study: str = Field(description="The study's name.")
    label: str
    trial: int
    is_step: bool = Field(default=False, description="Whether the settings are a step, or several, from its own.")


class TrainedView(View):
    """Base of the answers that show what a trial trains with."""

    settings: dict[str, Any] | None = Field(description="Constructs the optimizer: cls(parameters, **settings).")
    training: dict[str, Any] = Field(
        default={},
        description="What the trial sets of its study's `task`, by field: a recipe that was searched, or is fixed for "
        "its optimizer alone. Empty: it trains as `task` says.",
        examples=[{"batch_size": 64, "schedule.warmup": 0.05}],
    )

    taken_from: list[SourceView] = Field(
        default=[],
        description="The trials of earlier studies from which a warm start took these settings: the first one has "
        "them, or they are a step or several from it (`is_step`); the others lie near it and speak for it. Empty: no "
        "earlier study proposed them.",
    )

    @property
    def chosen(self) -> dict[str, Any]:
        """Settings and recipe together, under the names that a search space has for them: `recipe.batch_size`."""
        return {**(self.settings or {}), **{f"{RECIPE}{name}": value for name, value in self.training.items()}}


def _html(value: Any) -> str:
    """A JSON value as HTML: an object as rows of name and value, a list of objects as one table."""
    if isinstance(value, dict):
        rows = "".join(f"<tr><th>{escape(str(name))}</th><td>{_html(item)}</td></tr>" for name, item in value.items())
        return f"<table>{rows}</table>"
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        names = list(dict.fromkeys(name for item in value for name in item))
        head = "".join(f"<th>{escape(str(name))}</th>" for name in names)
        rows = "".join(f"<tr>{''.join(f'<td>{_html(item.get(name))}</td>' for name in names)}</tr>" for item in value)
        return f"<table><tr>{head}</tr>{rows}</table>"
    return "" if value is None else escape(str(value))


class Page(View, Generic[Item]):
    """A page of a list; `next_cursor` is null on the last one."""

    items: list[Item]
    next_cursor: str | None = None


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

    def sentence(self, value: str) -> str:
        """The field, its value written so, and the rule; a field that was not given has no value to show."""
        is_absent = self.value is None and self.rule.startswith("is required")
        return f"{self.field} {self.rule}" if is_absent else f"{self.field} = {value}: {self.rule}"
