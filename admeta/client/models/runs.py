"""Runs by themselves: those of a study in a list, and one by its id."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from admeta.client.models.base import View
from admeta.client.models.trials import RunView


class StudyRunView(RunView):
    """A run with what it belongs to."""

    study: str = Field(description="The study's name.")
    label: str
    optimizer: str
    trial: int
    settings: dict[str, Any] = Field(description="Constructs the optimizer: cls(parameters, **settings).")
    logs: list[int] = Field(default=[], description="In single reads only: the attempts that left a log.")


class LogView(View):
    """A part of what an attempt of a run printed; REST sends the text, and the rest in headers."""

    run: int
    attempt: int
    text: str
    offset: int = Field(description="Where the next part begins, in bytes since the attempt began.")
    ended: bool = Field(description="Nothing will be added to this attempt's log.")
