"""The paper's tables with our results next to its numbers, and the studies that produce them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from admeta.client.models.base import View


class PaperTableView(View):
    """One of the paper's result tables."""

    name: str
    number: int = Field(description="In the paper.")
    caption: str
    n_cells: int = Field(description="Numbers that the paper prints in it.")
    n_ours: int = Field(description="Those for which there is a number of ours.")
    studies: list[str] = Field(description="Names of the studies that fill it, from GET /v1/paper/studies.")


class PaperNumberView(View):
    """A number that the paper prints."""

    text: str = Field(description="As printed: in percent, or a duration.")
    value: float = Field(description="Accuracies and the like as fractions; times in seconds.")
    std: float | None = Field(description="In the unit of value; the paper does not say over how many runs.")
    task: str
    model: str = Field(description="The paper's name of it.")
    optimizer: str
    metric: str = Field(description="Without the split's name before it.")
    split: str = Field(description="test or dev.")
    variant: str | None = Field(description="An ablation, or another departure from the optimizer's main result.")


class OurNumberView(View):
    """Our number for the same: over the confirm runs of the best trial, on the test set."""

    text: str = Field(description="In the paper's unit, with n.")
    mean: float
    std: float | None
    n: int
    model: str
    study: str
    label: str
    trial: int


class PaperCellView(View):
    """A cell of the paper's table."""

    paper: PaperNumberView | None = Field(description="Null where it prints none.")
    ours: OurNumberView | None = Field(description="Null where nothing was measured here.")
    difference: float | None = Field(description="Ours minus the paper's, in the unit of both.")


class PaperTableCellsView(PaperTableView):
    """One of the paper's result tables with its cells, in the paper's rows and columns."""

    columns: list[list[str]] = Field(description="The heading of each, one string a level.")
    rows: list[list[str]]
    cells: list[list[PaperCellView]]
    notes: list[str]


class PaperStudyView(View):
    """A study that measures what a table of the paper reports."""

    name: str
    study: str = Field(description="The name that it is submitted under.")
    table: str = Field(description="A name from GET /v1/paper/tables.")
    task: str
    model: str
    optimizers: list[str] = Field(description="Labels of its searches.")
    n_runs: int = Field(description="Trainings, search and confirm stages together.")
    after: str | None = Field(description="The study that has to be done first, as this one starts from its trial.")
    notes: str = Field(description="Where it departs from the paper, and the like.")
    definition: dict[str, Any] | None = Field(
        default=None, description="What POST /v1/studies takes; null in the list of all."
    )
