"""What happens to studies."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from admeta.client.models.base import View


class EventView(View):
    """Something that happened to a study; ids rise in the order in which events became true."""

    id: int
    at: datetime
    study: str = Field(description="The study's id.")
    kind: str = Field(examples=["study.state", "trial.finished", "metric"])
    data: dict[str, Any] = Field(description="What there is to say: run, label, trial, stage, seed, state, points, …")
