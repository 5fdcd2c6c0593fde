"""What is known best, and what mattered."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from admeta.client.models.base import View
from admeta.client.models.comparison import SpreadView


class BestView(View):
    """The best settings known for a task and optimizer over all studies."""

    task: str
    model: str | None
    optimizer: str
    metric: str
    direction: str
    settings: dict[str, Any] = Field(description="Constructs the optimizer: cls(parameters, **settings).")
    search_value: float | None
    validation: SpreadView
    test: SpreadView
    test_metric: str | None
    study: str
    label: str
    trial: int
    evidence: str = Field(description="'confirmed' over several seeds, or 'single run' of the search stage.")
    init_from: str | None = Field(
        default=None,
        description="What training started from, STUDY/LABEL/TRIAL or a file; null: fresh weights, which come first.",
    )

    @property
    def params(self) -> dict[str, Any]:
        """The settings as a plain dict: `AdmetaR(model.parameters(), **best.params)`."""
        return dict(self.settings)


class ImportanceView(View):
    """How much each searched parameter mattered in one optimizer's search."""

    label: str
    method: str | None = Field(description="fanova or ped-anova.")
    shares: dict[str, float] = Field(description="By parameter, largest first, with sum 1; empty: see `reason`.")
    n_trials: int = Field(description="Complete trials it rests on.")
    reason: str | None = Field(default=None, description="Why nothing can be told yet.")
